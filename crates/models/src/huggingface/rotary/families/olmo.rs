//! Olmo, two generations.

use super::{ConfigDefaults, LLAMA, with_attention_bias};
use crate::huggingface::config::Config;
use crate::huggingface::rotary::attention::QueryNorms;
use crate::huggingface::rotary::decoder::{Block, Decoder};
use crate::huggingface::rotary::norm::Formula;
use crate::huggingface::rotary::rotation::Part;
use crate::request_error::RequestError;

/// What both generations of Olmo have in common.
fn any_olmo(config: &Config<'_>, usual: &ConfigDefaults) -> Result<Decoder, RequestError> {
    let usual = ConfigDefaults {
        vocabulary: 50304,
        eps: 1e-5,
        padding: Some(1),
        tokens: [false, true, true],
        ..*usual
    };
    let mut decoder = with_attention_bias(config, &usual)?;
    decoder.rotation.is_sure_of_float32 = true;
    decoder.rotation.part = Part::WholeInFloat32;
    Ok(decoder)
}

pub(super) fn olmo(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let usual = ConfigDefaults {
        folder: "olmo",
        prefix: "Olmo",
        ..LLAMA
    };
    Ok(Decoder {
        norm: Formula::Olmo,
        is_projected_before_heads: true,
        clip: config.number_or_none("clip_qkv", None)?,
        ..any_olmo(config, &usual)?
    })
}

pub(super) fn olmo2(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let usual = ConfigDefaults {
        folder: "olmo2",
        prefix: "Olmo2",
        ..LLAMA
    };
    Ok(Decoder {
        norm: Formula::Olmo2,
        query_norms: QueryNorms::OfAllHeads,
        block: Block::After,
        ..any_olmo(config, &usual)?
    })
}
