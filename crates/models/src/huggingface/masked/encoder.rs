//! What BERT, RoBERTa and ELECTRA have in common: `modeling_bert.py`, which the others copy.

use crate::huggingface::attention::self_attention;
use crate::huggingface::prelude::*;

/// What a config says of an encoder.
pub(super) fn shape(config: &Config<'_>) -> Result<Shape, RequestError> {
    for name in ["is_decoder", "add_cross_attention"] {
        if config.flag(name, false)? {
            return Err(config.not_built(name));
        }
    }
    Shape::of(config)
}

impl Shape {
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

/// What follows attention in a `BertLayer`: the states, and what its `BertIntermediate` made.
pub(super) fn feed_forward(at: &Frame, shape: &Shape, attention_output: &Tensor) -> [Tensor; 2] {
    let intermediate_output = at.call("intermediate", "Intermediate", |at| {
        let sizes = [shape.width, shape.intermediate];
        let wide = at.linear("dense", sizes, true, attention_output);
        at.activation("intermediate_act_fn", &shape.activation, wide)
    });
    let states = [&intermediate_output, attention_output];
    let output = at.call("output", "Output", |at| {
        output(at, shape.intermediate, shape, states)
    });
    [output, intermediate_output]
}

/// `BertLayer`.
fn layer(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    let attention_output = at.call("attention", "Attention", |at| attention(at, shape, x));
    let [output, intermediate_output] = feed_forward(at, shape, &attention_output);
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

/// `RobertaClassificationHead`, and ELECTRA's, which differs in what is active between its layers.
pub(super) fn classification_head(
    at: &Frame,
    shape: &Shape,
    (p, labels): (f64, u64),
    features: &Tensor,
    active: impl FnOnce(&Frame, Tensor) -> Tensor,
) -> Tensor {
    let width = shape.width;
    at.call("classifier", "ClassificationHead", |at| {
        let mut x = features.select(1, 0);
        x = at.dropout("dropout", p, x);
        x = at.linear("dense", [width, width], true, x);
        x = active(at, x);
        x = at.dropout("dropout", p, x);
        at.linear("out_proj", [width, labels], true, x)
    })
}
