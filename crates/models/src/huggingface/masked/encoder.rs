//! What BERT, RoBERTa and ELECTRA have in common: `modeling_bert.py`, which the others copy.

use crate::huggingface::attention::self_attention;
use crate::huggingface::prelude::*;

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
fn new_self_attention(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = shape.code.place(path, "SelfAttention");
    let sizes = [shape.width, shape.width];
    let of_heads = |name: &str| Linear::new(tracer, place.path(name), sizes, true);
    let query = of_heads("query");
    let key = of_heads("key");
    let value = of_heads("value");
    let dropout = shape.attention_dropout;
    let head_dim = shape.head_dim;
    FnModule::new(place, move |x| {
        let linears = [&query, &key, &value];
        let (output, states) = self_attention(x, linears, head_dim, dropout);
        output.and_drop(states)
    })
}

/// `BertSelfOutput`, and `BertOutput`, which differs in its width.
pub(super) fn new_output(
    tracer: &Tracer,
    place: ModulePath,
    inputs: u64,
    shape: &Shape,
) -> impl Fn(&Tensor, &Tensor) -> Tensor + use<> {
    let norm = place.path("LayerNorm");
    let dense = Linear::new(tracer, place.path("dense"), [inputs, shape.width], true);
    let layer_norm = LayerNorm::new(tracer, norm, shape.width, shape.eps);
    let dropout = Dropout::new(place.path("dropout"), shape.dropout);

    move |x: &Tensor, input: &Tensor| {
        x.tracer().in_module(&place, || {
            let mut hidden_states = chain(&[&dense, &dropout], x);
            hidden_states = layer_norm.forward((&hidden_states).add(input));
            hidden_states
        })
    }
}

/// `BertAttention`.
fn new_attention(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = shape.code.place(path, "Attention");
    let output = shape.code.place(place.path("output"), "SelfOutput");
    let own = new_self_attention(tracer, place.path("self"), shape);
    let output_layer = new_output(tracer, output, shape.width, shape);
    FnModule::new(place, move |x| {
        let mut output = own.forward(x);
        output = output_layer(&output, x);
        output
    })
}

/// `BertIntermediate`.
pub(super) fn new_intermediate(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = shape.code.place(path, "Intermediate");
    let sizes = [shape.width, shape.intermediate];
    let act = place.path("intermediate_act_fn");
    let dense = Linear::new(tracer, place.path("dense"), sizes, true);
    let act = Activation::named(tracer, act, &shape.activation);
    FnModule::new(place, move |x| chain(&[&dense, &act], x))
}

/// `BertLayer`.
fn new_layer(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = shape.code.place(path, "Layer");
    let output = shape.code.place(place.path("output"), "Output");
    let attention = new_attention(tracer, place.path("attention"), shape);
    let intermediate = new_intermediate(tracer, place.path("intermediate"), shape);
    let output = new_output(tracer, output, shape.intermediate, shape);
    FnModule::new(place, move |x| {
        let attention_output = attention.forward(x);
        let intermediate_output = intermediate.forward(&attention_output);
        let output = output(&intermediate_output, &attention_output);
        output.and_drop((intermediate_output, attention_output))
    })
}

/// `BertEncoder`.
pub(super) fn new_encoder(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = shape.code.place(path, "Encoder");
    let layers: Vec<FnModule> = (0..shape.layers)
        .map(|layer| new_layer(tracer, place.path(&format!("layer.{layer}")), shape))
        .collect();
    FnModule::new(place, move |x| layers.forward(x))
}

/// `BertPooler`: what stands for the whole text.
pub(super) fn new_pooler(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = shape.code.place(path, "Pooler");
    let sizes = [shape.width, shape.width];
    let dense = Linear::new(tracer, place.path("dense"), sizes, true);
    let activation = Activation::named(tracer, place.path("activation"), "tanh");
    FnModule::new(place, move |x| {
        let first_token = x.select(1, 0);
        chain(&[&dense, &activation], &first_token).and_drop(first_token)
    })
}
