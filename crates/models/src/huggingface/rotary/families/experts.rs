//! Mixtral and `DeepSeek`.

use super::{base, of_shape};
use crate::huggingface::config::Config;
use crate::huggingface::rotary::decoder::{Decoder, Windows};
use crate::huggingface::rotary::experts::{Choice, Family, Groups, Mixture};
use crate::huggingface::rotary::latent::Ranks;
use crate::huggingface::rotary::rope::yarn_attention;
use crate::huggingface::rotary::rotation::Part;
use crate::huggingface::shape::Shape;
use crate::request_error::RequestError;

pub(super) fn mixtral(config: &Config<'_>) -> Result<Decoder, RequestError> {
    if config.number("router_jitter_noise", 0.0)? > 0.0 {
        return Err(config.not_built("router_jitter_noise"));
    }
    let mut decoder = base(config)?;
    let window = config.size_if_given("sliding_window")?;
    decoder.windows = window.map_or(Windows::None, Windows::All);
    let mixture = Mixture {
        count: config.size("num_local_experts", 8)?,
        chosen: config.size("num_experts_per_tok", 2)?,
        intermediate: decoder.shape.intermediate,
        shared: 0,
        family: Family::Mixtral,
        layers: (0..decoder.shape.layers).map(|_| true).collect(),
    };
    let names = ["num_local_experts", "num_experts_per_tok"];
    decoder.mixture = Some(mixture.checked(config, names)?);
    Ok(decoder)
}

/// What both generations of `DeepSeek` say alike, but for the router.
fn any_deepseek(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let rotated = config.size("qk_rope_head_dim", 64)?;
    let shape = Shape::with_heads_of(config, Some(rotated))?;
    let mut decoder = of_shape(config, shape)?;
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
    Ok(decoder)
}

/// `n_group` and `topk_group`, of so many experts.
fn groups(config: &Config<'_>, experts: u64, usual: [u64; 2]) -> Result<Groups, RequestError> {
    let [count, chosen] = usual;
    let groups = Groups {
        count: config.size("n_group", count)?,
        chosen: config.size("topk_group", chosen)?,
    };
    config.quotient([("n_routed_experts", experts), ("n_group", groups.count)])?;
    if groups.chosen > groups.count {
        return Err(config.wrong(
            "topk_group",
            format!(
                "topk_group is {}, but n_group is {}",
                groups.chosen, groups.count
            ),
        ));
    }
    Ok(groups)
}

/// What both say of their experts, with the usual sizes of one, of those that all tokens take, and of the layers before the first that has any.
fn mixture(
    config: &Config<'_>,
    layers: u64,
    [count, chosen]: [u64; 2],
    [intermediate, shared, first]: [u64; 3],
    family: Family,
) -> Result<Mixture, RequestError> {
    let first = config.count("first_k_dense_replace", first)?;
    let intermediate = config.size("moe_intermediate_size", intermediate)?;
    let mixture = Mixture {
        count,
        chosen,
        intermediate,
        shared: intermediate.saturating_mul(config.size("n_shared_experts", shared)?),
        family,
        layers: (0..layers).map(|layer| layer >= first).collect(),
    };
    mixture.checked(config, ["n_routed_experts", "num_experts_per_tok"])
}

pub(super) fn deepseek_v2(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let mut decoder = any_deepseek(config)?;
    decoder.mlp_bias = config.flag("mlp_bias", false)?;
    decoder.rotation.part = Part::Complex;
    let count = config.size("n_routed_experts", 64)?;
    let chosen = config.size_if_given("num_experts_per_tok")?;
    let chosen = chosen.ok_or_else(|| {
        let at = config.at("num_experts_per_tok");
        RequestError::at(at, "the config does not say how many experts a token takes")
    })?;
    let in_groups = match config.text("topk_method", "greedy")? {
        "greedy" => None,
        "group_limited_greedy" => Some(groups(config, count, [1, 1])?),
        other => {
            let known = ["greedy", "group_limited_greedy"];
            return Err(RequestError::unknown(
                config.at("topk_method"),
                "topk_method",
                other,
                known,
            ));
        }
    };
    let family = Family::DeepseekV2(Choice {
        groups: in_groups,
        normalizes: false,
        scaling: config.number("routed_scaling_factor", 1.0)?,
    });
    let layers = decoder.shape.layers;
    let experts = mixture(config, layers, [count, chosen], [1407, 2, 0], family)?;
    decoder.mixture = Some(experts);
    Ok(decoder)
}

pub(super) fn deepseek_v3(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let mut decoder = any_deepseek(config)?;
    if config.flag("rope_interleave", true)? {
        decoder.rotation.part = Part::Interleaved;
    }
    let count = config.size("n_routed_experts", 256)?;
    let chosen = config.size("num_experts_per_tok", 8)?;
    let family = Family::DeepseekV3(Choice {
        groups: Some(groups(config, count, [8, 4])?),
        normalizes: config.flag("norm_topk_prob", true)?,
        scaling: config.number("routed_scaling_factor", 2.5)?,
    });
    let layers = decoder.shape.layers;
    let experts = mixture(config, layers, [count, chosen], [2048, 1, 3], family)?;
    decoder.mixture = Some(experts);
    Ok(decoder)
}
