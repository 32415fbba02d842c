//! Decoders with rotary embeddings: `modeling_llama.py` and those that follow it.

use crate::graph::Graph;
use crate::model::huggingface::Task;
use crate::model::huggingface::config::Config;
use crate::model::huggingface::heads::causal_language_loss;
use crate::model::invalid::Invalid;
use crate::model::tracing::functional::{self, Attention as Settings};
use crate::model::tracing::{
    Activation, Embedding, Linear, Place, Pointwise as _, Reductions as _, Size, Tensor, Tracer,
    Views as _,
};
use crate::shape::{DType, Extent};

/// The classes that are built here.
pub(in crate::model::huggingface) const CLASSES: &[&str] = &["LlamaForCausalLM"];

/// What a config says of such a model.
struct Decoder {
    vocabulary: u64,
    width: u64,
    intermediate: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    activation: String,
    eps: f64,
    attention_bias: bool,
    mlp_bias: bool,
    dropout: f64,
    padding: Option<u64>,
    is_tied: bool,
}

impl Decoder {
    fn llama(config: &Config<'_>) -> Result<Decoder, Invalid> {
        let width = config.size("hidden_size", 4096)?;
        let heads = config.size("num_attention_heads", 32)?;
        let kv_heads = config.size("num_key_value_heads", heads)?;
        config.quotient([
            ("num_attention_heads", heads),
            ("num_key_value_heads", kv_heads),
        ])?;
        let head_dim = match config.size_if_given("head_dim")? {
            Some(head_dim) => head_dim,
            None => config.quotient([("hidden_size", width), ("num_attention_heads", heads)])?,
        };
        Ok(Decoder {
            vocabulary: config.size("vocab_size", 32000)?,
            width,
            intermediate: config.size("intermediate_size", 11008)?,
            layers: config.layers("num_hidden_layers", 32)?,
            heads,
            kv_heads,
            head_dim,
            activation: config.text("hidden_act", "silu")?.to_owned(),
            eps: config.number("rms_norm_eps", 1e-6)?,
            attention_bias: config.flag("attention_bias", false)?,
            mlp_bias: config.flag("mlp_bias", false)?,
            dropout: config.number("attention_dropout", 0.0)?,
            padding: config.token("pad_token_id", None)?,
            is_tied: config.flag("tie_word_embeddings", false)?,
        })
    }
}

pub(in crate::model::huggingface) fn build(task: &Task<'_>) -> Result<Graph, Invalid> {
    let config = Decoder::llama(&task.config)?;
    let seq_len = task.seq_len()?;
    let tracer = task.tracer("llama.modeling_llama");
    let model = Model::new(&tracer, &config);
    let lm_head = if config.is_tied {
        Linear::tied("lm_head".into(), &model.embed_tokens.weight, None)
    } else {
        Linear::output(
            &tracer,
            "lm_head".into(),
            [config.width, config.vocabulary],
            false,
        )
    };
    let shape = [Extent::BATCH, Extent::fixed(seq_len)];
    let ids = tracer.input("labels", &shape, DType::Int64);

    let outputs = model.forward(&tracer, &ids);
    let hidden_states = outputs.clone();
    let logits = lm_head.forward((&hidden_states).alias());
    let loss = causal_language_loss(&logits, &ids, config.vocabulary);
    drop((outputs, hidden_states));
    tracer.finish(&loss).map_err(|error| task.invalid(&error))
}

/// `LlamaRMSNorm`.
struct RmsNorm {
    place: Place,
    weight: Tensor,
    eps: f64,
}

impl RmsNorm {
    fn new(tracer: &Tracer, path: String, width: u64, eps: f64) -> RmsNorm {
        RmsNorm {
            weight: tracer.parameter(&format!("{path}.weight"), &[width]),
            place: Place::new(
                path,
                "transformers.models.llama.modeling_llama.LlamaRMSNorm",
            ),
            eps,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().within(&self.place, || {
            let input_dtype = x.dtype();
            let mut hidden_states = x.to(DType::Float32);
            let variance = (&hidden_states).pow(2).mean(&[-1], true);
            hidden_states = (&hidden_states).mul((&variance).add_number(self.eps).rsqrt());
            (&self.weight)
                .mul((&hidden_states).to_dtype_of(input_dtype))
                .and_drop((hidden_states, variance))
        })
    }
}

/// `LlamaRotaryEmbedding`.
struct Rotary {
    place: Place,
    inv_freq: Tensor,
}

impl Rotary {
    fn new(tracer: &Tracer, path: String, dim: u64) -> Rotary {
        let half = [dim.div_ceil(2)];
        let inv_freq = tracer.buffer(&format!("{path}.inv_freq"), &half, DType::Float32);
        tracer.buffer(&format!("{path}.original_inv_freq"), &half, DType::Float32);
        Rotary {
            inv_freq,
            place: Place::new(
                path,
                "transformers.models.llama.modeling_llama.LlamaRotaryEmbedding",
            ),
        }
    }

    /// Cosines and sines.
    fn forward(&self, x: &Tensor, position_ids: &Tensor) -> [Tensor; 2] {
        let tracer = x.tracer();
        tracer.within(&self.place, || {
            tracer.no_grad(|| {
                let inv_freq = (&self.inv_freq).unsqueeze(0).unsqueeze(2);
                let inv_freq = inv_freq
                    .expand(&[1.into(), Size::REST, 1.into()])
                    .to(DType::Float32);
                let position_ids = position_ids.unsqueeze(1).to(DType::Float32);
                let (freqs, emb, cos, sin) = tracer.without_autocast(|| {
                    let freqs = (&inv_freq).matmul(&position_ids).transpose(1, 2);
                    let emb = tracer.cat_of(&[&freqs, &freqs], -1);
                    let cos = (&emb).cos().mul_number(1.0);
                    let sin = (&emb).sin().mul_number(1.0);
                    (freqs, emb, cos, sin)
                });
                let rotations = [(&cos).to_dtype_of(x.dtype()), (&sin).to_dtype_of(x.dtype())];
                drop((inv_freq, position_ids, freqs, emb, cos, sin));
                rotations
            })
        })
    }
}

fn rotate_half(x: &Tensor) -> Tensor {
    let half = (x.length(-1) / 2).cast_signed();
    let x1 = x.slice(3, 0, half);
    let x2 = x.slice_from(3, half);
    x.tracer()
        .cat([(&x2).neg(), x1.clone()], -1)
        .and_drop((x1, x2))
}

/// `apply_rotary_pos_emb`.
fn apply_rotary(query: &Tensor, key: &Tensor, cos: &Tensor, sin: &Tensor) -> [Tensor; 2] {
    let (cos, sin) = (cos.unsqueeze(1), sin.unsqueeze(1));
    let query = query.mul(&cos).add(rotate_half(query).mul(&sin));
    let key = key.mul(&cos).add(rotate_half(key).mul(&sin));
    drop((cos, sin));
    [query, key]
}

/// `LlamaAttention`.
struct Attention {
    place: Place,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    head_dim: u64,
    is_grouped: bool,
    dropout: f64,
}

impl Attention {
    fn new(tracer: &Tracer, path: String, config: &Decoder) -> Attention {
        let place = Place::new(
            path,
            "transformers.models.llama.modeling_llama.LlamaAttention",
        );
        let of_heads = |name: &str, heads: u64| {
            let sizes = [config.width, heads.saturating_mul(config.head_dim)];
            Linear::new(tracer, place.path(name), sizes, config.attention_bias)
        };
        Attention {
            q_proj: of_heads("q_proj", config.heads),
            k_proj: of_heads("k_proj", config.kv_heads),
            v_proj: of_heads("v_proj", config.kv_heads),
            o_proj: Linear::new(
                tracer,
                place.path("o_proj"),
                [config.heads.saturating_mul(config.head_dim), config.width],
                config.attention_bias,
            ),
            head_dim: config.head_dim,
            is_grouped: config.heads > config.kv_heads,
            dropout: config.dropout,
            place,
        }
    }

    fn forward(&self, x: &Tensor, [cos, sin]: &[Tensor; 2]) -> Tensor {
        x.tracer().within(&self.place, || {
            let (batch, seq_len) = (x.size(0), x.size(1));
            let heads = [
                batch.into(),
                seq_len.into(),
                Size::REST,
                self.head_dim.into(),
            ];
            let mut query = self.q_proj.forward(x).view(&heads).transpose(1, 2);
            let mut key = self.k_proj.forward(x).view(&heads).transpose(1, 2);
            let value = self.v_proj.forward(x).view(&heads).transpose(1, 2);
            [query, key] = apply_rotary(&query, &key, cos, sin);
            let settings = Settings {
                dropout: self.dropout,
                causal: seq_len != Extent::ONE,
                scale: Some((self.head_dim as f64).powf(-0.5)),
                grouped: self.is_grouped,
                ..Settings::default()
            };
            let mut output = sdpa(&query, &key, &value, settings);
            output = (&output)
                .reshape(&[batch.into(), seq_len.into(), Size::REST])
                .contiguous();
            output = self.o_proj.forward(&output);
            output.and_drop((query, key, value))
        })
    }
}

/// `sdpa_attention_forward`.
fn sdpa(query: &Tensor, key: &Tensor, value: &Tensor, settings: Settings<'_>) -> Tensor {
    let mut output = functional::attention(query, key, value, settings);
    output = (&output).transpose(1, 2).contiguous();
    output
}

/// `LlamaMLP`.
struct Mlp {
    place: Place,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    act_fn: Activation,
}

impl Mlp {
    fn new(tracer: &Tracer, path: String, config: &Decoder) -> Mlp {
        let place = Place::new(path, "transformers.models.llama.modeling_llama.LlamaMLP");
        let (inner, outer, bias) = (config.intermediate, config.width, config.mlp_bias);
        Mlp {
            gate_proj: Linear::new(tracer, place.path("gate_proj"), [outer, inner], bias),
            up_proj: Linear::new(tracer, place.path("up_proj"), [outer, inner], bias),
            down_proj: Linear::new(tracer, place.path("down_proj"), [inner, outer], bias),
            act_fn: Activation::named(tracer, place.path("act_fn"), &config.activation),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().within(&self.place, || {
            let gate = self.act_fn.forward(self.gate_proj.forward(x));
            self.down_proj.forward(gate.mul(self.up_proj.forward(x)))
        })
    }
}

/// `LlamaDecoderLayer`.
struct Layer {
    place: Place,
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

impl Layer {
    fn new(tracer: &Tracer, path: String, config: &Decoder) -> Layer {
        let place = Place::new(
            path,
            "transformers.models.llama.modeling_llama.LlamaDecoderLayer",
        );
        let norm = |name| RmsNorm::new(tracer, place.path(name), config.width, config.eps);
        Layer {
            self_attn: Attention::new(tracer, place.path("self_attn"), config),
            mlp: Mlp::new(tracer, place.path("mlp"), config),
            input_layernorm: norm("input_layernorm"),
            post_attention_layernorm: norm("post_attention_layernorm"),
            place,
        }
    }

    fn forward(&self, x: &Tensor, rotations: &[Tensor; 2]) -> Tensor {
        x.tracer().within(&self.place, || {
            let mut hidden_states = self.input_layernorm.forward(x);
            hidden_states = self.self_attn.forward(&hidden_states, rotations);
            hidden_states = x.add(&hidden_states);
            let residual = hidden_states.clone();
            hidden_states = self.post_attention_layernorm.forward(&hidden_states);
            hidden_states = self.mlp.forward(&hidden_states);
            hidden_states = (&residual).add(&hidden_states);
            hidden_states.and_drop(residual)
        })
    }
}

/// `LlamaModel`.
struct Model {
    place: Place,
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    rotary_emb: Rotary,
}

impl Model {
    fn new(tracer: &Tracer, config: &Decoder) -> Model {
        let place = Place::new(
            "model",
            "transformers.models.llama.modeling_llama.LlamaModel",
        );
        let sizes = [config.vocabulary, config.width];
        Model {
            embed_tokens: Embedding::new(tracer, place.path("embed_tokens"), sizes)
                .padding(config.padding),
            layers: (0..config.layers)
                .map(|layer| Layer::new(tracer, place.path(&format!("layers.{layer}")), config))
                .collect(),
            norm: RmsNorm::new(tracer, place.path("norm"), config.width, config.eps),
            rotary_emb: Rotary::new(tracer, place.path("rotary_emb"), config.head_dim),
            place,
        }
    }

    fn forward(&self, tracer: &Tracer, ids: &Tensor) -> Tensor {
        tracer.within(&self.place, || {
            let inputs_embeds = self.embed_tokens.forward(ids);
            let mut position_ids = tracer.arange(ids.length(1)).add_number(0);
            position_ids = (&position_ids).unsqueeze(0);
            look_for_packed_sequences(&position_ids, ids.size(0));
            let mut hidden_states = inputs_embeds.clone();
            let [cos, sin] = self.rotary_emb.forward(&hidden_states, &position_ids);
            let rotations = [cos, sin];
            for layer in &self.layers {
                hidden_states = layer.forward(&hidden_states, &rotations);
            }
            hidden_states = self.norm.forward(&hidden_states);
            let [cos, sin] = rotations;
            hidden_states.and_drop((position_ids, inputs_embeds, sin, cos))
        })
    }
}

/// What `create_causal_mask` does where there is nothing to mask but what comes after.
fn look_for_packed_sequences(position_ids: &Tensor, batch: Extent) {
    let expanded = position_ids.expand(&[batch.into(), Size::REST]);
    expanded.tracer().look_for_packed_sequences(&expanded);
}
