//! Phi, up to the fourth generation.

use super::base;
use crate::huggingface::config::Config;
use crate::huggingface::rotary::attention::QueryNorms;
use crate::huggingface::rotary::decoder::{Block, Decoder, Windows};
use crate::huggingface::rotary::mlp::Layers;
use crate::huggingface::rotary::norm::Formula;
use crate::huggingface::rotary::rope::{Custom, rotation};
use crate::huggingface::rotary::rotation::Part;
use crate::request_error::RequestError;

pub(super) fn phi(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let mut decoder = Decoder {
        norm: Formula::Layer,
        mlp: Layers::Two,
        mlp_bias: true,
        qkv_bias: true,
        output_bias: true,
        head_bias: true,
        output_name: "dense",
        query_norm_names: ["q_layernorm", "k_layernorm"],
        block: Block::SideBySide(config.number("resid_pdrop", 0.0)?),
        embedding_dropout: Some(config.number("embd_pdrop", 0.0)?),
        final_norm: "final_layernorm",
        ..base(config)?
    };
    if config.flag("qk_layernorm", false)? {
        decoder.query_norms = QueryNorms::OfHeadsLater;
    }
    decoder.rotation = rotation(config, None, decoder.shape.head_dim, Custom::Phi)?;
    decoder.rotation.part = Part::FirstBeforehand;
    Ok(decoder)
}

pub(super) fn phi3(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let window = config.size_if_given("sliding_window")?;
    let mut decoder = Decoder {
        is_projected_as_one: true,
        mlp: Layers::GatedAsOne,
        block: Block::BeforeAndDropout(config.number("resid_pdrop", 0.0)?),
        windows: window.map_or(Windows::None, Windows::All),
        ..base(config)?
    };
    decoder.rotation = rotation(config, None, decoder.shape.head_dim, Custom::Phi3)?;
    decoder.rotation.part = Part::First;
    Ok(decoder)
}
