//! Decoders with rotary embeddings: `modeling_llama.py` and those that follow it.

use super::decoder::{Decoder, Scaled, Windows};
use super::layer::Layer;
use super::norm::Norm;
use super::rotation::{Rotary, Rotations};
use super::{families, masks};
use crate::Generation;
use crate::huggingface::attention::{create_causal_mask, padded};
use crate::huggingface::generation::{GenerationInputs, GenerationTraits, generated, positions};
use crate::huggingface::heads::{causal_language_loss, chunked_loss};
use crate::huggingface::prelude::*;
use crate::tracing::Adapter;

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = families::read(task)?;
    let seq_len = task.tokens_read()?;
    let limits = config
        .rotations()
        .filter_map(|rotation| rotation.update.most());
    if let Some(most) = limits.min().filter(|most| seq_len > *most) {
        let but = format!(
            "beyond {most} tokens this model recomputes its rotary frequencies, \
             which batchfit does not build; `batchfit export --hf config.json -o model.json.gz`, of batchfit's Python \
             client, writes its graph, to be given with --model"
        );
        return Err(task.too_many(seq_len, &but));
    }
    let folder = config.folder;
    let tracer = task.tracer(&format!("{folder}.modeling_{folder}"));
    let shape = [Extent::BATCH, Extent::fixed(seq_len)];
    if let Some(generation) = &task.sizes.generation {
        return generate(task, &tracer, &config, generation);
    }
    let loss = if task.class.ends_with("ForSequenceClassification") {
        let labels = Labels::of(&task.config, 2)?;
        classify(task, &tracer, &config, &shape, labels)?
    } else {
        continue_text(task, &tracer, &config, &shape)
    };
    tracer
        .finish(&loss.loss)
        .map_err(|error| task.invalid(&error))
}

/// What a model gives back.
struct Output {
    loss: Tensor,
    _logits: Option<Tensor>,
}

/// `lm_head`.
fn lm_head(tracer: &Tracer, config: &Decoder, model: &Model) -> Linear {
    if config.is_tied {
        let bias = config
            .head_bias
            .then(|| tracer.parameter("lm_head.bias", &[config.vocabulary]));
        Linear::tied("lm_head".into(), &model.embed_tokens.weight, bias)
    } else {
        let sizes = [config.width, config.vocabulary];
        Linear::new(tracer, "lm_head", sizes, config.head_bias)
    }
}

/// What a `...ForCausalLM` makes of its states.
fn logits(lm_head: &Linear, config: &Decoder, hidden_states: Tensor) -> Tensor {
    let mut logits = lm_head.forward(hidden_states);
    if let Some(scaling) = config.logits_scaling {
        logits = (&logits).div_number(scaling);
    }
    if let Some(cap) = config.softcap {
        logits = (&logits).div_number(cap);
        logits = (&logits).tanh();
        logits = (&logits).mul_number(cap);
    }
    logits
}

/// `generate()` of a `...ForCausalLM`.
fn generate(
    task: &Task<'_>,
    tracer: &Tracer,
    config: &Decoder,
    generation: &Generation,
) -> Result<Graph, RequestError> {
    let model = Model::new(tracer, config);
    let lm_head = lm_head(tracer, config, &model);
    let traits = GenerationTraits {
        windows: (0..config.layers)
            .map(|layer| config.window_of(layer))
            .collect(),
        tokens: config.tokens,
    };
    let forward =
        |ids: &Tensor, past: &GenerationInputs<'_>| model.forward(&ids.tracer(), ids, Some(past));
    let head = |hidden_states: Tensor| logits(&lm_head, config, hidden_states);
    generated(task, tracer.clone(), (generation, &traits), forward, head)
}

/// `LlamaForCausalLM`.
fn continue_text(task: &Task<'_>, tracer: &Tracer, config: &Decoder, shape: &[Extent]) -> Output {
    let chunks = task.sizes.loss_chunks;
    let model = Model::new(tracer, config);
    let lm_head = lm_head(tracer, config, &model);
    let ids = tracer.input("labels", shape, DType::Int64);

    let outputs = padded(task, &ids, || model.forward(tracer, &ids, None));
    let head = |hidden_states: Tensor| logits(&lm_head, config, hidden_states);
    if let Some(chunks) = chunks {
        let head = |hidden: &Tensor| head(hidden.clone());
        let loss = chunked_loss(head, &outputs, &ids, chunks);
        return Output {
            loss: loss.and_drop(outputs),
            _logits: None,
        };
    }
    let hidden_states = outputs.clone();
    let logits = head((&hidden_states).alias());
    let loss = causal_language_loss(&logits, &ids, config.vocabulary);
    drop((outputs, hidden_states));
    Output {
        loss,
        _logits: Some(logits),
    }
}

/// `GenericForSequenceClassification`.
fn classify(
    task: &Task<'_>,
    tracer: &Tracer,
    config: &Decoder,
    shape: &[Extent],
    classes: Labels,
) -> Result<Output, RequestError> {
    let padding = config.padding.ok_or_else(|| {
        task.config.wrong(
            "pad_token_id",
            "a classifier looks for the last token that is not padding; give \"pad_token_id\"",
        )
    })?;
    let model = Model::new(tracer, config);
    let sizes = [config.width, classes.count];
    let score = Linear::new(tracer, "score", sizes, false);
    let ids = tracer.input("input_ids", shape, DType::Int64);
    let labels = classes.input(tracer);

    let hidden_states = padded(task, &ids, || model.forward(tracer, &ids, None));
    let logits = score.forward(&hidden_states);
    let padding = i64::try_from(padding).unwrap_or(i64::MAX);
    let non_pad_mask = (&ids).not_equal_to_number(padding).to(DType::Int32);
    let token_indices = tracer.arange_of(ids.size(1), DType::Int32);
    let last_non_pad_token = (&token_indices).mul(&non_pad_mask).argmax(-1);
    let pooled_logits = {
        let rows = tracer.arange_of(ids.size(0), DType::Int64);
        (&logits).index(&[Some(&rows), Some(&last_non_pad_token)])
    };
    let loss = classes.loss(&pooled_logits, &labels);
    drop((
        hidden_states,
        logits,
        last_non_pad_token,
        non_pad_mask,
        token_indices,
    ));
    Ok(Output {
        loss,
        _logits: Some(pooled_logits),
    })
}

/// Embeddings of tokens.
struct TokenEmbedding {
    place: ModulePath,
    weight: Tensor,
    padding: Option<u64>,
    /// `embed_scale` of `GemmaTextScaledWordEmbedding`.
    scale: Option<Tensor>,
    adapter: Option<Box<Adapter>>,
}

impl TokenEmbedding {
    #[expect(
        clippy::needless_pass_by_value,
        reason = "as every module takes its path"
    )]
    fn new(tracer: &Tracer, path: String, config: &Decoder) -> TokenEmbedding {
        let sizes = [config.vocabulary, config.width];
        let outer = &path;
        let path = Adapter::path_of_embedding(tracer, outer);
        let weight = tracer.parameter(&format!("{path}.weight"), &sizes);
        let adapter = Adapter::of_embedding(tracer, outer, sizes);
        let (class, scale) = if config.embedding == Scaled::Buffer {
            let path = format!("{path}.embed_scale");
            let scale = tracer.buffer(&path, &[], tracer.dtype());
            (config.class("TextScaledWordEmbedding"), Some(scale))
        } else {
            ("torch.nn.modules.sparse.Embedding".to_owned(), None)
        };
        TokenEmbedding {
            place: ModulePath::new(path, class),
            weight,
            padding: config.padding,
            scale,
            adapter,
        }
    }

    fn forward(&self, ids: &Tensor) -> Tensor {
        let how = (self.padding, self.scale.as_ref());
        Adapter::embed(self.adapter.as_deref(), ids, how, |ids| {
            ids.tracer().in_module(&self.place, || {
                let words = functional::embedding(ids, &self.weight, self.padding);
                match &self.scale {
                    Some(scale) => words.mul(scale.to_dtype_of(self.weight.dtype())),
                    None => words,
                }
            })
        })
    }
}

/// A layer, and which mask and which rotation it is given.
struct Placed {
    layer: Layer,
    has_window: bool,
    rotation: usize,
}

/// `LlamaModel`.
struct Model {
    place: ModulePath,
    embed_tokens: TokenEmbedding,
    multiplier: Option<f64>,
    embed_dropout: Option<Dropout>,
    layers: Vec<Placed>,
    norm: Norm,
    rotary_emb: Rotary,
    windows: Windows,
}

impl Model {
    fn new(tracer: &Tracer, config: &Decoder) -> Model {
        let class = match config.folder {
            "gemma3" => "TextModel",
            _ => "Model",
        };
        let place = ModulePath::new("model", config.class(class));
        let embed_tokens = TokenEmbedding::new(tracer, place.path("embed_tokens"), config);
        let embed_dropout = config.embedding_dropout;
        let layer = |layer: u64| {
            let path = place.path(&format!("layers.{layer}"));
            Placed {
                layer: Layer::new(tracer, path, config, layer),
                has_window: config.has_window(layer),
                rotation: config.rotation_of(layer),
            }
        };
        let layers = (0..config.layers).map(layer).collect();
        let norm = config.norm(tracer, place.path(config.final_norm), config.width);
        let rotary = ModulePath::new(place.path("rotary_emb"), config.class("RotaryEmbedding"));
        let rotary_emb = match config.rotations.as_slice() {
            [] => Rotary::new(tracer, rotary, &[("", config.rotation)]),
            several => Rotary::new(tracer, rotary, several),
        };
        Model {
            embed_tokens,
            multiplier: match config.embedding {
                Scaled::Number(multiplier) => Some(multiplier),
                Scaled::Not | Scaled::Buffer => None,
            },
            embed_dropout: embed_dropout.map(|p| Dropout::new(place.path("embed_dropout"), p)),
            layers,
            norm,
            rotary_emb,
            windows: config.windows.clone(),
            place,
        }
    }

    fn forward(
        &self,
        tracer: &Tracer,
        ids: &Tensor,
        past: Option<&GenerationInputs<'_>>,
    ) -> Tensor {
        tracer.in_module(&self.place, || {
            let mut inputs_embeds = self.embed_tokens.forward(ids);
            if let Some(multiplier) = self.multiplier {
                inputs_embeds = (&inputs_embeds).mul_number(multiplier);
            }
            let position_ids = positions(past, tracer, ids.length(1));
            let [full, near] = match past {
                Some(past) => self.masks_with(past, ids),
                None => self.masks(&position_ids, ids.size(0)),
            };
            if let Some(dropout) = &self.embed_dropout {
                inputs_embeds = dropout.forward(&inputs_embeds);
            }
            let mut hidden_states = inputs_embeds.clone();
            let rotations = self.rotations(&hidden_states, &position_ids);
            for placed in &self.layers {
                let mask = if placed.has_window { &near } else { &full };
                let rotation = &rotations[placed.rotation];
                let around = (rotation, mask.as_ref(), past);
                hidden_states = placed.layer.forward(&hidden_states, around);
            }
            hidden_states = self.norm.forward(&hidden_states);
            // Where masks are told apart by the kinds of layers, a list of arguments keeps what they are made from.
            let hidden_states = match self.windows {
                Windows::Some { .. } => {
                    hidden_states.and_drop((full, near, inputs_embeds, position_ids))
                }
                Windows::None | Windows::All(_) => {
                    hidden_states.and_drop((position_ids, inputs_embeds, full, near))
                }
            };
            rotations.into_iter().for_each(Rotations::let_go);
            hidden_states
        })
    }

    /// Masks of layers without and with a window.
    fn masks(&self, position_ids: &Tensor, batch: Extent) -> [Option<Tensor>; 2] {
        match &self.windows {
            Windows::None => [create_causal_mask(position_ids, batch), None],
            Windows::All(window) => [None, masks::sliding(position_ids, batch, *window)],
            Windows::Some {
                window,
                layers,
                always,
            } => {
                let full = create_causal_mask(position_ids, batch);
                let window = window.filter(|_| *always || layers.contains(&true));
                let near = window.and_then(|window| masks::sliding(position_ids, batch, window));
                [full, near]
            }
        }
    }

    /// Masks of layers without and with a window, where keys and values are kept.
    fn masks_with(&self, past: &GenerationInputs<'_>, ids: &Tensor) -> [Option<Tensor>; 2] {
        let mask = |window| past.mask(ids.size(0), ids.length(1), window);
        match &self.windows {
            Windows::None => [mask(None), None],
            Windows::All(window) => [None, mask(Some(*window))],
            Windows::Some {
                window,
                layers,
                always,
            } => {
                let full = mask(None);
                let window = window.filter(|_| *always || layers.contains(&true));
                [full, window.and_then(|window| mask(Some(window)))]
            }
        }
    }

    /// Cosines and sines for layers without and with a window, or for all.
    fn rotations(&self, x: &Tensor, position_ids: &Tensor) -> Vec<Rotations> {
        (0..self.rotary_emb.kinds())
            .map(|kind| self.rotary_emb.forward(x, position_ids, kind))
            .collect()
    }
}
