//! GPT-NeoX, and Pythia, which is one: `modeling_gpt_neox.py`.

use super::plain_rotation;
use crate::huggingface::attention::{joined, sdpa};
use crate::huggingface::generation::{
    GenerationInputs, GenerationTraits, generated, masked, positions,
};
use crate::huggingface::prelude::*;
use crate::huggingface::rotary::rotation::{
    Part, Rotary, Rotation, Rotations, Update, apply_rotary, split_heads_at,
};
use crate::huggingface::text;
use crate::tracing::functional::Attention as Settings;

const CODE: Code = Code::new("gpt_neox.modeling_gpt_neox", "GPTNeoX");

/// What a config says of such a model.
struct Decoder {
    vocabulary: u64,
    width: u64,
    layers: u64,
    head_dim: u64,
    rotated: u64,
    intermediate: u64,
    activation: String,
    eps: f64,
    dropout: f64,
    attention_dropout: f64,
    attention_bias: bool,
    is_parallel: bool,
}

impl Decoder {
    fn read(config: &Config<'_>) -> Result<Decoder, RequestError> {
        let width = config.size("hidden_size", 6144)?;
        let heads = config.size("num_attention_heads", 64)?;
        let head_dim = config.quotient([("hidden_size", width), ("num_attention_heads", heads)])?;
        Ok(Decoder {
            vocabulary: config.size("vocab_size", 50432)?,
            width,
            layers: config.layers("num_hidden_layers", 44)?,
            head_dim,
            rotated: rotated(config, head_dim)?,
            intermediate: config.size("intermediate_size", 24576)?,
            activation: config.text("hidden_act", "gelu")?.to_owned(),
            eps: config.number("layer_norm_eps", 1e-5)?,
            dropout: config.number("hidden_dropout", 0.0)?,
            attention_dropout: config.number("attention_dropout", 0.0)?,
            attention_bias: config.flag("attention_bias", true)?,
            is_parallel: config.flag("use_parallel_residual", true)?,
        })
    }
}

/// How many elements of a head are rotated.
fn rotated(config: &Config<'_>, head_dim: u64) -> Result<u64, RequestError> {
    let mut factor = config.number("rotary_pct", 0.25)?;
    let mut at = config.at("rotary_pct");
    if let Some(rope) = plain_rotation(config)? {
        factor = rope.number("partial_rotary_factor", factor)?;
        at = rope.at("partial_rotary_factor");
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most the size of a head; as Python's int()"
    )]
    let rotated = (head_dim as f64 * factor.clamp(0.0, 1.0)) as u64;
    if rotated == 0 || factor > 1.0 {
        let problem =
            format!("a part of {head_dim} elements must be rotated, and {factor} is none");
        return Err(RequestError::at(at, problem));
    }
    Ok(rotated)
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Decoder::read(&task.config)?;
    let seq_len = task.tokens_read()?;
    let tracer = task.tracer(CODE.module);
    let (model, words) = new_model(&tracer, &config);
    let forward = |ids: &Tensor| model(ids, None);
    if task.class == "GPTNeoXForSequenceClassification" {
        let labels = Labels::of(&task.config, 2)?;
        let padding = task.config.token("pad_token_id", None)?;
        let score = Linear::new(&tracer, "score", [config.width, labels.count], false);
        return text::classes_of_last_token(
            (task, seq_len, padding),
            tracer,
            forward,
            (&score, labels),
        );
    }
    let lm_head = text::lm_head(task, &words, false)?;
    if let Some(generation) = &task.sizes.generation {
        let forward = |ids: &Tensor, past: &GenerationInputs<'_>| model(ids, Some(past));
        let how = (generation, &GenerationTraits::plain(config.layers));
        return generated(task, tracer, how, forward, |x| lm_head.forward(x));
    }
    let head = (&lm_head, config.vocabulary);
    text::next_token(task, tracer, seq_len, forward, head)
}

/// `apply_rotary_pos_emb`.
fn rotate_first_part(query: &Tensor, key: &Tensor, rotations: &Rotations) -> [Tensor; 2] {
    let tracer = query.tracer();
    let dims = rotations.dims();
    let (query_rot, query_pass) = split_heads_at(query, dims);
    let (key_rot, key_pass) = split_heads_at(key, dims);
    let [mut query, mut key] = apply_rotary(&query_rot, &key_rot, rotations, Part::Whole);
    query = tracer.cat_of(&[&query, &query_pass], -1);
    key = tracer.cat_of(&[&key, &key_pass], -1);
    drop((query_rot, query_pass, key_rot, key_pass));
    [query, key]
}

/// `GPTNeoXAttention`.
fn new_attention(
    tracer: &Tracer,
    path: String,
    config: &Decoder,
    layer: u64,
) -> impl Fn(&Tensor, Around<'_>) -> Tensor + use<> {
    let place = CODE.place(path, "Attention");
    let (width, bias) = (config.width, config.attention_bias);
    let linear = |name, outputs| Linear::new(tracer, place.path(name), [width, outputs], bias);
    let query_key_value = linear("query_key_value", width.saturating_mul(3));
    let dense = linear("dense", width);
    let head_dim = config.head_dim;
    let dropout = config.attention_dropout;
    let layer = usize::try_from(layer).unwrap_or(usize::MAX);
    move |x: &Tensor, (rotations, mask, past): Around<'_>| {
        x.tracer().in_module(&place, || {
            let (batch, seq_len): (Size, Size) = (x.size(0).into(), x.size(1).into());
            let heads = [
                batch,
                seq_len,
                Size::REST,
                head_dim.saturating_mul(3).into(),
            ];
            let qkv = query_key_value.forward(x).view(&heads).transpose(1, 2);
            let mut states = (&qkv).chunk(3, -1).into_iter();
            let mut next = || states.next().unwrap_or_else(|| x.clone());
            let (mut query, mut key, mut value) = (next(), next(), next());
            [query, key] = rotate_first_part(&query, &key, rotations);
            if let Some(past) = past {
                [key, value] = past.cache.update(layer, [&key, &value]);
            }
            let settings = Settings::of_decoder(x, mask, [dropout, (head_dim as f64).powf(-0.5)]);
            let mut output = joined(sdpa(&query, &key, &value, settings));
            output = dense.forward(&output);
            output.and_drop((qkv, query, key, value))
        })
    }
}
/// What a layer is given besides its states: rotations, a mask, and what is kept of earlier tokens.
type Around<'a> = (
    &'a Rotations,
    Option<&'a Tensor>,
    Option<&'a GenerationInputs<'a>>,
);

/// `GPTNeoXMLP`.
fn new_mlp(tracer: &Tracer, path: String, config: &Decoder) -> FnModule {
    let place = CODE.place(path, "MLP");
    let (outer, inner) = (config.width, config.intermediate);
    let linear = |name, sizes| Linear::new(tracer, place.path(name), sizes, true);
    let dense_h_to_4h = linear("dense_h_to_4h", [outer, inner]);
    let dense_4h_to_h = linear("dense_4h_to_h", [inner, outer]);
    let act = Activation::named(tracer, place.path("act"), &config.activation);
    FnModule::new(place, move |x| {
        chain(&[&dense_h_to_4h, &act, &dense_4h_to_h], x)
    })
}

/// `GPTNeoXLayer`.
fn new_layer(
    tracer: &Tracer,
    path: String,
    config: &Decoder,
    layer: u64,
) -> impl Fn(&Tensor, Around<'_>) -> Tensor + use<> {
    let place = CODE.place(path, "Layer");
    let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
    let dropout = |name| Dropout::new(place.path(name), config.dropout);
    let is_parallel = config.is_parallel;
    let input_layernorm = norm("input_layernorm");
    let post_attention_layernorm = norm("post_attention_layernorm");
    let post_attention_dropout = dropout("post_attention_dropout");
    let post_mlp_dropout = dropout("post_mlp_dropout");
    let attention = new_attention(tracer, place.path("attention"), config, layer);
    let mlp_layer = new_mlp(tracer, place.path("mlp"), config);
    move |x: &Tensor, around: Around<'_>| {
        x.tracer().in_module(&place, || {
            let mut attn_output = {
                let normed = input_layernorm.forward(x);
                attention(&normed, around).and_drop(normed)
            };
            attn_output = post_attention_dropout.forward(&attn_output);
            let mlp = |x: &Tensor| {
                let normed = post_attention_layernorm.forward(x);
                mlp_layer.forward(&normed).and_drop(normed)
            };
            if is_parallel {
                let mut mlp_output = mlp(x);
                mlp_output = post_mlp_dropout.forward(&mlp_output);
                let hidden_states = (&mlp_output).add(&attn_output).add(x);
                hidden_states.and_drop((attn_output, mlp_output))
            } else {
                attn_output = (&attn_output).add(x);
                let mut mlp_output = mlp(&attn_output);
                mlp_output = post_mlp_dropout.forward(&mlp_output);
                let hidden_states = (&mlp_output).add(&attn_output);
                hidden_states.and_drop((attn_output, mlp_output))
            }
        })
    }
}

/// `GPTNeoXModel`.
fn new_model(
    tracer: &Tracer,
    config: &Decoder,
) -> (
    impl Fn(&Tensor, Option<&GenerationInputs<'_>>) -> Tensor + use<>,
    Tensor,
) {
    let at = CODE.place("gpt_neox", "Model");
    let rotation = Rotation {
        dims: config.rotated,
        scaling: 1.0,
        is_sure_of_float32: false,
        part: Part::First,
        update: Update::None,
    };
    let rotary = CODE.place(at.path("rotary_emb"), "RotaryEmbedding");
    let words = [config.vocabulary, config.width];
    let norm = at.path("final_layer_norm");
    let embed_in = Embedding::new(tracer, at.path("embed_in"), words);
    let emb_dropout = Dropout::new(at.path("emb_dropout"), config.dropout);
    let layers: Vec<_> = (0..config.layers)
        .map(|layer| new_layer(tracer, at.path(&format!("layers.{layer}")), config, layer))
        .collect();
    let final_layer_norm = LayerNorm::new(tracer, norm, config.width, config.eps);
    let rotary_emb = Rotary::new(tracer, rotary, &[("", rotation)]);
    let place = at;

    let weight = embed_in.weight.clone();
    let module = move |ids: &Tensor, past: Option<&GenerationInputs<'_>>| {
        let tracer = ids.tracer();
        tracer.in_module(&place, || {
            let inputs_embeds = embed_in.forward(ids);
            let position_ids = positions(past, &tracer, ids.length(1));
            let mask = masked(past, &position_ids, ids);
            let mut hidden_states = emb_dropout.forward(&inputs_embeds);
            let rotations = rotary_emb.forward(&hidden_states, &position_ids, 0);
            for layer in &layers {
                hidden_states = layer(&hidden_states, (&rotations, mask.as_ref(), past));
            }
            hidden_states = final_layer_norm.forward(&hidden_states);
            drop((position_ids, inputs_embeds, mask));
            rotations.let_go();
            hidden_states
        })
    };
    (module, weight)
}
