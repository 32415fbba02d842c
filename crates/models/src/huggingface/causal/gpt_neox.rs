//! GPT-NeoX, and Pythia, which is one: `modeling_gpt_neox.py`.

use super::plain_rotation;
use crate::graph::Graph;
use crate::huggingface::attention::sdpa;
use crate::huggingface::config::Config;
use crate::huggingface::generation::{
    GenerationInputs, GenerationTraits, generated, masked, positions,
};
use crate::huggingface::heads::Labels;
use crate::huggingface::rotary::rotation::{
    Part, Rotary, Rotation, Rotations, Update, apply_rotary, split_heads_at,
};
use crate::huggingface::{Task, text};
use crate::request_error::RequestError;
use crate::shape::Extent;
use crate::tracing::functional::Attention as Settings;
use crate::tracing::{
    Activation, Dropout, Embedding, LayerNorm, Linear, ModulePath, Pointwise as _, Size, Tensor,
    Tracer, Views as _,
};

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] =
    &["GPTNeoXForCausalLM", "GPTNeoXForSequenceClassification"];

fn place(path: impl Into<String>, class: &str) -> ModulePath {
    let module = "transformers.models.gpt_neox.modeling_gpt_neox";
    ModulePath::new(path, format!("{module}.GPTNeoX{class}"))
}

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
    let tracer = task.tracer("gpt_neox.modeling_gpt_neox");
    let model = Model::new(&tracer, &config);
    let forward = |ids: &Tensor| model.forward(ids, None);
    let linear =
        |name: &str, outputs: u64| Linear::new(&tracer, name, [config.width, outputs], false);
    if task.class == "GPTNeoXForSequenceClassification" {
        let labels = Labels::of(&task.config, 2)?;
        let padding = task.config.token("pad_token_id", None)?;
        let score = linear("score", labels.count);
        return text::classes_of_last_token(
            (task, seq_len, padding),
            tracer,
            forward,
            (&score, labels),
        );
    }
    let lm_head = if task.config.flag("tie_word_embeddings", false)? {
        Linear::tied("lm_head".into(), &model.embed_in.weight, None)
    } else {
        linear("lm_head", config.vocabulary)
    };
    if let Some(generation) = &task.sizes.generation {
        let forward = |ids: &Tensor, past: &GenerationInputs<'_>| model.forward(ids, Some(past));
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
struct Attention {
    place: ModulePath,
    query_key_value: Linear,
    dense: Linear,
    head_dim: u64,
    dropout: f64,
    layer: usize,
}

/// What a layer is given besides its states: rotations, a mask, and what is kept of earlier tokens.
type Around<'a> = (
    &'a Rotations,
    Option<&'a Tensor>,
    Option<&'a GenerationInputs<'a>>,
);

impl Attention {
    fn new(tracer: &Tracer, path: String, config: &Decoder, layer: u64) -> Attention {
        let place = place(path, "Attention");
        let (width, bias) = (config.width, config.attention_bias);
        let linear = |name, outputs| Linear::new(tracer, place.path(name), [width, outputs], bias);
        Attention {
            query_key_value: linear("query_key_value", width.saturating_mul(3)),
            dense: linear("dense", width),
            head_dim: config.head_dim,
            dropout: config.attention_dropout,
            layer: usize::try_from(layer).unwrap_or(usize::MAX),
            place,
        }
    }

    fn forward(&self, x: &Tensor, (rotations, mask, past): Around<'_>) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let (batch, seq_len): (Size, Size) = (x.size(0).into(), x.size(1).into());
            let heads = [
                batch,
                seq_len,
                Size::REST,
                self.head_dim.saturating_mul(3).into(),
            ];
            let qkv = self.query_key_value.forward(x).view(&heads).transpose(1, 2);
            let mut states = (&qkv).chunk(3, -1).into_iter();
            let mut next = || states.next().unwrap_or_else(|| x.clone());
            let (mut query, mut key, mut value) = (next(), next(), next());
            [query, key] = rotate_first_part(&query, &key, rotations);
            if let Some(past) = past {
                [key, value] = past.cache.update(self.layer, [&key, &value]);
            }
            let settings = Settings {
                mask,
                dropout: self.dropout,
                causal: mask.is_none() && x.size(1) != Extent::ONE,
                scale: Some((self.head_dim as f64).powf(-0.5)),
                ..Settings::default()
            };
            let mut output = sdpa(&query, &key, &value, settings);
            output = (&output)
                .reshape(&[batch, seq_len, Size::REST])
                .contiguous();
            output = self.dense.forward(&output);
            output.and_drop((qkv, query, key, value))
        })
    }
}

/// `GPTNeoXMLP`.
struct Mlp {
    place: ModulePath,
    dense_h_to_4h: Linear,
    dense_4h_to_h: Linear,
    act: Activation,
}

impl Mlp {
    fn new(tracer: &Tracer, path: String, config: &Decoder) -> Mlp {
        let place = place(path, "MLP");
        let (outer, inner) = (config.width, config.intermediate);
        let linear = |name, sizes| Linear::new(tracer, place.path(name), sizes, true);
        Mlp {
            dense_h_to_4h: linear("dense_h_to_4h", [outer, inner]),
            dense_4h_to_h: linear("dense_4h_to_h", [inner, outer]),
            act: Activation::named(tracer, place.path("act"), &config.activation),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = self.dense_h_to_4h.forward(x);
            hidden_states = self.act.forward(&hidden_states);
            hidden_states = self.dense_4h_to_h.forward(&hidden_states);
            hidden_states
        })
    }
}

/// `GPTNeoXLayer`.
struct Layer {
    place: ModulePath,
    is_parallel: bool,
    input_layernorm: LayerNorm,
    post_attention_layernorm: LayerNorm,
    post_attention_dropout: Dropout,
    post_mlp_dropout: Dropout,
    attention: Attention,
    mlp: Mlp,
}

impl Layer {
    fn new(tracer: &Tracer, path: String, config: &Decoder, layer: u64) -> Layer {
        let place = place(path, "Layer");
        let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
        let dropout = |name| Dropout::new(place.path(name), config.dropout);
        Layer {
            is_parallel: config.is_parallel,
            input_layernorm: norm("input_layernorm"),
            post_attention_layernorm: norm("post_attention_layernorm"),
            post_attention_dropout: dropout("post_attention_dropout"),
            post_mlp_dropout: dropout("post_mlp_dropout"),
            attention: Attention::new(tracer, place.path("attention"), config, layer),
            mlp: Mlp::new(tracer, place.path("mlp"), config),
            place,
        }
    }

    fn forward(&self, x: &Tensor, around: Around<'_>) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut attn_output = {
                let normed = self.input_layernorm.forward(x);
                self.attention.forward(&normed, around).and_drop(normed)
            };
            attn_output = self.post_attention_dropout.forward(&attn_output);
            let mlp = |x: &Tensor| {
                let normed = self.post_attention_layernorm.forward(x);
                self.mlp.forward(&normed).and_drop(normed)
            };
            if self.is_parallel {
                let mut mlp_output = mlp(x);
                mlp_output = self.post_mlp_dropout.forward(&mlp_output);
                let hidden_states = (&mlp_output).add(&attn_output).add(x);
                hidden_states.and_drop((attn_output, mlp_output))
            } else {
                attn_output = (&attn_output).add(x);
                let mut mlp_output = mlp(&attn_output);
                mlp_output = self.post_mlp_dropout.forward(&mlp_output);
                let hidden_states = (&mlp_output).add(&attn_output);
                hidden_states.and_drop((attn_output, mlp_output))
            }
        })
    }
}

/// `GPTNeoXModel`.
struct Model {
    place: ModulePath,
    embed_in: Embedding,
    emb_dropout: Dropout,
    layers: Vec<Layer>,
    final_layer_norm: LayerNorm,
    rotary_emb: Rotary,
}

impl Model {
    fn new(tracer: &Tracer, config: &Decoder) -> Model {
        let at = place("gpt_neox", "Model");
        let rotation = Rotation {
            dims: config.rotated,
            scaling: 1.0,
            is_sure_of_float32: false,
            part: Part::First,
            update: Update::None,
        };
        let rotary = place(at.path("rotary_emb"), "RotaryEmbedding");
        let words = [config.vocabulary, config.width];
        let norm = at.path("final_layer_norm");
        Model {
            embed_in: Embedding::new(tracer, at.path("embed_in"), words),
            emb_dropout: Dropout::new(at.path("emb_dropout"), config.dropout),
            layers: (0..config.layers)
                .map(|layer| Layer::new(tracer, at.path(&format!("layers.{layer}")), config, layer))
                .collect(),
            final_layer_norm: LayerNorm::new(tracer, norm, config.width, config.eps),
            rotary_emb: Rotary::new(tracer, rotary, &[("", rotation)]),
            place: at,
        }
    }

    fn forward(&self, ids: &Tensor, past: Option<&GenerationInputs<'_>>) -> Tensor {
        let tracer = ids.tracer();
        tracer.in_module(&self.place, || {
            let inputs_embeds = self.embed_in.forward(ids);
            let position_ids = positions(past, &tracer, ids.length(1));
            let mask = masked(past, &position_ids, ids);
            let mut hidden_states = self.emb_dropout.forward(&inputs_embeds);
            let rotations = self.rotary_emb.forward(&hidden_states, &position_ids, 0);
            for layer in &self.layers {
                hidden_states = layer.forward(&hidden_states, (&rotations, mask.as_ref(), past));
            }
            hidden_states = self.final_layer_norm.forward(&hidden_states);
            drop((position_ids, inputs_embeds, mask));
            rotations.let_go();
            hidden_states
        })
    }
}
