//! Qwen 2 and 3, without and with experts.

use super::{base, windows, with_attention_bias};
use crate::huggingface::config::Config;
use crate::huggingface::rotary::attention::QueryNorms;
use crate::huggingface::rotary::decoder::{Decoder, Windows};
use crate::huggingface::rotary::experts::{Family, Mixture};
use crate::request_error::RequestError;

/// `Qwen2Config` and `Qwen3Config`: windows of layers past the first `max_window_layers`.
fn qwen_windows(config: &Config<'_>, layers: u64) -> Result<Windows, RequestError> {
    let window = if config.flag("use_sliding_window", false)? {
        config.size_or_none("sliding_window", Some(4096))?
    } else {
        None
    };
    let first = config.count("max_window_layers", 28)?;
    let has_window = |layer| window.is_some() && layer >= first;
    windows(config, layers, window, has_window, false)
}

pub(super) fn qwen2(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let mut decoder = base(config)?;
    decoder.qkv_bias = true;
    decoder.rotation.is_sure_of_float32 = true;
    decoder.windows = qwen_windows(config, decoder.shape.layers)?;
    Ok(decoder)
}

pub(super) fn qwen3(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let mut decoder = with_attention_bias(config)?;
    decoder.query_norms = QueryNorms::OfHeads;
    decoder.rotation.is_sure_of_float32 = true;
    decoder.windows = qwen_windows(config, decoder.shape.layers)?;
    Ok(decoder)
}

/// Qwen 2 with experts.
pub(super) fn qwen2_moe(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let mut decoder = base(config)?;
    decoder.qkv_bias = config.flag("qkv_bias", true)?;
    decoder.rotation.is_sure_of_float32 = true;
    let is_used = config.flag("use_sliding_window", false)?;
    let window = if is_used {
        config.size_or_none("sliding_window", Some(4096))?
    } else {
        // A mask is made for it, though no layer takes it.
        Some(0)
    };
    let most = config.count("max_window_layers", 28)?;
    let has_window = |layer: u64| is_used && layer < most && layer.is_multiple_of(2);
    decoder.windows = windows(config, decoder.shape.layers, window, has_window, true)?;
    decoder.mixture = Some(Mixture {
        intermediate: config.size("moe_intermediate_size", 1408)?,
        shared: config.size("shared_expert_intermediate_size", 5632)?,
        ..mixture(config, decoder.shape.layers, [60, 4])?
    });
    Ok(decoder)
}

/// Qwen 3 with experts.
pub(super) fn qwen3_moe(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let mut decoder = with_attention_bias(config)?;
    decoder.query_norms = QueryNorms::OfHeads;
    if config.flag("use_sliding_window", false)? {
        let window = config.size_or_none("sliding_window", Some(4096))?;
        decoder.windows = window.map_or(Windows::None, Windows::All);
    }
    let mixture = mixture(config, decoder.shape.layers, [128, 8])?;
    let family = match mixture.family {
        Family::Qwen2 { normalizes } => Family::Qwen3 { normalizes },
        other => other,
    };
    decoder.mixture = Some(Mixture { family, ..mixture });
    Ok(decoder)
}

/// What both generations say alike, with the usual numbers of experts and of those that each token takes.
fn mixture(
    config: &Config<'_>,
    layers: u64,
    [count, chosen]: [u64; 2],
) -> Result<Mixture, RequestError> {
    let step = config.size("decoder_sparse_step", 1)?;
    let dense = config.counts("mlp_only_layers")?.unwrap_or_default();
    let has_experts = |layer: u64| !dense.contains(&layer) && (layer + 1).is_multiple_of(step);
    let mixture = Mixture {
        count: config.size("num_experts", count)?,
        chosen: config.size("num_experts_per_tok", chosen)?,
        intermediate: config.size("moe_intermediate_size", 768)?,
        shared: 0,
        family: Family::Qwen2 {
            normalizes: config.flag("norm_topk_prob", false)?,
        },
        layers: (0..layers).map(has_experts).collect(),
    };
    mixture.checked(config, ["num_experts", "num_experts_per_tok"])
}
