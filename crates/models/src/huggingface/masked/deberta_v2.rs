//! DeBERTa v2 and v3: `modeling_deberta_v2.py`.

use super::bert::MaskedHead;
use super::disentangled::{Attention, Relative, relative_positions};
use super::encoder::{Code, Defaults, Intermediate, Output, Shape};
use crate::graph::Graph;
use crate::huggingface::Task;
use crate::huggingface::config::Config;
use crate::huggingface::heads::Labels;
use crate::huggingface::text::{self, Answered};
use crate::request_error::RequestError;
use crate::shape::DType;
use crate::tracing::{
    Dropout, Embedding, LayerNorm, Linear, ModulePath, Pointwise as _, Size, Tensor, Tracer,
    Views as _,
};

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] = &[
    "DebertaV2ForMaskedLM",
    "DebertaV2ForTokenClassification",
    "DebertaV2ForQuestionAnswering",
];

const CODE: Code = Code {
    module: "deberta_v2.modeling_deberta_v2",
    prefix: "DebertaV2",
};

/// The head of models whose config does not say `"legacy": false`.
const LEGACY: Code = Code {
    module: "deberta_v2.modeling_deberta_v2",
    prefix: "LegacyDebertaV2",
};

const DEFAULTS: Defaults = Defaults {
    vocabulary: 128_100,
    width: 1536,
    heads: 24,
    intermediate: 6144,
    types: 0,
    activation: "gelu",
    dropout: 0.1,
    eps: 1e-7,
    padding: 0,
};

/// What a config says besides what encoders have in common.
struct Positions {
    /// Whether words have embeddings of positions added.
    biases_input: bool,
    relative: Option<Relative>,
    normalizes_relative: bool,
}

impl Positions {
    fn read(config: &Config<'_>, shape: &Shape) -> Result<Positions, RequestError> {
        for name in ["conv_kernel_size", "embedding_size", "attention_head_size"] {
            if config.has(name) {
                return Err(config.not_built(name));
            }
        }
        if !config.flag("legacy", true)? {
            return Err(config.not_built("legacy"));
        }
        let norm = config.text("norm_rel_ebd", "none")?.to_lowercase();
        let is_relative = config.flag("relative_attention", false)?;
        Ok(Positions {
            biases_input: config.flag("position_biased_input", true)?,
            relative: is_relative
                .then(|| Relative::read(config, shape))
                .transpose()?,
            normalizes_relative: norm.split('|').any(|word| word.trim() == "layer_norm"),
        })
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = &task.config;
    let shape = Shape::read(config, CODE, &DEFAULTS)?;
    let positions = Positions::read(config, &shape)?;
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let labels = Labels::of(config, 2)?;
    let tracer = task.tracer(CODE.module);
    let model = Model::new(&tracer, &shape, positions);
    let linear =
        |name: &str, outputs: u64| Linear::new(&tracer, name, [shape.width, outputs], true);
    let forward = |ids: &Tensor| model.forward(ids);
    match task.class {
        "DebertaV2ForTokenClassification" => {
            let dropout = Dropout::new("dropout".into(), shape.dropout);
            let classifier = linear("classifier", labels.count);
            let head = (Some(&dropout), &classifier, labels.count);
            text::token_classes(task, tracer, seq_len, forward, head)
        }
        "DebertaV2ForQuestionAnswering" => {
            labels.must_be_two(config)?;
            let qa_outputs = linear("qa_outputs", 2);
            let forward = |ids: &Tensor| Answered::from(model.forward(ids));
            text::answer(task, tracer, seq_len, forward, &qa_outputs)
        }
        _ => {
            let is_tied = config.flag("tie_word_embeddings", true)?;
            let words = is_tied.then_some(&model.embeddings.words.weight);
            let cls = MaskedHead::new(&tracer, LEGACY, &shape, words);
            let scores = |ids: &Tensor| {
                let outputs = model.forward(ids);
                let scores = cls.forward(&outputs);
                (outputs, scores)
            };
            text::masked_token(task, tracer, seq_len, scores, shape.vocabulary)
        }
    }
}

/// `DebertaV2Embeddings`.
struct Embeddings {
    place: ModulePath,
    words: Embedding,
    positions: Option<Embedding>,
    types: Option<Embedding>,
    layer_norm: LayerNorm,
    dropout: Dropout,
    position_ids: Tensor,
}

impl Embeddings {
    fn new(tracer: &Tracer, path: String, shape: &Shape, biases_input: bool) -> Embeddings {
        let place = CODE.place(path, "Embeddings");
        let width = shape.width;
        let embedding = |name, rows| Embedding::new(tracer, place.path(name), [rows, width]);
        let norm = place.path("LayerNorm");
        let ids = place.path("position_ids");
        Embeddings {
            words: embedding("word_embeddings", shape.vocabulary).padding(shape.padding),
            positions: biases_input.then(|| embedding("position_embeddings", shape.positions)),
            types: (shape.types > 0).then(|| embedding("token_type_embeddings", shape.types)),
            layer_norm: LayerNorm::new(tracer, norm, width, shape.eps),
            dropout: Dropout::new(place.path("dropout"), shape.dropout),
            position_ids: tracer.buffer(&ids, &[1, shape.positions], DType::Int64),
            place,
        }
    }

    fn forward(&self, ids: &Tensor, token_type_ids: &Tensor, mask: &Tensor) -> Tensor {
        ids.tracer().in_module(&self.place, || {
            let seq_len = ids.length(1).cast_signed();
            let position_ids = (&self.position_ids).slice(1, 0, seq_len);
            let inputs_embeds = self.words.forward(ids);
            let position_embeddings = match &self.positions {
                Some(positions) => positions.forward(&position_ids),
                None => (&inputs_embeds).zeros_like(),
            };
            let mut embeddings = inputs_embeds.clone();
            if self.positions.is_some() {
                embeddings = (&embeddings).add(&position_embeddings);
            }
            let mut token_type_embeddings = None;
            if let Some(types) = &self.types {
                let of_types = types.forward(token_type_ids);
                embeddings = (&embeddings).add(&of_types);
                token_type_embeddings = Some(of_types);
            }
            embeddings = self.layer_norm.forward(&embeddings);
            let mut mask = mask.unsqueeze(2);
            mask = (&mask).to_dtype_of(embeddings.dtype());
            embeddings = (&embeddings).mul(&mask);
            embeddings = self.dropout.forward(&embeddings);
            drop((position_ids, mask, inputs_embeds));
            embeddings.and_drop((position_embeddings, token_type_embeddings))
        })
    }
}

/// `DebertaV2Layer`, with its `DebertaV2Attention`.
struct Layer {
    place: ModulePath,
    attention: ModulePath,
    own: Attention,
    attention_output: Output,
    intermediate: Intermediate,
    output: Output,
}

impl Layer {
    fn new(tracer: &Tracer, path: String, shape: &Shape, relative: Option<&Relative>) -> Layer {
        let place = CODE.place(path, "Layer");
        let attention = CODE.place(place.path("attention"), "Attention");
        let own = ModulePath::new(
            attention.path("self"),
            "transformers.models.deberta_v2.modeling_deberta_v2.DisentangledSelfAttention",
        );
        let self_output = CODE.place(attention.path("output"), "SelfOutput");
        let output = CODE.place(place.path("output"), "Output");
        Layer {
            own: Attention::new(tracer, own, shape, relative),
            attention_output: Output::new(tracer, self_output, shape.width, shape),
            intermediate: Intermediate::new(tracer, place.path("intermediate"), shape),
            output: Output::new(tracer, output, shape.intermediate, shape),
            place,
            attention,
        }
    }

    fn forward(&self, x: &Tensor, mask: &Tensor, relative: Option<[&Tensor; 2]>) -> Tensor {
        let tracer = x.tracer();
        tracer.in_module(&self.place, || {
            let attention_output = tracer.in_module(&self.attention, || {
                let self_output = self.own.forward(x, mask, relative);
                let output = self.attention_output.forward(&self_output, x);
                output.and_drop(self_output)
            });
            let intermediate_output = self.intermediate.forward(&attention_output);
            let output = self.output.forward(&intermediate_output, &attention_output);
            output.and_drop((attention_output, intermediate_output))
        })
    }
}

/// `DebertaV2Model`, with its `DebertaV2Encoder`.
struct Model {
    place: ModulePath,
    embeddings: Embeddings,
    encoder: ModulePath,
    layers: Vec<Layer>,
    rel_embeddings: Option<Embedding>,
    layer_norm: Option<LayerNorm>,
    relative: Option<Relative>,
}

impl Model {
    fn new(tracer: &Tracer, shape: &Shape, positions: Positions) -> Model {
        let place = CODE.place("deberta", "Model");
        let encoder = CODE.place(place.path("encoder"), "Encoder");
        let path = place.path("embeddings");
        let embeddings = Embeddings::new(tracer, path, shape, positions.biases_input);
        let relative = positions.relative;
        let layer = |index| {
            let path = encoder.path(&format!("layer.{index}"));
            Layer::new(tracer, path, shape, relative.as_ref())
        };
        let layers = (0..shape.layers).map(layer).collect();
        let rel_embeddings = relative.as_ref().map(|relative| {
            let rows = relative.span.saturating_mul(2);
            Embedding::new(tracer, encoder.path("rel_embeddings"), [rows, shape.width])
        });
        let norm = encoder.path("LayerNorm");
        Model {
            embeddings,
            layers,
            rel_embeddings,
            layer_norm: positions
                .normalizes_relative
                .then(|| LayerNorm::new(tracer, norm, shape.width, shape.eps)),
            relative,
            place,
            encoder,
        }
    }

    fn forward(&self, ids: &Tensor) -> Tensor {
        let tracer = ids.tracer();
        tracer.in_module(&self.place, || {
            let sizes: [Size; 2] = [ids.size(0).into(), ids.size(1).into()];
            let attention_mask = tracer.ones(&sizes, DType::Float32);
            let token_type_ids = tracer.zeros(&sizes, DType::Int64);
            let embedding_output = self
                .embeddings
                .forward(ids, &token_type_ids, &attention_mask);
            let mut states = self.encode(&embedding_output, &attention_mask);
            let output = states.last().cloned();
            let output = output.unwrap_or_else(|| embedding_output.clone());
            drop((attention_mask, token_type_ids, embedding_output));
            // A tuple lets go of its last item first.
            while states.pop().is_some() {}
            output
        })
    }

    /// The states before the first layer and after each.
    fn encode(&self, embedding_output: &Tensor, attention_mask: &Tensor) -> Vec<Tensor> {
        let tracer = embedding_output.tracer();
        tracer.in_module(&self.encoder, || {
            let mask = {
                let extended = attention_mask.unsqueeze(1).unsqueeze(2);
                let column = (&extended).squeeze(-2).unsqueeze(-1);
                (&extended).mul(column)
            };
            let relative_pos = self
                .relative
                .as_ref()
                .map(|relative| relative_positions(embedding_output, relative));
            let rel_embeddings = self.rel_embeddings.as_ref().map(|embedding| {
                let weight = &embedding.weight;
                let norm = self.layer_norm.as_ref();
                norm.map_or_else(|| weight.clone(), |norm| norm.forward(weight))
            });
            let mut states = vec![embedding_output.clone()];
            let mut output = embedding_output.clone();
            for layer in &self.layers {
                let relative = relative_pos.as_ref().zip(rel_embeddings.as_ref());
                let relative = relative.map(|(positions, embeddings)| [positions, embeddings]);
                output = layer.forward(&output, &mask, relative);
                states.push(output.clone());
            }
            drop((mask, relative_pos, output, rel_embeddings));
            states
        })
    }
}
