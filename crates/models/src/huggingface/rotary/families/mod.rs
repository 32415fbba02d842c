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

/// Declares what reads the config of each class that is built here.
macro_rules! classes {
    ($($read:path: $($class:literal)+;)+) => {
        /// What reads the config of a class.
        fn reader(class: &str) -> Option<fn(&Config<'_>) -> Result<Decoder, RequestError>> {
            match class {
                $($($class)|+ => Some($read),)+
                _ => None,
            }
        }
    };
}

classes! {
    llama: "LlamaForCausalLM" "LlamaForSequenceClassification";
    mistral: "MistralForCausalLM" "MistralForSequenceClassification";
    qwen::qwen2: "Qwen2ForCausalLM" "Qwen2ForSequenceClassification";
    qwen::qwen3: "Qwen3ForCausalLM" "Qwen3ForSequenceClassification";
    gemma::gemma: "GemmaForCausalLM" "GemmaForSequenceClassification";
    gemma::gemma2: "Gemma2ForCausalLM" "Gemma2ForSequenceClassification";
    gemma::gemma3: "Gemma3ForCausalLM";
    phi::phi: "PhiForCausalLM" "PhiForSequenceClassification";
    phi::phi3: "Phi3ForCausalLM" "Phi3ForSequenceClassification";
    olmo::olmo: "OlmoForCausalLM" "OlmoForSequenceClassification";
    olmo::olmo2: "Olmo2ForCausalLM" "Olmo2ForSequenceClassification";
    experts::mixtral: "MixtralForCausalLM" "MixtralForSequenceClassification";
    qwen::qwen2_moe: "Qwen2MoeForCausalLM" "Qwen2MoeForSequenceClassification";
    qwen::qwen3_moe: "Qwen3MoeForCausalLM" "Qwen3MoeForSequenceClassification";
    experts::deepseek_v2: "DeepseekV2ForCausalLM" "DeepseekV2ForSequenceClassification";
    experts::deepseek_v3: "DeepseekV3ForCausalLM" "DeepseekV3ForSequenceClassification";
    granite: "GraniteForCausalLM";
    smollm3: "SmolLM3ForCausalLM" "SmolLM3ForSequenceClassification";
}

/// Defaults of a configuration class.
struct ConfigDefaults {
    folder: &'static str,
    prefix: &'static str,
    vocabulary: u64,
    width: u64,
    intermediate: u64,
    layers: u64,
    heads: u64,
    /// As many as of queries, if none.
    kv_heads: Option<u64>,
    head_dim: Option<u64>,
    eps: f64,
    padding: Option<u64>,
    /// Whether there are `bos_token_id`, `eos_token_id` and `pad_token_id` where the config says none.
    tokens: [bool; 3],
    is_tied: bool,
    activation: &'static str,
}

/// `LlamaConfig`.
const LLAMA: ConfigDefaults = ConfigDefaults {
    folder: "llama",
    prefix: "Llama",
    vocabulary: 32000,
    width: 4096,
    intermediate: 11008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    eps: 1e-6,
    padding: None,
    tokens: [true, true, false],
    is_tied: false,
    activation: "silu",
};

/// Whether a class is built here.
pub(in crate::huggingface) fn builds(class: &str) -> bool {
    reader(class).is_some()
}

/// Reads the config of a model of one of the classes.
pub(super) fn read(task: &Task<'_>) -> Result<Decoder, RequestError> {
    let config = &task.config;
    if task.is_eager && config.has("attn_logit_softcapping") {
        return Err(config.not_built("attn_logit_softcapping"));
    }
    let read = reader(task.class).expect("a class of the table");
    let decoder = read(config)?;
    let is_finite = |rotation: &Rotation| rotation.scaling.is_finite();
    if !decoder.scale.is_finite() || !decoder.rotations().all(is_finite) {
        return Err(RequestError::at(
            format!("{}/hf", task.pointer),
            "what the config scales attention or its rotation by is not a number",
        ));
    }
    match decoder.padding {
        Some(padding) if padding >= decoder.vocabulary => Err(config.wrong(
            "pad_token_id",
            format!(
                "pad_token_id is {padding}, but vocab_size is {}",
                decoder.vocabulary
            ),
        )),
        _ => Ok(decoder),
    }
}

/// What most families have in common.
fn base(config: &Config<'_>, usual: &ConfigDefaults) -> Result<Decoder, RequestError> {
    let width = config.size("hidden_size", usual.width)?;
    let heads = config.size("num_attention_heads", usual.heads)?;
    let kv_heads = config.size_or_none("num_key_value_heads", usual.kv_heads)?;
    let kv_heads = kv_heads.unwrap_or(heads);
    config.quotient([
        ("num_attention_heads", heads),
        ("num_key_value_heads", kv_heads),
    ])?;
    let head_dim = match config.size_or_none("head_dim", usual.head_dim)? {
        Some(head_dim) => head_dim,
        None => config.quotient([("hidden_size", width), ("num_attention_heads", heads)])?,
    };
    Ok(Decoder {
        folder: usual.folder,
        prefix: usual.prefix,
        vocabulary: config.size("vocab_size", usual.vocabulary)?,
        width,
        intermediate: config.size("intermediate_size", usual.intermediate)?,
        layers: config.layers("num_hidden_layers", usual.layers)?,
        heads,
        kv_heads,
        head_dim,
        padding: config.token("pad_token_id", usual.padding)?,
        tokens: usual.tokens,
        is_tied: config.flag("tie_word_embeddings", usual.is_tied)?,
        head_bias: false,
        norm: Formula::Llama,
        eps: config.number("rms_norm_eps", usual.eps)?,
        mlp: Layers::Gated,
        mlp_bias: false,
        activation: config.text("hidden_act", usual.activation)?.to_owned(),
        qkv_bias: false,
        output_bias: false,
        output_name: "o_proj",
        is_projected_as_one: false,
        query_norms: QueryNorms::None,
        query_norm_names: ["q_norm", "k_norm"],
        is_projected_before_heads: false,
        clip: None,
        scale: (head_dim as f64).powf(-0.5),
        dropout: config.number("attention_dropout", 0.0)?,
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
fn with_attention_bias(
    config: &Config<'_>,
    usual: &ConfigDefaults,
) -> Result<Decoder, RequestError> {
    let bias = config.flag("attention_bias", false)?;
    Ok(Decoder {
        qkv_bias: bias,
        output_bias: bias,
        ..base(config, usual)?
    })
}

fn llama(config: &Config<'_>) -> Result<Decoder, RequestError> {
    Ok(Decoder {
        mlp_bias: config.flag("mlp_bias", false)?,
        ..with_attention_bias(config, &LLAMA)?
    })
}

fn mistral(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let usual = ConfigDefaults {
        folder: "mistral",
        prefix: "Mistral",
        intermediate: 14336,
        kv_heads: Some(8),
        ..LLAMA
    };
    let window = config.size_or_none("sliding_window", Some(4096))?;
    Ok(Decoder {
        windows: window.map_or(Windows::None, Windows::All),
        ..base(config, &usual)?
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
    let usual = ConfigDefaults {
        folder: "granite",
        prefix: "Granite",
        ..LLAMA
    };
    let number = |name: &str| config.number(name, 1.0);
    Ok(Decoder {
        mlp_bias: config.flag("mlp_bias", false)?,
        embedding: Scaled::Number(number("embedding_multiplier")?),
        block: Block::BeforeAndScaled(number("residual_multiplier")?),
        logits_scaling: Some(number("logits_scaling")?),
        scale: number("attention_multiplier")?,
        ..with_attention_bias(config, &usual)?
    })
}

fn smollm3(config: &Config<'_>) -> Result<Decoder, RequestError> {
    let usual = ConfigDefaults {
        folder: "smollm3",
        prefix: "SmolLM3",
        vocabulary: 128_256,
        width: 2048,
        layers: 36,
        heads: 16,
        kv_heads: Some(4),
        padding: Some(128_004),
        tokens: [true; 3],
        is_tied: true,
        ..LLAMA
    };
    let mut decoder = with_attention_bias(config, &usual)?;
    decoder.mlp_bias = config.flag("mlp_bias", false)?;
    decoder.rotation.is_sure_of_float32 = true;
    let interval = config.size("no_rope_layer_interval", 4)?;
    decoder.unrotated = match config.counts("no_rope_layers")? {
        Some(flags) if flags.len() as u64 == decoder.layers => {
            flags.iter().map(|flag| *flag == 0).collect()
        }
        Some(flags) => {
            return Err(config.wrong(
                "no_rope_layers",
                format!(
                    "there are {} no_rope_layers for {} layers",
                    flags.len(),
                    decoder.layers
                ),
            ));
        }
        None => (1..=decoder.layers)
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
    decoder.windows = windows(config, decoder.layers, window, has_window, false)?;
    Ok(decoder)
}
