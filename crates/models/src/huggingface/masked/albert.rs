//! ALBERT, whose layers share their weights: `modeling_albert.py`.

use super::embeddings::{Numbering, new_embeddings};
use super::encoder::{Defaults, Shape};
use crate::huggingface::attention::self_attention;
use crate::huggingface::config::MOST_LAYERS;
use crate::huggingface::prelude::*;
use crate::huggingface::text;

const CODE: Code = Code::new("albert.modeling_albert", "Albert");

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
    let (model, words) = new_model(&tracer, &shape, groups, is_classifier);
    let p = config.number("classifier_dropout_prob", 0.1)?;
    match task.class {
        "AlbertForSequenceClassification" => {
            let head = (labels, shape.width, p);
            text::classes_of_pooled(task, tracer, seq_len, &model, head)
        }
        "AlbertForTokenClassification" | "AlbertForQuestionAnswering" => {
            let head = (labels, shape.width, p);
            text::of_tokens(task, tracer, seq_len, |ids| model.forward(ids).0, head)
        }
        _ => {
            let is_tied = config.flag("tie_word_embeddings", true)?;
            let words = is_tied.then_some(&words);
            let predictions = new_masked_head(&tracer, &shape, words);
            let forward = |ids: &Tensor| model.forward(ids).0;
            let head = |x: &Tensor| predictions.forward(x);
            text::masked_token(task, tracer, seq_len, forward, head, shape.vocabulary)
        }
    }
}

/// `AlbertAttention`.
fn new_attention(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = CODE.place(path, "Attention");
    let sizes = [shape.width, shape.width];
    let linear = |name: &str| Linear::new(tracer, place.path(name), sizes, true);
    let norm = place.path("LayerNorm");
    let query = linear("query");
    let key = linear("key");
    let value = linear("value");
    let dense = linear("dense");
    let layer_norm = LayerNorm::new(tracer, norm, shape.width, shape.eps);
    let output_dropout = Dropout::new(place.path("output_dropout"), shape.dropout);
    let dropout = shape.attention_dropout;
    let head_dim = shape.head_dim;
    FnModule::new(place, move |x| {
        let linears = [&query, &key, &value];
        let (mut output, states) = self_attention(x, linears, head_dim, dropout);
        output = dense.forward(&output);
        output = output_dropout.forward(&output);
        output = layer_norm.forward(x.add(&output));
        output.and_drop(states)
    })
}

/// `AlbertLayer`.
fn new_layer(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = CODE.place(path, "Layer");
    let (outer, inner) = (shape.width, shape.intermediate);
    let norm = place.path("full_layer_layer_norm");
    let activation = place.path("activation");
    let full_layer_layer_norm = LayerNorm::new(tracer, norm, outer, shape.eps);
    let attention = new_attention(tracer, place.path("attention"), shape);
    let ffn = Linear::new(tracer, place.path("ffn"), [outer, inner], true);
    let ffn_output_proj = Linear::new(tracer, place.path("ffn_output"), [inner, outer], true);
    let activation = Activation::named(tracer, activation, &shape.activation);
    FnModule::new(place, move |x| {
        let attention_output = attention.forward(x);
        let ffn_output = chain(&[&ffn, &activation, &ffn_output_proj], &attention_output);
        let normed = (&ffn_output).add(&attention_output);
        let hidden_states = full_layer_layer_norm.forward(normed);
        hidden_states.and_drop((attention_output, ffn_output))
    })
}

/// `AlbertLayerGroup`.
fn new_group(tracer: &Tracer, path: String, shape: &Shape, layers: u64) -> FnModule {
    let place = CODE.place(path, "LayerGroup");
    let layer = |index| new_layer(tracer, place.path(&format!("albert_layers.{index}")), shape);
    let layers: Vec<FnModule> = (0..layers).map(layer).collect();
    FnModule::new(place, move |x| layers.forward(x))
}

/// `AlbertModel`, with its `AlbertTransformer`, and the weight of its words. It gives the states of all tokens, and what stands for
/// the whole text.
fn new_model(
    tracer: &Tracer,
    shape: &Shape,
    [groups, inner]: [u64; 2],
    has_pooler: bool,
) -> (FnModule<(Tensor, Option<Tensor>)>, Tensor) {
    let place = CODE.place("albert", "Model");
    let path = place.path("embeddings");
    let (embeddings, words) = new_embeddings(tracer, path, shape, Numbering::Plain, None);
    let encoder = CODE.place(place.path("encoder"), "Transformer");
    let sizes = [shape.embedding_width, shape.width];
    let mapping_in = encoder.path("embedding_hidden_mapping_in");
    let mapping_in = Linear::new(tracer, mapping_in, sizes, true);
    let group = |index| {
        let path = encoder.path(&format!("albert_layer_groups.{index}"));
        new_group(tracer, path, shape, inner)
    };
    let groups: Vec<FnModule> = (0..groups).map(group).collect();
    let layers = shape.layers;
    let pooler = has_pooler.then(|| {
        let sizes = [shape.width, shape.width];
        let tanh = place.path("pooler_activation");
        (
            Linear::new(tracer, place.path("pooler"), sizes, true),
            Activation::named(tracer, tanh, "tanh"),
        )
    });
    let model = FnModule::new(place, move |ids| {
        let embedding_output = embeddings.forward(ids);
        let sequence_output = ids.tracer().in_module(&encoder, || {
            let mut hidden_states = mapping_in.forward(&embedding_output);
            for layer in 0..layers {
                hidden_states = group_of(layer, layers, &groups).forward(&hidden_states);
            }
            hidden_states
        });
        let pooled_output = pooler.as_ref().map(|(pooler, activation)| {
            activation.forward(pooler.forward((&sequence_output).select(1, 0)))
        });
        drop(embedding_output);
        (sequence_output, pooled_output)
    });
    (model, words)
}

/// The group that is called for a layer.
fn group_of(layer: u64, layers: u64, groups: &[FnModule]) -> &FnModule {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "below the number of groups; as Python's int()"
    )]
    let index = (layer as f64 / (layers as f64 / groups.len() as f64)) as usize;
    &groups[index.min(groups.len() - 1)]
}

/// `AlbertMLMHead`.
fn new_masked_head(tracer: &Tracer, shape: &Shape, words: Option<&Tensor>) -> FnModule {
    let place = CODE.place("predictions", "MLMHead");
    let (wide, narrow) = (shape.width, shape.embedding_width);
    let bias = tracer.parameter(&place.path("bias"), &[shape.vocabulary]);
    let norm = place.path("LayerNorm");
    let decoder = place.path("decoder");
    let activation = place.path("activation");
    let layer_norm = LayerNorm::new(tracer, norm, narrow, shape.eps);
    let dense = Linear::new(tracer, place.path("dense"), [wide, narrow], true);
    let decoder = match words {
        Some(words) => Linear::tied(decoder, words, Some(bias)),
        None => Linear::new(tracer, decoder, [narrow, shape.vocabulary], true),
    };
    let activation = Activation::named(tracer, activation, &shape.activation);
    FnModule::new(place, move |x| {
        chain(&[&dense, &activation, &layer_norm, &decoder], x)
    })
}
