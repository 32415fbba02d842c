//! ALBERT, whose layers share their weights: `modeling_albert.py`.

use super::embeddings::{Embeddings, Numbering};
use super::encoder::{Code, Defaults, Shape};
use crate::graph::Graph;
use crate::huggingface::Task;
use crate::huggingface::attention::self_attention;
use crate::huggingface::config::MOST_LAYERS;
use crate::huggingface::heads::Labels;
use crate::huggingface::text::{self, Answered, Classified};
use crate::request_error::RequestError;
use crate::tracing::{
    Activation, Dropout, LayerNorm, Linear, ModulePath, Pointwise as _, Tensor, Tracer, Views as _,
};

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] = &[
    "AlbertForMaskedLM",
    "AlbertForSequenceClassification",
    "AlbertForTokenClassification",
    "AlbertForQuestionAnswering",
];

const CODE: Code = Code {
    module: "albert.modeling_albert",
    prefix: "Albert",
};

const DEFAULTS: Defaults = Defaults {
    vocabulary: 30000,
    width: 4096,
    heads: 64,
    intermediate: 16384,
    types: 2,
    activation: "gelu_new",
    dropout: 0.0,
    eps: 1e-12,
    padding: 0,
};

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = &task.config;
    let shape = Shape {
        embedding_width: config.size("embedding_size", 128)?,
        ..Shape::read(config, CODE, &DEFAULTS)?
    };
    let groups = config.layers("num_hidden_groups", 1)?;
    let inner = config.layers_within("inner_group_num", 1, MOST_LAYERS / groups)?;
    let groups = [groups, inner];
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let labels = Labels::of(config, 2)?;
    let tracer = task.tracer(CODE.module);
    let is_classifier = task.class == "AlbertForSequenceClassification";
    let model = Model::new(&tracer, &shape, groups, is_classifier);
    let linear =
        |name: &str, outputs: u64| Linear::new(&tracer, name, [shape.width, outputs], true);
    let p = config.number("classifier_dropout_prob", 0.1)?;
    let dropout = Dropout::new("dropout".into(), p);
    match task.class {
        "AlbertForSequenceClassification" => {
            let classifier = linear("classifier", labels.count);
            text::classes(task, tracer, seq_len, labels, |ids| {
                let (sequence, pooled) = model.forward(ids);
                let mut pooled_output = pooled.clone().unwrap_or_else(|| ids.clone());
                pooled_output = dropout.forward(&pooled_output);
                let logits = classifier.forward(&pooled_output);
                let held = [sequence].into_iter().chain(pooled);
                Classified {
                    logits,
                    held: held.chain([pooled_output]).collect(),
                }
            })
        }
        "AlbertForTokenClassification" => {
            let classifier = linear("classifier", labels.count);
            let forward = |ids: &Tensor| model.forward(ids).0;
            let head = (Some(&dropout), &classifier, labels.count);
            text::token_classes(task, tracer, seq_len, forward, head)
        }
        "AlbertForQuestionAnswering" => {
            labels.must_be_two(config)?;
            let qa_outputs = linear("qa_outputs", 2);
            let forward = |ids: &Tensor| Answered::from(model.forward(ids).0);
            text::answer(task, tracer, seq_len, forward, &qa_outputs)
        }
        _ => {
            let is_tied = config.flag("tie_word_embeddings", true)?;
            let words = is_tied.then_some(&model.embeddings.words.weight);
            let predictions = MaskedHead::new(&tracer, &shape, words);
            let scores = |ids: &Tensor| {
                let outputs = model.forward(ids).0;
                let scores = predictions.forward(&outputs);
                (outputs, scores)
            };
            text::masked_token(task, tracer, seq_len, scores, shape.vocabulary)
        }
    }
}

/// `AlbertAttention`.
struct Attention {
    place: ModulePath,
    query: Linear,
    key: Linear,
    value: Linear,
    dense: Linear,
    layer_norm: LayerNorm,
    output_dropout: Dropout,
    dropout: f64,
    head_dim: u64,
}

impl Attention {
    fn new(tracer: &Tracer, path: String, shape: &Shape) -> Attention {
        let place = CODE.place(path, "Attention");
        let sizes = [shape.width, shape.width];
        let linear = |name: &str| Linear::new(tracer, place.path(name), sizes, true);
        let norm = place.path("LayerNorm");
        Attention {
            query: linear("query"),
            key: linear("key"),
            value: linear("value"),
            dense: linear("dense"),
            layer_norm: LayerNorm::new(tracer, norm, shape.width, shape.eps),
            output_dropout: Dropout::new(place.path("output_dropout"), shape.dropout),
            dropout: shape.attention_dropout,
            head_dim: shape.head_dim,
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let linears = [&self.query, &self.key, &self.value];
            let (mut output, states) = self_attention(x, linears, self.head_dim, self.dropout);
            output = self.dense.forward(&output);
            output = self.output_dropout.forward(&output);
            output = self.layer_norm.forward(x.add(&output));
            output.and_drop(states)
        })
    }
}

/// `AlbertLayer`.
struct Layer {
    place: ModulePath,
    full_layer_layer_norm: LayerNorm,
    attention: Attention,
    ffn: Linear,
    ffn_output: Linear,
    activation: Activation,
}

impl Layer {
    fn new(tracer: &Tracer, path: String, shape: &Shape) -> Layer {
        let place = CODE.place(path, "Layer");
        let (outer, inner) = (shape.width, shape.intermediate);
        let norm = place.path("full_layer_layer_norm");
        let activation = place.path("activation");
        Layer {
            full_layer_layer_norm: LayerNorm::new(tracer, norm, outer, shape.eps),
            attention: Attention::new(tracer, place.path("attention"), shape),
            ffn: Linear::new(tracer, place.path("ffn"), [outer, inner], true),
            ffn_output: Linear::new(tracer, place.path("ffn_output"), [inner, outer], true),
            activation: Activation::named(tracer, activation, &shape.activation),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let attention_output = self.attention.forward(x);
            let mut ffn_output = self.ffn.forward(&attention_output);
            ffn_output = self.activation.forward(&ffn_output);
            ffn_output = self.ffn_output.forward(&ffn_output);
            let normed = (&ffn_output).add(&attention_output);
            let hidden_states = self.full_layer_layer_norm.forward(normed);
            hidden_states.and_drop((attention_output, ffn_output))
        })
    }
}

/// `AlbertLayerGroup`.
struct Group {
    place: ModulePath,
    layers: Vec<Layer>,
}

impl Group {
    fn new(tracer: &Tracer, path: String, shape: &Shape, layers: u64) -> Group {
        let place = CODE.place(path, "LayerGroup");
        let layer =
            |index| Layer::new(tracer, place.path(&format!("albert_layers.{index}")), shape);
        Group {
            layers: (0..layers).map(layer).collect(),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = x.clone();
            for layer in &self.layers {
                hidden_states = layer.forward(&hidden_states);
            }
            hidden_states
        })
    }
}

/// `AlbertModel`, with its `AlbertTransformer`.
struct Model {
    place: ModulePath,
    embeddings: Embeddings,
    encoder: ModulePath,
    mapping_in: Linear,
    groups: Vec<Group>,
    layers: u64,
    pooler: Option<(Linear, Activation)>,
}

impl Model {
    fn new(tracer: &Tracer, shape: &Shape, [groups, inner]: [u64; 2], has_pooler: bool) -> Model {
        let place = CODE.place("albert", "Model");
        let path = place.path("embeddings");
        let embeddings = Embeddings::new(tracer, path, shape, Numbering::Plain, None);
        let encoder = CODE.place(place.path("encoder"), "Transformer");
        let sizes = [shape.embedding_width, shape.width];
        let mapping_in = encoder.path("embedding_hidden_mapping_in");
        let group = |index| {
            let path = encoder.path(&format!("albert_layer_groups.{index}"));
            Group::new(tracer, path, shape, inner)
        };
        let pooler = || {
            let sizes = [shape.width, shape.width];
            let tanh = place.path("pooler_activation");
            (
                Linear::new(tracer, place.path("pooler"), sizes, true),
                Activation::named(tracer, tanh, "tanh"),
            )
        };
        Model {
            embeddings,
            mapping_in: Linear::new(tracer, mapping_in, sizes, true),
            groups: (0..groups).map(group).collect(),
            layers: shape.layers,
            pooler: has_pooler.then(pooler),
            place,
            encoder,
        }
    }

    /// The states of all tokens, and what stands for the whole text.
    fn forward(&self, ids: &Tensor) -> (Tensor, Option<Tensor>) {
        let tracer = ids.tracer();
        tracer.in_module(&self.place, || {
            let embedding_output = self.embeddings.forward(ids);
            let sequence_output = tracer.in_module(&self.encoder, || {
                let mut hidden_states = self.mapping_in.forward(&embedding_output);
                for layer in 0..self.layers {
                    hidden_states = self.group_of(layer).forward(&hidden_states);
                }
                hidden_states
            });
            let pooled_output = self.pooler.as_ref().map(|(pooler, activation)| {
                activation.forward(pooler.forward((&sequence_output).select(1, 0)))
            });
            drop(embedding_output);
            (sequence_output, pooled_output)
        })
    }

    /// The group that is called for a layer.
    fn group_of(&self, layer: u64) -> &Group {
        let groups = self.groups.len() as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below the number of groups; as Python's int()"
        )]
        let index = (layer as f64 / (self.layers as f64 / groups)) as usize;
        &self.groups[index.min(self.groups.len() - 1)]
    }
}

/// `AlbertMLMHead`.
struct MaskedHead {
    place: ModulePath,
    layer_norm: LayerNorm,
    dense: Linear,
    decoder: Linear,
    activation: Activation,
}

impl MaskedHead {
    fn new(tracer: &Tracer, shape: &Shape, words: Option<&Tensor>) -> MaskedHead {
        let place = CODE.place("predictions", "MLMHead");
        let (wide, narrow) = (shape.width, shape.embedding_width);
        let bias = tracer.parameter(&place.path("bias"), &[shape.vocabulary]);
        let norm = place.path("LayerNorm");
        let decoder = place.path("decoder");
        let activation = place.path("activation");
        MaskedHead {
            layer_norm: LayerNorm::new(tracer, norm, narrow, shape.eps),
            dense: Linear::new(tracer, place.path("dense"), [wide, narrow], true),
            decoder: match words {
                Some(words) => Linear::tied(decoder, words, Some(bias)),
                None => Linear::new(tracer, decoder, [narrow, shape.vocabulary], true),
            },
            activation: Activation::named(tracer, activation, &shape.activation),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = self.dense.forward(x);
            hidden_states = self.activation.forward(&hidden_states);
            hidden_states = self.layer_norm.forward(&hidden_states);
            hidden_states = self.decoder.forward(&hidden_states);
            hidden_states
        })
    }
}
