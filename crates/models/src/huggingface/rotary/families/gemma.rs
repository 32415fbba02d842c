//! Gemma, three generations.

use super::{windows, with_attention_bias};
use crate::huggingface::config::Config;
use crate::huggingface::rotary::attention::QueryNorms;
use crate::huggingface::rotary::decoder::{Block, Decoder, Scaled};
use crate::huggingface::rotary::norm::Formula;
use crate::huggingface::rotary::rope::{Custom, rotation};
use crate::request_error::RequestError;

/// What the three generations of Gemma have in common, and all that there is of the first.
pub(super) fn any_gemma(config: &Config<'_>) -> Result<Decoder, RequestError> {
    if config.flag("use_bidirectional_attention", false)? {
        return Err(config.not_built("use_bidirectional_attention"));
    }
    Ok(Decoder {
        norm: Formula::Gemma,
        embedding: Scaled::Buffer,
        ..with_attention_bias(config)?
    })
}

/// What the second and the third generation of Gemma have in common.
fn late_gemma(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let scalar = config.number("query_pre_attn_scalar", 256.0)?;
    let activation = config
        .text("hidden_activation", "gelu_pytorch_tanh")?
        .to_owned();
    let mut decoder = any_gemma(config)?;
    decoder.block = Block::Around;
    decoder.scale = scalar.powf(-0.5);
    decoder.shape.activation = activation;
    Ok(decoder)
}

pub(super) fn gemma2(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let mut decoder = late_gemma(config)?;
    let window = config.size_or_none("sliding_window", Some(4096))?;
    let every_other = |layer: u64| layer.is_multiple_of(2);
    decoder.windows = windows(config, decoder.shape.layers, window, every_other, true)?;
    decoder.rotation.is_sure_of_float32 = true;
    decoder.softcap = config.number_or_none("final_logit_softcapping", Some(30.0))?;
    Ok(decoder)
}

pub(super) fn gemma3(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let mut decoder = late_gemma(config)?;
    let window = config.size_or_none("sliding_window", Some(4096))?;
    let pattern = config.size("sliding_window_pattern", 6)?;
    let but_each_sixth = |layer: u64| !(layer + 1).is_multiple_of(pattern);
    decoder.windows = windows(config, decoder.shape.layers, window, but_each_sixth, true)?;
    decoder.query_norms = QueryNorms::OfHeadsLater;
    decoder.softcap = config.number_or_none("final_logit_softcapping", None)?;
    let kinds = [(false, "full_attention"), (true, "sliding_attention")];
    for (has_window, kind) in kinds {
        if (0..decoder.shape.layers).any(|layer| decoder.has_window(layer) == has_window) {
            let rotation = rotation(config, Some(kind), decoder.shape.head_dim, Custom::Llama)?;
            decoder.rotations.push((kind, rotation));
        }
    }
    Ok(decoder)
}
