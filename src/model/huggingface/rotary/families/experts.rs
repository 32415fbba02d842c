//! Mixtral and `DeepSeek`.

use super::{LLAMA, Usual, base};
use crate::model::huggingface::config::Config;
use crate::model::huggingface::rotary::decoder::{Decoder, Windows};
use crate::model::huggingface::rotary::experts::{Family, Groups, Mixture};
use crate::model::huggingface::rotary::latent::Ranks;
use crate::model::huggingface::rotary::rope::yarn_attention;
use crate::model::huggingface::rotary::rotation::Part;
use crate::model::invalid::Invalid;

pub(super) fn mixtral(config: &Config<'_>) -> Result<Decoder, Invalid> {
    let usual = Usual {
        folder: "mixtral",
        prefix: "Mixtral",
        intermediate: 14336,
        kv_heads: Some(8),
        eps: 1e-5,
        ..LLAMA
    };
    if config.number("router_jitter_noise", 0.0)? > 0.0 {
        return Err(config.not_built("router_jitter_noise"));
    }
    let mut decoder = base(config, &usual)?;
    let window = config.size_if_given("sliding_window")?;
    decoder.windows = window.map_or(Windows::None, Windows::All);
    // `num_experts` is another name of it in transformers.
    let count = config.size_if_given("num_experts")?;
    let mixture = Mixture {
        count: config.size("num_local_experts", count.unwrap_or(8))?,
        chosen: config.size("num_experts_per_tok", 2)?,
        intermediate: decoder.intermediate,
        shared: 0,
        family: Family::Mixtral,
        layers: (0..decoder.layers).map(|_| true).collect(),
    };
    let names = ["num_local_experts", "num_experts_per_tok"];
    decoder.mixture = Some(mixture.checked(config, names)?);
    Ok(decoder)
}

pub(super) fn deepseek_v3(config: &Config<'_>) -> Result<Decoder, Invalid> {
    let rotated = config.size("qk_rope_head_dim", 64)?;
    let usual = Usual {
        folder: "deepseek_v3",
        prefix: "DeepseekV3",
        vocabulary: 129_280,
        width: 7168,
        intermediate: 18432,
        layers: 61,
        heads: 128,
        kv_heads: Some(128),
        head_dim: Some(rotated),
        ..LLAMA
    };
    let mut decoder = base(config, &usual)?;
    let ranks = Ranks {
        queries: config.size_or_none("q_lora_rank", Some(1536))?,
        keys_and_values: config.size("kv_lora_rank", 512)?,
        plain: config.size("qk_nope_head_dim", 128)?,
        rotated,
        value: config.size("v_head_dim", 128)?,
        bias: config.flag("attention_bias", false)?,
    };
    let head_dim = ranks.plain.saturating_add(rotated);
    decoder.scale = yarn_attention(config, (head_dim as f64).powf(-0.5))?;
    decoder.ranks = Some(ranks);
    if config.flag("rope_interleave", true)? {
        decoder.rotation.part = Part::Interleaved;
    }
    let groups = Groups {
        count: config.size("n_group", 8)?,
        chosen: config.size("topk_group", 4)?,
        normalizes: config.flag("norm_topk_prob", true)?,
        scaling: config.number("routed_scaling_factor", 2.5)?,
    };
    let first = config.count("first_k_dense_replace", 3)?;
    let intermediate = config.size("moe_intermediate_size", 2048)?;
    let shared = config.count("n_shared_experts", 1)?;
    let count = config.size_if_given("num_local_experts")?;
    let mixture = Mixture {
        count: config.size("n_routed_experts", count.unwrap_or(256))?,
        chosen: config.size("num_experts_per_tok", 8)?,
        intermediate,
        shared: intermediate.saturating_mul(shared),
        family: Family::DeepseekV3(groups),
        layers: (0..decoder.layers).map(|layer| layer >= first).collect(),
    };
    config.quotient([
        ("n_routed_experts", mixture.count),
        ("n_group", groups.count),
    ])?;
    if groups.chosen > groups.count {
        return Err(Invalid::at(
            config.at("topk_group"),
            format!(
                "topk_group is {}, but n_group is {}",
                groups.chosen, groups.count
            ),
        ));
    }
    let names = ["n_routed_experts", "num_experts_per_tok"];
    decoder.mixture = Some(mixture.checked(config, names)?);
    Ok(decoder)
}
