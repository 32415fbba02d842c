//! What BERT, RoBERTa and ELECTRA have in common: `modeling_bert.py`, which the others copy.

use crate::huggingface::attention::self_attention;
use crate::huggingface::prelude::*;

/// What a config says of an encoder.
pub(super) struct Shape {
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
    pub(super) fn read(config: &Config<'_>, defaults: &Defaults) -> Result<Shape, RequestError> {
        for name in ["is_decoder", "add_cross_attention"] {
            if config.flag(name, false)? {
                return Err(config.not_built(name));
            }
        }
        let width = config.size("hidden_size", defaults.width)?;
        let heads = config.size("num_attention_heads", defaults.heads)?;
        Ok(Shape {
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

    /// Attention of all tokens to all, by linear layers of these names.
    pub(super) fn self_attention(
        &self,
        at: &Frame,
        names: [&str; 3],
        x: &Tensor,
    ) -> (Tensor, [Tensor; 3]) {
        let sizes = [self.width, self.width];
        self_attention(
            at,
            (names, sizes, true),
            self.head_dim,
            self.attention_dropout,
            x,
        )
    }

    /// Dropout before a classifier.
    pub(super) fn classifier_dropout(&self, config: &Config<'_>) -> Result<f64, RequestError> {
        config.number("classifier_dropout", self.dropout)
    }
}

/// `BertSelfOutput`, and `BertOutput`, which differs in its width.
pub(super) fn output(at: &Frame, inputs: u64, shape: &Shape, [x, input]: [&Tensor; 2]) -> Tensor {
    let mut hidden_states = at.linear("dense", [inputs, shape.width], true, x);
    hidden_states = at.dropout("dropout", shape.dropout, hidden_states);
    hidden_states = at.layer_norm(
        "LayerNorm",
        shape.width,
        shape.eps,
        (&hidden_states).add(input),
    );
    hidden_states
}

/// `BertAttention`, with its `BertSelfAttention`.
fn attention(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    let mut states = at.call("self", "SelfAttention", |at| {
        let (output, states) = shape.self_attention(at, ["query", "key", "value"], x);
        output.and_drop(states)
    });
    states = at.call("output", "SelfOutput", |at| {
        output(at, shape.width, shape, [&states, x])
    });
    states
}

/// `BertIntermediate`.
pub(super) fn intermediate(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    let wide = at.linear("dense", [shape.width, shape.intermediate], true, x);
    at.activation("intermediate_act_fn", &shape.activation, wide)
}

/// `BertLayer`.
fn layer(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    let attention_output = at.call("attention", "Attention", |at| attention(at, shape, x));
    let intermediate_output = at.call("intermediate", "Intermediate", |at| {
        intermediate(at, shape, &attention_output)
    });
    let states = [&intermediate_output, &attention_output];
    let output = at.call("output", "Output", |at| {
        output(at, shape.intermediate, shape, states)
    });
    output.and_drop((intermediate_output, attention_output))
}

/// `BertEncoder`.
pub(super) fn encoder(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    at.call("encoder", "Encoder", |at| {
        at.call_each(("layer", shape.layers), "Layer", x, |at, x| {
            layer(at, shape, x)
        })
    })
}

/// `BertPooler`: what stands for the whole text.
pub(super) fn pooler(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    let first_token = x.select(1, 0);
    let dense = at.linear("dense", [shape.width, shape.width], true, &first_token);
    at.activation("activation", "tanh", dense)
        .and_drop(first_token)
}
