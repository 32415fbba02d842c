//! GPT-2: `modeling_gpt2.py`.

use crate::graph::Graph;
use crate::huggingface::attention::sdpa;
use crate::huggingface::config::Config;
use crate::huggingface::generation::{
    GenerationInputs, GenerationTraits, generated, masked, positions,
};
use crate::huggingface::heads::Labels;
use crate::huggingface::{Task, text};
use crate::request_error::RequestError;
use crate::shape::Extent;
use crate::tracing::functional::{self, Attention as Settings};
use crate::tracing::{
    Activation, Adapter, Dropout, Embedding, LayerNorm, Linear, ModulePath, Pointwise as _, Size,
    Tensor, Tensors, Tracer, Views as _,
};

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] = &[
    "GPT2LMHeadModel",
    "GPT2ForSequenceClassification",
    "GPT2ForTokenClassification",
    "GPT2ForQuestionAnswering",
];

/// What a config says of such a model.
struct Decoder {
    vocabulary: u64,
    positions: u64,
    width: u64,
    layers: u64,
    head_dim: u64,
    intermediate: u64,
    activation: String,
    eps: f64,
    residual_dropout: f64,
    embedding_dropout: f64,
    attention_dropout: f64,
    scales_attention: bool,
    scales_by_layer: bool,
}

/// The config's name of the number of positions.
const POSITIONS: &[&str] = &["n_positions", "max_position_embeddings"];

impl Decoder {
    fn read(config: &Config<'_>) -> Result<Decoder, RequestError> {
        if config.flag("add_cross_attention", false)? {
            return Err(config.not_built("add_cross_attention"));
        }
        let n_embd = config.spelling(&["n_embd", "hidden_size"]);
        let n_head = config.spelling(&["n_head", "num_attention_heads"]);
        let n_layer = config.spelling(&["n_layer", "num_hidden_layers"]);
        let width = config.size(n_embd, 768)?;
        let heads = config.size(n_head, 12)?;
        Ok(Decoder {
            vocabulary: config.size("vocab_size", 50257)?,
            positions: config.size(config.spelling(POSITIONS), 1024)?,
            width,
            layers: config.layers(n_layer, 12)?,
            head_dim: config.quotient([(n_embd, width), (n_head, heads)])?,
            intermediate: config.size("n_inner", width.saturating_mul(4))?,
            activation: config.text("activation_function", "gelu_new")?.to_owned(),
            eps: config.number("layer_norm_epsilon", 1e-5)?,
            residual_dropout: config.number("resid_pdrop", 0.1)?,
            embedding_dropout: config.number("embd_pdrop", 0.1)?,
            attention_dropout: config.number("attn_pdrop", 0.1)?,
            scales_attention: config.flag("scale_attn_weights", true)?,
            scales_by_layer: config.flag("scale_attn_by_inverse_layer_idx", false)?,
        })
    }

    /// What attention multiplies its scores by in a layer.
    fn scale(&self, layer: u64) -> f64 {
        let mut scale = 1.0;
        if self.scales_attention {
            scale = (self.head_dim as f64).powf(-0.5);
        }
        if self.scales_by_layer {
            scale /= (layer + 1) as f64;
        }
        scale
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Decoder::read(&task.config)?;
    let positions = task.config.spelling(POSITIONS);
    let seq_len = task.tokens_of(positions, config.positions)?;
    let tracer = task.tracer("gpt2.modeling_gpt2");
    let model = Model::new(&tracer, &config);
    let forward = |ids: &Tensor| model.forward(ids, None);
    let linear = |name: &str, outputs: u64, bias: bool| {
        Linear::new(&tracer, name, [config.width, outputs], bias)
    };
    match task.class {
        "GPT2ForSequenceClassification" => {
            let labels = Labels::of(&task.config, 2)?;
            let padding = task.config.token("pad_token_id", None)?;
            let score = linear("score", labels.count, false);
            text::classes_of_last_token((task, seq_len, padding), tracer, forward, (&score, labels))
        }
        "GPT2ForTokenClassification" => {
            let labels = Labels::of(&task.config, 2)?.count;
            let p = task.config.number("hidden_dropout", 0.1)?;
            let p = task.config.number("classifier_dropout", p)?;
            let dropout = Dropout::new("dropout".into(), p);
            let classifier = linear("classifier", labels, true);
            let head = (Some(&dropout), &classifier, labels);
            text::token_classes(task, tracer, seq_len, forward, head)
        }
        "GPT2ForQuestionAnswering" => {
            let qa_outputs = linear("qa_outputs", 2, true);
            let forward = |ids: &Tensor| model.forward(ids, None).into();
            text::answer(task, tracer, seq_len, forward, &qa_outputs)
        }
        _ => {
            let lm_head = if task.config.flag("tie_word_embeddings", true)? {
                Linear::tied("lm_head".into(), &model.wte.weight, None)
            } else {
                linear("lm_head", config.vocabulary, false)
            };
            if let Some(generation) = &task.sizes.generation {
                let forward =
                    |ids: &Tensor, past: &GenerationInputs<'_>| model.forward(ids, Some(past));
                let how = (generation, &GenerationTraits::plain(config.layers));
                return generated(task, tracer, how, forward, |x| lm_head.forward(x));
            }
            let head = (&lm_head, config.vocabulary);
            text::next_token(task, tracer, seq_len, forward, head)
        }
    }
}

/// `Conv1D`: a linear layer whose weight is transposed.
struct Conv1D {
    place: ModulePath,
    weight: Tensor,
    bias: Tensor,
    adapter: Option<Box<Adapter>>,
    outputs: u64,
}

impl Conv1D {
    fn new(tracer: &Tracer, path: impl AsRef<str>, [inputs, outputs]: [u64; 2]) -> Conv1D {
        let path = path.as_ref();
        let own = Adapter::path_of_layer(tracer, path);
        Conv1D {
            weight: tracer.parameter(&format!("{own}.weight"), &[inputs, outputs]),
            bias: tracer.parameter(&format!("{own}.bias"), &[outputs]),
            adapter: Adapter::of_layer(tracer, path, [inputs, outputs]),
            place: ModulePath::new(own, "transformers.pytorch_utils.Conv1D"),
            outputs,
        }
    }

    fn forward(&self, x: impl Tensors) -> Tensor {
        Adapter::forward(self.adapter.as_deref(), x, |x| {
            x.tracer().in_module(&self.place, || {
                let rows = x.view(&[Size::REST, x.size(-1).into()]);
                let y = functional::addmm(&self.bias, rows, &self.weight);
                y.view(&[x.size(0).into(), x.size(1).into(), self.outputs.into()])
            })
        })
    }
}

/// `GPT2Attention`.
struct Attention {
    place: ModulePath,
    c_attn: Conv1D,
    c_proj: Conv1D,
    resid_dropout: Dropout,
    dropout: f64,
    width: u64,
    head_dim: u64,
    scale: f64,
    layer: usize,
}

impl Attention {
    fn new(tracer: &Tracer, path: String, config: &Decoder, layer: u64) -> Attention {
        let place = ModulePath::new(path, "transformers.models.gpt2.modeling_gpt2.GPT2Attention");
        let width = config.width;
        Attention {
            c_attn: Conv1D::new(
                tracer,
                place.path("c_attn"),
                [width, width.saturating_mul(3)],
            ),
            c_proj: Conv1D::new(tracer, place.path("c_proj"), [width, width]),
            resid_dropout: Dropout::new(place.path("resid_dropout"), config.residual_dropout),
            dropout: config.attention_dropout,
            width,
            head_dim: config.head_dim,
            scale: config.scale(layer),
            layer: usize::try_from(layer).unwrap_or(usize::MAX),
            place,
        }
    }

    fn forward(
        &self,
        x: &Tensor,
        past: Option<&GenerationInputs<'_>>,
        mask: Option<&Tensor>,
    ) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let (batch, seq_len) = (x.size(0), x.size(1));
            let heads = [
                batch.into(),
                seq_len.into(),
                Size::REST,
                self.head_dim.into(),
            ];
            let mut states = self.c_attn.forward(x).split(self.width, 2).into_iter();
            let mut next = || states.next().unwrap_or_else(|| x.clone());
            let (mut query, mut key, mut value) = (next(), next(), next());
            key = (&key).view(&heads).transpose(1, 2);
            value = (&value).view(&heads).transpose(1, 2);
            query = (&query).view(&heads).transpose(1, 2);
            if let Some(past) = past {
                [key, value] = past.cache.update(self.layer, [&key, &value]);
            }
            let settings = Settings {
                mask,
                dropout: self.dropout,
                causal: mask.is_none() && seq_len != Extent::ONE,
                scale: Some(self.scale),
                ..Settings::default()
            };
            let mut output = sdpa(&query, &key, &value, settings);
            output = (&output)
                .reshape(&[batch.into(), seq_len.into(), Size::REST])
                .contiguous();
            output = self.c_proj.forward(&output);
            output = self.resid_dropout.forward(&output);
            output.and_drop((query, key, value))
        })
    }
}

/// `GPT2MLP`.
struct Mlp {
    place: ModulePath,
    c_fc: Conv1D,
    c_proj: Conv1D,
    act: Activation,
    dropout: Dropout,
}

impl Mlp {
    fn new(tracer: &Tracer, path: String, config: &Decoder) -> Mlp {
        let place = ModulePath::new(path, "transformers.models.gpt2.modeling_gpt2.GPT2MLP");
        let (outer, inner) = (config.width, config.intermediate);
        Mlp {
            c_fc: Conv1D::new(tracer, place.path("c_fc"), [outer, inner]),
            c_proj: Conv1D::new(tracer, place.path("c_proj"), [inner, outer]),
            act: Activation::named(tracer, place.path("act"), &config.activation),
            dropout: Dropout::new(place.path("dropout"), config.residual_dropout),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = self.c_fc.forward(x);
            hidden_states = self.act.forward(&hidden_states);
            hidden_states = self.c_proj.forward(&hidden_states);
            hidden_states = self.dropout.forward(&hidden_states);
            hidden_states
        })
    }
}

/// `GPT2Block`.
struct Block {
    place: ModulePath,
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn new(tracer: &Tracer, path: String, config: &Decoder, layer: u64) -> Block {
        let place = ModulePath::new(path, "transformers.models.gpt2.modeling_gpt2.GPT2Block");
        let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
        Block {
            ln_1: norm("ln_1"),
            attn: Attention::new(tracer, place.path("attn"), config, layer),
            ln_2: norm("ln_2"),
            mlp: Mlp::new(tracer, place.path("mlp"), config),
            place,
        }
    }

    fn forward(
        &self,
        x: &Tensor,
        past: Option<&GenerationInputs<'_>>,
        mask: Option<&Tensor>,
    ) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = self.ln_1.forward(x);
            let attn_output = self.attn.forward(&hidden_states, past, mask);
            hidden_states = (&attn_output).add(x);
            let residual = hidden_states.clone();
            hidden_states = self.ln_2.forward(&hidden_states);
            let feed_forward = self.mlp.forward(&hidden_states);
            hidden_states = (&residual).add(&feed_forward);
            hidden_states.and_drop((residual, attn_output, feed_forward))
        })
    }
}

/// `GPT2Model`.
struct Model {
    place: ModulePath,
    wte: Embedding,
    wpe: Embedding,
    drop: Dropout,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

impl Model {
    fn new(tracer: &Tracer, config: &Decoder) -> Model {
        let place = ModulePath::new(
            "transformer",
            "transformers.models.gpt2.modeling_gpt2.GPT2Model",
        );
        let embedding = |name, rows| Embedding::new(tracer, place.path(name), [rows, config.width]);
        Model {
            wte: embedding("wte", config.vocabulary),
            wpe: embedding("wpe", config.positions),
            drop: Dropout::new(place.path("drop"), config.embedding_dropout),
            h: (0..config.layers)
                .map(|layer| Block::new(tracer, place.path(&format!("h.{layer}")), config, layer))
                .collect(),
            ln_f: LayerNorm::new(tracer, place.path("ln_f"), config.width, config.eps),
            place,
        }
    }

    fn forward(&self, ids: &Tensor, past: Option<&GenerationInputs<'_>>) -> Tensor {
        let tracer = ids.tracer();
        tracer.in_module(&self.place, || {
            let seq_len = ids.length(1);
            let input_ids = ids.view(&[Size::REST, seq_len.into()]);
            let inputs_embeds = self.wte.forward(&input_ids);
            let position_ids = positions(past, &tracer, seq_len);
            let position_embeds = self.wpe.forward(&position_ids);
            let mut hidden_states = (&inputs_embeds).add((&position_embeds).to_device());
            let mask = masked(past, &position_ids, ids);
            hidden_states = self.drop.forward(&hidden_states);
            for block in &self.h {
                hidden_states = block.forward(&hidden_states, past, mask.as_ref());
            }
            hidden_states = self.ln_f.forward(&hidden_states);
            let width = hidden_states.size(-1).into();
            hidden_states = (&hidden_states).view(&[Size::REST, seq_len.into(), width]);
            hidden_states.and_drop((
                input_ids,
                position_ids,
                inputs_embeds,
                position_embeds,
                mask,
            ))
        })
    }
}
