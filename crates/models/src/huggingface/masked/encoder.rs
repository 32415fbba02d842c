//! What BERT, RoBERTa and ELECTRA have in common: `modeling_bert.py`, which the others copy.

use crate::huggingface::attention::self_attention;
use crate::huggingface::config::Config;
use crate::request_error::RequestError;
use crate::tracing::{
    Activation, Dropout, LayerNorm, Linear, ModulePath, Pointwise as _, Tensor, Tracer, Views as _,
};

/// Where transformers keeps the code of a family: a module, and what the names of its classes begin with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code {
    pub(super) module: &'static str,
    pub(super) prefix: &'static str,
}

impl Code {
    /// A module of a model, of the class with this name after the prefix.
    pub(super) fn place(self, path: impl Into<String>, class: &str) -> ModulePath {
        let Code { module, prefix } = self;
        ModulePath::new(
            path,
            format!("transformers.models.{module}.{prefix}{class}"),
        )
    }
}

/// What a config says of an encoder.
pub(super) struct Shape {
    pub(super) code: Code,
    pub(super) vocabulary: u64,
    pub(super) positions: u64,
    pub(super) types: u64,
    pub(super) width: u64,
    pub(super) embedding_width: u64,
    pub(super) layers: u64,
    pub(super) heads: u64,
    pub(super) head_dim: u64,
    pub(super) intermediate: u64,
    pub(super) activation: String,
    pub(super) eps: f64,
    pub(super) dropout: f64,
    pub(super) attention_dropout: f64,
    pub(super) padding: Option<u64>,
}

/// Defaults in which the families differ.
pub(super) struct Defaults {
    pub(super) vocabulary: u64,
    pub(super) width: u64,
    pub(super) heads: u64,
    pub(super) intermediate: u64,
    pub(super) types: u64,
    pub(super) activation: &'static str,
    pub(super) dropout: f64,
    pub(super) eps: f64,
    pub(super) padding: u64,
}

impl Shape {
    pub(super) fn read(
        config: &Config<'_>,
        code: Code,
        defaults: &Defaults,
    ) -> Result<Shape, RequestError> {
        for name in ["is_decoder", "add_cross_attention"] {
            if config.flag(name, false)? {
                return Err(config.not_built(name));
            }
        }
        let width = config.size("hidden_size", defaults.width)?;
        let heads = config.size("num_attention_heads", defaults.heads)?;
        Ok(Shape {
            code,
            vocabulary: config.size("vocab_size", defaults.vocabulary)?,
            positions: config.size("max_position_embeddings", 512)?,
            types: config.count("type_vocab_size", defaults.types)?,
            width,
            embedding_width: width,
            layers: config.layers("num_hidden_layers", 12)?,
            heads,
            head_dim: config.quotient([("hidden_size", width), ("num_attention_heads", heads)])?,
            intermediate: config.size("intermediate_size", defaults.intermediate)?,
            activation: config.text("hidden_act", defaults.activation)?.to_owned(),
            eps: config.number("layer_norm_eps", defaults.eps)?,
            dropout: config.number("hidden_dropout_prob", defaults.dropout)?,
            attention_dropout: config.number("attention_probs_dropout_prob", defaults.dropout)?,
            padding: config.token("pad_token_id", Some(defaults.padding))?,
        })
    }

    /// Dropout before a classifier.
    pub(super) fn classifier_dropout(&self, config: &Config<'_>) -> Result<f64, RequestError> {
        config.number("classifier_dropout", self.dropout)
    }
}

/// `BertSelfAttention`.
struct SelfAttention {
    place: ModulePath,
    query: Linear,
    key: Linear,
    value: Linear,
    dropout: f64,
    head_dim: u64,
}

impl SelfAttention {
    fn new(tracer: &Tracer, path: String, shape: &Shape) -> SelfAttention {
        let place = shape.code.place(path, "SelfAttention");
        let sizes = [shape.width, shape.width];
        let of_heads = |name: &str| Linear::new(tracer, place.path(name), sizes, true);
        SelfAttention {
            query: of_heads("query"),
            key: of_heads("key"),
            value: of_heads("value"),
            dropout: shape.attention_dropout,
            head_dim: shape.head_dim,
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let linears = [&self.query, &self.key, &self.value];
            let (output, states) = self_attention(x, linears, self.head_dim, self.dropout);
            output.and_drop(states)
        })
    }
}

/// `BertSelfOutput`, and `BertOutput`, which differs in its width.
pub(super) struct Output {
    place: ModulePath,
    dense: Linear,
    layer_norm: LayerNorm,
    dropout: Dropout,
}

impl Output {
    pub(super) fn new(tracer: &Tracer, place: ModulePath, inputs: u64, shape: &Shape) -> Output {
        let norm = place.path("LayerNorm");
        Output {
            dense: Linear::new(tracer, place.path("dense"), [inputs, shape.width], true),
            layer_norm: LayerNorm::new(tracer, norm, shape.width, shape.eps),
            dropout: Dropout::new(place.path("dropout"), shape.dropout),
            place,
        }
    }

    pub(super) fn forward(&self, x: &Tensor, input: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = self.dense.forward(x);
            hidden_states = self.dropout.forward(&hidden_states);
            hidden_states = self.layer_norm.forward((&hidden_states).add(input));
            hidden_states
        })
    }
}

/// `BertAttention`.
struct Attention {
    place: ModulePath,
    own: SelfAttention,
    output: Output,
}

impl Attention {
    fn new(tracer: &Tracer, path: String, shape: &Shape) -> Attention {
        let place = shape.code.place(path, "Attention");
        let output = shape.code.place(place.path("output"), "SelfOutput");
        Attention {
            own: SelfAttention::new(tracer, place.path("self"), shape),
            output: Output::new(tracer, output, shape.width, shape),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut output = self.own.forward(x);
            output = self.output.forward(&output, x);
            output
        })
    }
}

/// `BertIntermediate`.
pub(super) struct Intermediate {
    place: ModulePath,
    dense: Linear,
    act: Activation,
}

impl Intermediate {
    pub(super) fn new(tracer: &Tracer, path: String, shape: &Shape) -> Intermediate {
        let place = shape.code.place(path, "Intermediate");
        let sizes = [shape.width, shape.intermediate];
        let act = place.path("intermediate_act_fn");
        Intermediate {
            dense: Linear::new(tracer, place.path("dense"), sizes, true),
            act: Activation::named(tracer, act, &shape.activation),
            place,
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = self.dense.forward(x);
            hidden_states = self.act.forward(&hidden_states);
            hidden_states
        })
    }
}

/// `BertLayer`.
struct Layer {
    place: ModulePath,
    attention: Attention,
    intermediate: Intermediate,
    output: Output,
}

impl Layer {
    fn new(tracer: &Tracer, path: String, shape: &Shape) -> Layer {
        let place = shape.code.place(path, "Layer");
        let output = shape.code.place(place.path("output"), "Output");
        Layer {
            attention: Attention::new(tracer, place.path("attention"), shape),
            intermediate: Intermediate::new(tracer, place.path("intermediate"), shape),
            output: Output::new(tracer, output, shape.intermediate, shape),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let attention_output = self.attention.forward(x);
            let intermediate_output = self.intermediate.forward(&attention_output);
            let output = self.output.forward(&intermediate_output, &attention_output);
            output.and_drop((intermediate_output, attention_output))
        })
    }
}

/// `BertEncoder`.
pub(super) struct Encoder {
    place: ModulePath,
    layers: Vec<Layer>,
}

impl Encoder {
    pub(super) fn new(tracer: &Tracer, path: String, shape: &Shape) -> Encoder {
        let place = shape.code.place(path, "Encoder");
        Encoder {
            layers: (0..shape.layers)
                .map(|layer| Layer::new(tracer, place.path(&format!("layer.{layer}")), shape))
                .collect(),
            place,
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = x.clone();
            for layer in &self.layers {
                hidden_states = layer.forward(&hidden_states);
            }
            hidden_states
        })
    }
}

/// `BertPooler`: what stands for the whole text.
pub(super) struct Pooler {
    place: ModulePath,
    dense: Linear,
    activation: Activation,
}

impl Pooler {
    pub(super) fn new(tracer: &Tracer, path: String, shape: &Shape) -> Pooler {
        let place = shape.code.place(path, "Pooler");
        let sizes = [shape.width, shape.width];
        Pooler {
            dense: Linear::new(tracer, place.path("dense"), sizes, true),
            activation: Activation::named(tracer, place.path("activation"), "tanh"),
            place,
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let first_token = x.select(1, 0);
            let mut pooled_output = self.dense.forward(&first_token);
            pooled_output = self.activation.forward(&pooled_output);
            pooled_output.and_drop(first_token)
        })
    }
}
