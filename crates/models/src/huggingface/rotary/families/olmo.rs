//! Olmo, two generations.

use super::with_attention_bias;
use crate::huggingface::config::Config;
use crate::huggingface::rotary::attention::QueryNorms;
use crate::huggingface::rotary::decoder::{Block, Decoder};
use crate::huggingface::rotary::norm::Formula;
use crate::huggingface::rotary::rotation::Part;
use crate::request_error::RequestError;

/// What both generations of Olmo have in common.
fn any_olmo(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let mut decoder = with_attention_bias(config)?;
    decoder.rotation.is_sure_of_float32 = true;
    decoder.rotation.part = Part::WholeInFloat32;
    Ok(decoder)
}

pub(super) fn olmo(config: &Config<'_>) -> Result<Decoder, RequestError> {
    Ok(Decoder {
        norm: Formula::Olmo,
        is_projected_before_heads: true,
        clip: config.number_or_none("clip_qkv", None)?,
        ..any_olmo(config)?
    })
}

pub(super) fn olmo2(config: &Config<'_>) -> Result<Decoder, RequestError> {
    Ok(Decoder {
        norm: Formula::Olmo2,
        query_norms: QueryNorms::OfAllHeads,
        block: Block::After,
        ..any_olmo(config)?
    })
}
