//! Families of decoders with rotary embeddings: what their configs say, with the defaults of their classes.

mod experts;
mod gemma;
mod olmo;
mod phi;
mod qwen;

use super::attention::QueryNorms;
use super::decoder::{Block, Decoder, Scaled, Windows};
use super::mlp::Layers;
use super::norm::Formula;
use super::rope::{Custom, rotation};
use super::rotation::Rotation;
use crate::huggingface::prelude::*;

/// Reads the config of a model.
type Read = fn(&Config<'_>) -> Result<Decoder, RequestError>;

/// What the names of a family's classes begin with, its folder in transformers, whether it has `bos_token_id`, `eos_token_id` and
/// `pad_token_id` and whether the head has the weight of the words where the config says nothing, and what reads its config.
#[rustfmt::skip] // A row a line.
const FAMILIES: &[(&str, &str, [bool; 3], bool, Read)] = &[
    ("Llama", "llama", [true, true, false], false, llama),
    ("Mistral", "mistral", [true, true, false], false, mistral),
    ("Qwen2", "qwen2", [false; 3], false, qwen::qwen2),
    ("Qwen3", "qwen3", [false; 3], false, qwen::qwen3),
    ("Gemma", "gemma", [true; 3], true, gemma::any_gemma),
    ("Gemma2", "gemma2", [true; 3], true, gemma::gemma2),
    ("Gemma3", "gemma3", [true; 3], true, gemma::gemma3),
    ("Phi", "phi", [true, true, false], false, phi::phi),
    ("Phi3", "phi3", [true; 3], false, phi::phi3),
    ("Olmo", "olmo", [false, true, true], false, olmo::olmo),
    ("Olmo2", "olmo2", [false, true, true], false, olmo::olmo2),
    ("Mixtral", "mixtral", [true, true, false], false, experts::mixtral),
    ("Qwen2Moe", "qwen2_moe", [false; 3], false, qwen::qwen2_moe),
    ("Qwen3Moe", "qwen3_moe", [false; 3], false, qwen::qwen3_moe),
    ("DeepseekV2", "deepseek_v2", [true, true, false], false, experts::deepseek_v2),
    ("DeepseekV3", "deepseek_v3", [true, true, false], false, experts::deepseek_v3),
    ("Granite", "granite", [true, true, false], false, granite),
    ("SmolLM3", "smollm3", [true; 3], true, smollm3),
];

/// The family whose classes begin with this.
fn family(stem: &str) -> &'static (&'static str, &'static str, [bool; 3], bool, Read) {
    let mut families = FAMILIES.iter();
    let family = families.find(|(prefix, ..)| *prefix == stem);
    family.expect("a family of the table")
}

/// Reads the config of a model of one of the classes.
pub(super) fn read(task: &Task<'_>) -> Result<Decoder, RequestError> {
    let config = &task.config;
    if task.is_eager && config.has("attn_logit_softcapping") {
        return Err(config.not_built("attn_logit_softcapping"));
    }
    let (.., read) = family(config.stem);
    let decoder = read(config)?;
    let is_finite = |rotation: &Rotation| rotation.scaling.is_finite();
    if !decoder.scale.is_finite() || !decoder.rotations().all(is_finite) {
        return Err(RequestError::at(
            format!("{}/hf", task.pointer),
            "what the config scales attention or its rotation by is not a number",
        ));
    }
    let vocabulary = decoder.shape.vocabulary;
    match decoder.shape.padding {
        Some(padding) if padding >= vocabulary => {
            let problem = format!("pad_token_id is {padding}, but vocab_size is {vocabulary}");
            Err(config.wrong("pad_token_id", problem))
        }
        _ => Ok(decoder),
    }
}

/// What most families have in common.
fn base(config: &Config<'_>) -> Result<Decoder, RequestError> {
    of_shape(config, Shape::of(config)?)
}

/// The same with these sizes.
fn of_shape(config: &Config<'_>, shape: Shape) -> Result<Decoder, RequestError> {
    let (prefix, folder, tokens, is_tied, _) = *family(config.stem);
    let head_dim = shape.head_dim;
    Ok(Decoder {
        folder,
        prefix,
        shape,
        tokens,
        is_tied: config.flag("tie_word_embeddings", is_tied)?,
        head_bias: false,
        norm: Formula::Llama,
        mlp: Layers::Gated,
        mlp_bias: false,
        qkv_bias: false,
        output_bias: false,
        output_name: "o_proj",
        is_projected_as_one: false,
        query_norms: QueryNorms::None,
        query_norm_names: ["q_norm", "k_norm"],
        is_projected_before_heads: false,
        clip: None,
        scale: (head_dim as f64).powf(-0.5),
        ranks: None,
        mixture: None,
        rotation: rotation(config, None, head_dim, Custom::Llama)?,
        unrotated: Vec::new(),
        rotations: Vec::new(),
        windows: Windows::None,
        block: Block::Before,
        embedding: Scaled::Not,
        embedding_dropout: None,
        final_norm: "norm",
        logits_scaling: None,
        softcap: None,
    })
}

/// The same with biases in attention if the config says so.
fn with_attention_bias(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let bias = config.flag("attention_bias", false)?;
    Ok(Decoder {
        qkv_bias: bias,
        output_bias: bias,
        ..base(config)?
    })
}

fn llama(config: &Config<'_>) -> Result<Decoder, RequestError> {
    Ok(Decoder {
        mlp_bias: config.flag("mlp_bias", false)?,
        ..with_attention_bias(config)?
    })
}

fn mistral(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let window = config.size_or_none("sliding_window", Some(4096))?;
    Ok(Decoder {
        windows: window.map_or(Windows::None, Windows::All),
        ..base(config)?
    })
}

/// Windows by `layer_types`, or where a layer `has_window` by default.
fn windows(
    config: &Config<'_>,
    layers: u64,
    window: Option<u64>,
    has_window: impl Fn(u64) -> bool,
    always: bool,
) -> Result<Windows, RequestError> {
    let at = config.at("layer_types");
    let layers: Vec<bool> = match config.texts("layer_types")? {
        None => (0..layers).map(has_window).collect(),
        Some(types) if types.len() as u64 != layers => {
            return Err(RequestError::at(
                at,
                format!("there are {} layer_types for {layers} layers", types.len()),
            ));
        }
        Some(types) => types
            .into_iter()
            .enumerate()
            .map(|(index, kind)| match kind {
                "full_attention" => Ok(false),
                "sliding_attention" => Ok(true),
                other => {
                    let known = ["full_attention", "sliding_attention"];
                    Err(RequestError::unknown(
                        format!("{at}/{index}"),
                        "kind of layer",
                        other,
                        known,
                    ))
                }
            })
            .collect::<Result<_, _>>()?,
    };
    if window.is_none() && (always || layers.contains(&true)) {
        return Err(config.wrong(
            "sliding_window",
            "there are layers of sliding attention, but no sliding_window",
        ));
    }
    Ok(Windows::Some {
        window,
        layers,
        always,
    })
}

fn granite(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let number = |name: &str| config.number(name, 1.0);
    Ok(Decoder {
        mlp_bias: config.flag("mlp_bias", false)?,
        embedding: Scaled::Number(number("embedding_multiplier")?),
        block: Block::BeforeAndScaled(number("residual_multiplier")?),
        logits_scaling: Some(number("logits_scaling")?),
        scale: number("attention_multiplier")?,
        ..with_attention_bias(config)?
    })
}

fn smollm3(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let mut decoder = with_attention_bias(config)?;
    decoder.mlp_bias = config.flag("mlp_bias", false)?;
    decoder.rotation.is_sure_of_float32 = true;
    let interval = config.size("no_rope_layer_interval", 4)?;
    decoder.unrotated = match config.counts("no_rope_layers")? {
        Some(flags) if flags.len() as u64 == decoder.shape.layers => {
            flags.iter().map(|flag| *flag == 0).collect()
        }
        Some(flags) => {
            return Err(config.wrong(
                "no_rope_layers",
                format!(
                    "there are {} no_rope_layers for {} layers",
                    flags.len(),
                    decoder.shape.layers
                ),
            ));
        }
        None => (1..=decoder.shape.layers)
            .map(|layer| layer.is_multiple_of(interval))
            .collect(),
    };
    let window = if config.flag("use_sliding_window", false)? {
        config.size_if_given("sliding_window")?
    } else {
        None
    };
    let unrotated = &decoder.unrotated;
    let has_window = |layer: u64| {
        let layer = usize::try_from(layer).unwrap_or(usize::MAX);
        window.is_some() && unrotated.get(layer).is_some_and(|is| *is)
    };
    decoder.windows = windows(config, decoder.shape.layers, window, has_window, false)?;
    Ok(decoder)
}
