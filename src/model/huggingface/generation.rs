//! Generating text: a pass over the prompt and one for each further token, with keys and values that are kept.

use std::cell::{Cell, RefCell};

use super::Task;
use super::text::ids;
use crate::graph::Graph;
use crate::model::invalid::Invalid;
use crate::model::tracing::{Linear, Reductions as _, Tensor, Tracer, Views as _};

/// The classes that generate. Those of another one would need its code to hand the cache on.
pub(super) const CLASSES: &[&str] = &["GPT2LMHeadModel"];

/// `DynamicCache`: the keys and values of all tokens so far, of each layer.
///
/// `DynamicLayer.update` (`cache_utils.py`) joins them with those of new tokens by `torch.cat`, which makes both anew at each token:
/// the old ones are let go of once the new ones are there, so that blocks of ever new sizes are asked for.
#[derive(Default)]
pub(super) struct Cache {
    layers: RefCell<Vec<[Tensor; 2]>>,
    seen: Cell<u64>,
}

impl Cache {
    /// How many tokens are in it.
    pub(super) fn seen(&self) -> u64 {
        self.seen.get()
    }

    /// Says that so many tokens more went through all layers.
    fn advance(&self, tokens: u64) {
        self.seen.set(self.seen.get() + tokens);
    }

    /// Takes in the keys and values of new tokens; gives those of all.
    pub(super) fn update(&self, layer: usize, [key, value]: [&Tensor; 2]) -> [Tensor; 2] {
        let mut layers = self.layers.borrow_mut();
        let tracer = key.tracer();
        if layer == layers.len() {
            // The first time they are joined with empty tensors, which take no memory.
            layers.push([key, value].map(|new| tracer.cat_of(&[new], -2)));
        } else if let Some([keys, values]) = layers.get_mut(layer) {
            *keys = tracer.cat_of(&[&*keys, key], -2);
            *values = tracer.cat_of(&[&*values, value], -2);
        }
        layers[layer].clone()
    }
}

/// A loop of greedy generation without gradients: `model(tokens, past_key_values=cache, logits_to_keep=1)`, from a prompt on, until
/// there are so many new tokens. Nothing of a sampler's own.
pub(super) fn generated(
    task: &Task<'_>,
    tracer: Tracer,
    [prompt, new_tokens]: [u64; 2],
    forward: impl Fn(&Tensor, &Cache) -> Tensor,
    lm_head: &Linear,
) -> Result<Graph, Invalid> {
    let cache = Cache::default();
    let prompt = ids(&tracer, "input_ids", prompt);
    let step = |tokens: &Tensor| {
        let outputs = forward(tokens, &cache);
        let count = tokens.length(1);
        cache.advance(count);
        let last = i64::try_from(count).unwrap_or(i64::MAX) - 1;
        let logits = lm_head.forward((&outputs).slice_from(1, last));
        logits.and_drop(outputs)
    };
    let next = |logits: &Tensor| logits.select(1, -1).argmax(-1).unsqueeze(1);
    let mut logits = step(&prompt);
    let mut tokens = next(&logits);
    for _ in 1..new_tokens {
        logits = step(&tokens);
        tokens = next(&logits);
    }
    drop(logits);
    cache.layers.take().into_iter().for_each(drop);
    let mut graph = task.finish(tracer, &tokens)?;
    // All of it runs: nothing in it is a loss.
    graph.prediction = graph.loss;
    Ok(graph)
}
