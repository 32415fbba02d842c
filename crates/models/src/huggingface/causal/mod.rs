//! Decoders whose layers are their own: those before llama, and some since.

mod alibi;
pub(super) mod bloom;
pub(super) mod falcon;
pub(super) mod gpt2;
pub(super) mod gpt_neox;
pub(super) mod opt;

use crate::huggingface::config::Config;
use crate::request_error::RequestError;

/// The part of a config that says how positions are rotated, which no option may change but for the part of a head.
fn plain_rotation<'a>(config: &Config<'a>) -> Result<Option<Config<'a>>, RequestError> {
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(rope) = config.part(name)? else {
            continue;
        };
        let kind = rope.text("rope_type", rope.text("type", "default")?)?;
        if kind != "default" {
            return Err(config.not_built(name));
        }
        return Ok(Some(rope));
    }
    Ok(None)
}
