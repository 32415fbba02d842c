//! DeBERTa v2 and v3: `modeling_deberta_v2.py`.

use super::bert::new_masked_head;
use super::disentangled::{Attention, Relative, relative_positions};
use super::encoder::{Defaults, Shape, new_intermediate, new_output};
use crate::huggingface::prelude::*;
use crate::huggingface::text;

const CODE: Code = Code::new("deberta_v2.modeling_deberta_v2", "DebertaV2");

/// The head of models whose config does not say `"legacy": false`.
const LEGACY: Code = Code::new("deberta_v2.modeling_deberta_v2", "LegacyDebertaV2");

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
    let shape = Shape {
        layers: config.layers("num_hidden_layers", 24)?,
        ..Shape::read(config, CODE, &DEFAULTS)?
    };
    let positions = Positions::read(config, &shape)?;
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let labels = Labels::of(config, 2)?;
    let tracer = task.tracer(CODE.module);
    let (model, words) = new_model(&tracer, &shape, positions);
    let forward = |ids: &Tensor| model.forward(ids);
    match task.class {
        "DebertaV2ForTokenClassification" | "DebertaV2ForQuestionAnswering" => {
            let head = (labels, shape.width, shape.dropout);
            text::of_tokens(task, tracer, seq_len, forward, head)
        }
        _ => {
            let is_tied = config.flag("tie_word_embeddings", true)?;
            let words = is_tied.then_some(&words);
            let cls = new_masked_head(&tracer, LEGACY, &shape, words);
            let head = |x: &Tensor| cls.forward(x);
            text::masked_token(task, tracer, seq_len, forward, head, shape.vocabulary)
        }
    }
}

/// `DebertaV2Embeddings`.
fn new_embeddings(
    tracer: &Tracer,
    path: String,
    shape: &Shape,
    biases_input: bool,
) -> (impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor + use<>, Tensor) {
    let place = CODE.place(path, "Embeddings");
    let width = shape.width;
    let embedding = |name, rows| Embedding::new(tracer, place.path(name), [rows, width]);
    let norm = place.path("LayerNorm");
    let ids = place.path("position_ids");
    let words = embedding("word_embeddings", shape.vocabulary).padding(shape.padding);
    let positions_layer = biases_input.then(|| embedding("position_embeddings", shape.positions));
    let types = (shape.types > 0).then(|| embedding("token_type_embeddings", shape.types));
    let layer_norm = LayerNorm::new(tracer, norm, width, shape.eps);
    let dropout = Dropout::new(place.path("dropout"), shape.dropout);
    let position_ids = tracer.buffer(&ids, &[1, shape.positions], DType::Int64);

    let weight = words.weight.clone();
    let module = move |ids: &Tensor, token_type_ids: &Tensor, mask: &Tensor| {
        ids.tracer().in_module(&place, || {
            let seq_len = ids.length(1).cast_signed();
            let position_ids = (&position_ids).slice(1, 0, seq_len);
            let inputs_embeds = words.forward(ids);
            let position_embeddings = match &positions_layer {
                Some(positions) => positions.forward(&position_ids),
                None => (&inputs_embeds).zeros_like(),
            };
            let mut embeddings = inputs_embeds.clone();
            if positions_layer.is_some() {
                embeddings = (&embeddings).add(&position_embeddings);
            }
            let mut token_type_embeddings = None;
            if let Some(types) = &types {
                let of_types = types.forward(token_type_ids);
                embeddings = (&embeddings).add(&of_types);
                token_type_embeddings = Some(of_types);
            }
            embeddings = layer_norm.forward(&embeddings);
            let mut mask = mask.unsqueeze(2);
            mask = (&mask).to_dtype_of(embeddings.dtype());
            embeddings = (&embeddings).mul(&mask);
            embeddings = dropout.forward(&embeddings);
            drop((position_ids, mask, inputs_embeds));
            embeddings.and_drop((position_embeddings, token_type_embeddings))
        })
    };
    (module, weight)
}

/// `DebertaV2Layer`, with its `DebertaV2Attention`.
fn new_layer(
    tracer: &Tracer,
    path: String,
    shape: &Shape,
    relative: Option<&Relative>,
) -> impl Fn(&Tensor, &Tensor, Option<[&Tensor; 2]>) -> Tensor + use<> {
    let place = CODE.place(path, "Layer");
    let attention = CODE.place(place.path("attention"), "Attention");
    let own = ModulePath::new(
        attention.path("self"),
        "transformers.models.deberta_v2.modeling_deberta_v2.DisentangledSelfAttention",
    );
    let self_output = CODE.place(attention.path("output"), "SelfOutput");
    let output = CODE.place(place.path("output"), "Output");
    let own = Attention::new(tracer, own, shape, relative);
    let attention_output_layer = new_output(tracer, self_output, shape.width, shape);
    let intermediate = new_intermediate(tracer, place.path("intermediate"), shape);
    let output_layer = new_output(tracer, output, shape.intermediate, shape);

    move |x: &Tensor, mask: &Tensor, relative: Option<[&Tensor; 2]>| {
        let tracer = x.tracer();
        tracer.in_module(&place, || {
            let attention_output = tracer.in_module(&attention, || {
                let self_output = own.forward(x, mask, relative);
                let output = attention_output_layer(&self_output, x);
                output.and_drop(self_output)
            });
            let intermediate_output = intermediate.forward(&attention_output);
            let output = output_layer(&intermediate_output, &attention_output);
            output.and_drop((attention_output, intermediate_output))
        })
    }
}

/// `DebertaV2Model`, with its `DebertaV2Encoder`, and the weight of its words.
fn new_model(tracer: &Tracer, shape: &Shape, positions: Positions) -> (FnModule, Tensor) {
    let place = CODE.place("deberta", "Model");
    let encoder = CODE.place(place.path("encoder"), "Encoder");
    let path = place.path("embeddings");
    let (embeddings, words) = new_embeddings(tracer, path, shape, positions.biases_input);
    let relative = positions.relative;
    let layer = |index| {
        let path = encoder.path(&format!("layer.{index}"));
        new_layer(tracer, path, shape, relative.as_ref())
    };
    let layers: Vec<_> = (0..shape.layers).map(layer).collect();
    let rel_embeddings = relative.as_ref().map(|relative| {
        let rows = relative.span.saturating_mul(2);
        Embedding::new(tracer, encoder.path("rel_embeddings"), [rows, shape.width])
    });
    let norm = encoder.path("LayerNorm");
    let normalizes = positions.normalizes_relative;
    let layer_norm = normalizes.then(|| LayerNorm::new(tracer, norm, shape.width, shape.eps));
    // The states before the first layer and after each.
    let encode = move |embedding_output: &Tensor, attention_mask: &Tensor| {
        embedding_output.tracer().in_module(&encoder, || {
            let mask = {
                let extended = attention_mask.unsqueeze(1).unsqueeze(2);
                let column = (&extended).squeeze(-2).unsqueeze(-1);
                (&extended).mul(column)
            };
            let relative_pos = relative
                .as_ref()
                .map(|relative| relative_positions(embedding_output, relative));
            let rel_embeddings = rel_embeddings.as_ref().map(|embedding| {
                let weight = &embedding.weight;
                let norm = layer_norm.as_ref();
                norm.map_or_else(|| weight.clone(), |norm| norm.forward(weight))
            });
            let mut states = vec![embedding_output.clone()];
            let mut output = embedding_output.clone();
            for layer in &layers {
                let relative = relative_pos.as_ref().zip(rel_embeddings.as_ref());
                let relative = relative.map(|(positions, embeddings)| [positions, embeddings]);
                output = layer(&output, &mask, relative);
                states.push(output.clone());
            }
            drop((mask, relative_pos, output, rel_embeddings));
            states
        })
    };
    let model = FnModule::new(place, move |ids| {
        let tracer = ids.tracer();
        let sizes: [Size; 2] = [ids.size(0).into(), ids.size(1).into()];
        let attention_mask = tracer.ones(&sizes, DType::Float32);
        let token_type_ids = tracer.zeros(&sizes, DType::Int64);
        let embedding_output = embeddings(ids, &token_type_ids, &attention_mask);
        let mut states = encode(&embedding_output, &attention_mask);
        let output = states.last().cloned();
        let output = output.unwrap_or_else(|| embedding_output.clone());
        drop((attention_mask, token_type_ids, embedding_output));
        // A tuple lets go of its last item first.
        while states.pop().is_some() {}
        output
    });
    (model, words)
}
