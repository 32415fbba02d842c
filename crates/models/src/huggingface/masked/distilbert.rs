//! DistilBERT: `modeling_distilbert.py`.

use crate::huggingface::attention::self_attention;
use crate::huggingface::prelude::*;
use crate::huggingface::text::{self, Answered, Classified};

/// Some of its classes have the family's name, some have not.
const CODE: Code = Code::new("distilbert.modeling_distilbert", "");

/// Of all its layer norms; the config has none.
const EPS: f64 = 1e-12;

/// What a config says of such a model.
struct Shape {
    vocabulary: u64,
    positions: u64,
    width: u64,
    layers: u64,
    head_dim: u64,
    intermediate: u64,
    activation: String,
    dropout: f64,
    attention_dropout: f64,
    padding: Option<u64>,
}

impl Shape {
    fn read(config: &Config<'_>) -> Result<Shape, RequestError> {
        let (width, heads) = (config.size("dim", 768)?, config.size("n_heads", 12)?);
        Ok(Shape {
            vocabulary: config.size("vocab_size", 30522)?,
            positions: config.size("max_position_embeddings", 512)?,
            width,
            layers: config.layers("n_layers", 6)?,
            head_dim: config.quotient([("dim", width), ("n_heads", heads)])?,
            intermediate: config.size("hidden_dim", 3072)?,
            activation: config.text("activation", "gelu")?.to_owned(),
            dropout: config.number("dropout", 0.1)?,
            attention_dropout: config.number("attention_dropout", 0.1)?,
            padding: config.token("pad_token_id", Some(0))?,
        })
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = &task.config;
    let shape = Shape::read(config)?;
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let labels = Labels::of(config, 2)?;
    let tracer = task.tracer(CODE.module);
    let linear =
        |name: &str, outputs: u64| Linear::new(&tracer, name, [shape.width, outputs], true);
    let dropout = |p: f64| Dropout::new("dropout".into(), p);
    let (model, words) = new_model(&tracer, &shape);
    match task.class {
        "DistilBertForSequenceClassification" => {
            let pre_classifier = linear("pre_classifier", shape.width);
            let classifier = linear("classifier", labels.count);
            let dropout = dropout(config.number("seq_classif_dropout", 0.2)?);
            text::classes(task, tracer, seq_len, labels, |ids| {
                let hidden_state = model.forward(ids);
                let mut pooled_output = (&hidden_state).select(1, 0);
                pooled_output = pre_classifier.forward(&pooled_output);
                pooled_output = (&pooled_output).relu();
                pooled_output = dropout.forward(&pooled_output);
                Classified {
                    logits: classifier.forward(&pooled_output),
                    held: vec![hidden_state, pooled_output],
                }
            })
        }
        "DistilBertForTokenClassification" => {
            let classifier = linear("classifier", labels.count);
            let forward = |ids: &Tensor| model.forward(ids);
            let head = (Some(&dropout(shape.dropout)), &classifier, labels.count);
            text::token_classes(task, tracer, seq_len, forward, head)
        }
        "DistilBertForQuestionAnswering" => {
            labels.must_be_two(config)?;
            let qa_outputs = linear("qa_outputs", 2);
            let dropout = dropout(config.number("qa_dropout", 0.1)?);
            let forward = |ids: &Tensor| {
                let output = model.forward(ids);
                Answered {
                    output: dropout.forward(&output),
                    held: vec![output],
                }
            };
            text::answer(task, tracer, seq_len, forward, &qa_outputs)
        }
        _ => {
            let activation = Activation::named(&tracer, "activation".into(), &shape.activation);
            let vocab_transform = linear("vocab_transform", shape.width);
            let norm = LayerNorm::new(&tracer, "vocab_layer_norm".into(), shape.width, EPS);
            let vocab_projector = if config.flag("tie_word_embeddings", true)? {
                let bias = tracer.parameter("vocab_projector.bias", &[shape.vocabulary]);
                Linear::tied("vocab_projector".into(), &words, Some(bias))
            } else {
                linear("vocab_projector", shape.vocabulary)
            };
            let forward = |ids: &Tensor| model.forward(ids);
            let head =
                |x: &Tensor| chain(&[&vocab_transform, &activation, &norm, &vocab_projector], x);
            text::masked_token(task, tracer, seq_len, forward, head, shape.vocabulary)
        }
    }
}

/// `DistilBertSelfAttention`.
fn new_attention(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = CODE.place(path, "DistilBertSelfAttention");
    let sizes = [shape.width, shape.width];
    let linear = |name: &str| Linear::new(tracer, place.path(name), sizes, true);
    let q_lin = linear("q_lin");
    let k_lin = linear("k_lin");
    let v_lin = linear("v_lin");
    let out_lin = linear("out_lin");
    let dropout = shape.attention_dropout;
    let head_dim = shape.head_dim;
    FnModule::new(place, move |x| {
        let linears = [&q_lin, &k_lin, &v_lin];
        let (mut output, states) = self_attention(x, linears, head_dim, dropout);
        output = out_lin.forward(&output);
        output.and_drop(states)
    })
}

/// `FFN`.
fn new_feed_forward(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = CODE.place(path, "FFN");
    let (outer, inner) = (shape.width, shape.intermediate);
    let activation = place.path("activation");
    let lin1 = Linear::new(tracer, place.path("lin1"), [outer, inner], true);
    let lin2 = Linear::new(tracer, place.path("lin2"), [inner, outer], true);
    let activation = Activation::named(tracer, activation, &shape.activation);
    let dropout = Dropout::new(place.path("dropout"), shape.dropout);
    FnModule::new(place, move |input| {
        chain(&[&lin1, &activation, &lin2, &dropout], input)
    })
}

/// `TransformerBlock`.
fn new_block(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = CODE.place(path, "TransformerBlock");
    let norm = |name| LayerNorm::new(tracer, place.path(name), shape.width, EPS);
    let attention = new_attention(tracer, place.path("attention"), shape);
    let sa_layer_norm = norm("sa_layer_norm");
    let ffn = new_feed_forward(tracer, place.path("ffn"), shape);
    let output_layer_norm = norm("output_layer_norm");
    FnModule::new(place, move |x| {
        let mut attention_output = attention.forward(x);
        attention_output = sa_layer_norm.forward((&attention_output).add(x));
        let mut output = ffn.forward(&attention_output);
        output = output_layer_norm.forward((&output).add(&attention_output));
        output.and_drop(attention_output)
    })
}

/// `DistilBertModel`, with its `Embeddings` and `Transformer`, and the weight of its words.
fn new_model(tracer: &Tracer, shape: &Shape) -> (FnModule, Tensor) {
    let place = CODE.place("distilbert", "DistilBertModel");
    let embeddings = CODE.place(place.path("embeddings"), "Embeddings");
    let transformer = CODE.place(place.path("transformer"), "Transformer");
    let ids = embeddings.path("position_ids");
    let norm = embeddings.path("LayerNorm");
    let width = shape.width;
    let embedding = |name, rows| Embedding::new(tracer, embeddings.path(name), [rows, width]);
    let block = |layer| new_block(tracer, transformer.path(&format!("layer.{layer}")), shape);
    let words = embedding("word_embeddings", shape.vocabulary).padding(shape.padding);
    let positions = embedding("position_embeddings", shape.positions);
    let layer_norm = LayerNorm::new(tracer, norm, width, EPS);
    let dropout = Dropout::new(embeddings.path("dropout"), shape.dropout);
    let position_ids = tracer.buffer(&ids, &[1, shape.positions], DType::Int64);
    let blocks: Vec<FnModule> = (0..shape.layers).map(block).collect();
    let weight = words.weight.clone();
    let embed = FnModule::new(embeddings, move |ids| {
        let inputs_embeds = words.forward(ids);
        let seq_len = ids.length(1).cast_signed();
        let position_ids = (&position_ids).slice(1, 0, seq_len);
        let position_embeddings = positions.forward(&position_ids);
        let mut embeddings = (&inputs_embeds).add(&position_embeddings);
        embeddings = chain(&[&layer_norm, &dropout], embeddings);
        embeddings.and_drop((inputs_embeds, position_ids, position_embeddings))
    });
    let model = FnModule::new(place, move |ids| {
        let embeddings = embed.forward(ids);
        ids.tracer()
            .in_module(&transformer, || blocks.forward(&embeddings))
    });
    (model, weight)
}
