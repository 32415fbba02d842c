//! The loop of `generate()`: `generation/utils.py` without beams, and what it asks a model for.

use super::Past;
use super::cache::{Cache, number};
use super::masks::{GenerationInputs, TokenMask, last_copied, mask_of_tokens};
use super::sampling::Sampler;
use crate::Generation;
use crate::huggingface::prelude::*;
use crate::huggingface::text::ids;

/// What a class is like that generates.
pub(in crate::huggingface) struct GenerationTraits {
    /// The window of each layer that has one.
    pub(in crate::huggingface) windows: Vec<Option<u64>>,
    /// Whether its class has `bos_token_id`, `eos_token_id` and `pad_token_id` where the config says none.
    pub(in crate::huggingface) tokens: [bool; 3],
}

impl GenerationTraits {
    /// Those of most: all layers attend to all tokens, and texts have a begin and an end.
    pub(in crate::huggingface) fn plain(layers: u64) -> GenerationTraits {
        let layers = usize::try_from(layers).unwrap_or(usize::MAX);
        GenerationTraits {
            windows: vec![None; layers],
            tokens: [true, true, false],
        }
    }

    /// The only window that there is.
    fn window(&self) -> Option<u64> {
        self.windows.iter().copied().flatten().next()
    }
}

/// `_prepare_special_tokens`.
struct Specials {
    eos: Option<Tensor>,
    pad: Option<Tensor>,
    _bos: Option<Tensor>,
}

impl Specials {
    fn new(
        task: &Task<'_>,
        tracer: &Tracer,
        defaults: [bool; 3],
    ) -> Result<Specials, RequestError> {
        let mut there = defaults;
        for (there, name) in there
            .iter_mut()
            .zip(["bos_token_id", "eos_token_id", "pad_token_id"])
        {
            // `eos_token_id` may be a list.
            let is_list = task.config.has(name) && task.config.counts(name).is_ok();
            let token = if is_list {
                Some(0)
            } else {
                task.config.token(name, there.then_some(0))?
            };
            *there = token.is_some();
        }
        let [bos, eos, pad] = there.map(|is| is.then(|| number(tracer)));
        let eos = eos.map(|eos| eos.unsqueeze(0));
        let pad = match (&eos, pad) {
            (Some(eos), None) => Some(eos.select(0, 0)),
            (_, pad) => pad,
        };
        if let Some(eos) = &eos {
            if let Some(pad) = &pad {
                drop(is_in(eos, pad).any());
            }
            drop(eos.less_than_number(0).any());
        }
        Ok(Specials {
            eos,
            pad,
            _bos: bos,
        })
    }
}

impl Specials {
    /// `StoppingCriteriaList`: whether each text is at its end.
    fn are_done(&self, input_ids: &Tensor) -> Tensor {
        let tracer = input_ids.tracer();
        let full = || tracer.full(&[input_ids.size(0).into()], false, DType::Bool);
        let mut is_done = full();
        is_done = (&is_done).or(full());
        if let Some(eos) = &self.eos {
            let last = last(input_ids);
            let is_eos = is_in(&last, eos).any_of(1);
            is_done = (&is_done).or(is_eos);
        }
        is_done
    }
}

/// `x[..., -1:]`
fn last(x: &Tensor) -> Tensor {
    x.slice_from(1, x.length(1).cast_signed() - 1)
}

/// `torch.isin(x, tokens)` of few tokens.
fn is_in(x: &Tensor, tokens: &Tensor) -> Tensor {
    x.tracer().call(
        "aten.isin.Tensor_Tensor",
        &[
            ("elements", Argument::Tensor(x)),
            ("test_elements", Argument::Tensor(tokens)),
        ],
    )
}

/// The arguments of a model from one step to the next: `model_kwargs`.
struct ModelKwargs {
    attention_mask: Tensor,
    position_ids: Tensor,
}

impl ModelKwargs {
    /// `_prepare_position_ids_for_generation`
    fn new(attention_mask: Tensor) -> ModelKwargs {
        let mut position_ids = (&attention_mask).cumsum(-1).sub_number(1);
        let is_padding = (&attention_mask).equal_to_number(0);
        position_ids = (&position_ids).masked_fill(is_padding, 0);
        ModelKwargs {
            attention_mask,
            position_ids,
        }
    }

    /// `_update_model_kwargs_for_generation`: one token more.
    fn update(&mut self) {
        let tracer = self.attention_mask.tracer();
        let position_ids = self.position_ids.clone();
        let mut next = tracer.arange(1).add(last(&position_ids)).add_number(1);
        next = tracer.cat_of(&[&position_ids, &next], -1);
        self.position_ids = next;
        let rows = [self.attention_mask.size(0).into(), 1.into()];
        let one = (&self.attention_mask).new_ones(&rows, DType::Int64);
        self.attention_mask = tracer.cat([self.attention_mask.clone(), one], -1);
        drop(position_ids);
    }
}

/// What a model's `forward` is called with: `prepare_inputs_for_generation`.
fn prepared<'a>(
    input_ids: &Tensor,
    kept: &ModelKwargs,
    cache: &'a Cache,
    (traits, prompt): (&GenerationTraits, Option<u64>),
) -> (Tensor, GenerationInputs<'a>) {
    let count = prompt.unwrap_or(1);
    let ids = last_copied(input_ids, count);
    let position_ids = if kept.position_ids.length(1) == count {
        kept.position_ids.clone()
    } else {
        last_copied(&kept.position_ids, count)
    };
    let given = if cache.is_static() {
        let mask = |window| mask_of_tokens(cache, &kept.attention_mask, ids.size(0), count, window);
        let has_full = traits.windows.contains(&None);
        let full = has_full.then(|| mask(None)).flatten();
        let window = traits.window();
        TokenMask::Made([full, window.and_then(|window| mask(Some(window)))])
    } else {
        TokenMask::Tokens(kept.attention_mask.clone())
    };
    let past = GenerationInputs {
        cache,
        position_ids,
        given,
        is_decoding: prompt.is_none(),
    };
    (ids, past)
}

/// Most passes through a layer: each is some 40 operations of one graph, of which the largest that are read have 150,000.
const MOST_PASSES: u64 = 4096;

/// Refuses to generate so many tokens that the graph would be too large.
fn check_tokens(generation: &Generation, layers: usize) -> Result<(), RequestError> {
    let tokens = generation.tokens;
    let most = MOST_PASSES / u64::try_from(layers).unwrap_or(u64::MAX).max(1);
    if tokens <= most {
        return Ok(());
    }
    let problem = format!(
        "{tokens} tokens of a model of {layers} layers are more passes than the {MOST_PASSES} that are simulated; ask for at most \
         {most} tokens, after a prompt that is so much longer"
    );
    Err(RequestError::at(generation.at("tokens"), problem))
}

/// `generate(input_ids, attention_mask=..., max_new_tokens=...)` of several prompts without padding, until there are so many new tokens.
/// `forward` is a model's without its `head`.
pub(in crate::huggingface) fn generated(
    task: &Task<'_>,
    tracer: Tracer,
    (generation, traits): (&Generation, &GenerationTraits),
    forward: impl Fn(&Tensor, Past<'_>) -> Tensor,
    head: impl Fn(Tensor) -> Tensor,
) -> Result<Graph, RequestError> {
    check_tokens(generation, traits.windows.len())?;
    let mut input_ids = ids(&tracer, "input_ids", generation.prompt);
    let attention_mask = ids(&tracer, "attention_mask", generation.prompt);
    let specials = Specials::new(task, &tracer, traits.tokens)?;
    if specials.pad.is_some() {
        let last = (&attention_mask).select(1, -1);
        drop(last.equal_to_number(0).any());
    }
    let mut kept = ModelKwargs::new(attention_mask);
    // `generate()` holds them beside `_sample()`.
    let first_positions = kept.position_ids.clone();
    let longest = generation.tokens_read();
    let cache = Cache::new(generation.cache, &traits.windows, longest);
    let logits = |inputs: &(Tensor, GenerationInputs<'_>), count: u64| {
        let outputs = forward(&inputs.0, Some(&inputs.1));
        let last = i64::try_from(count).unwrap_or(i64::MAX) - 1;
        let logits = head((&outputs).slice_from(1, last));
        logits.and_drop(outputs)
    };
    let mut sampler = Sampler::new(generation);
    let mut unfinished = tracer.ones(&[input_ids.size(0).into()], DType::Int64);
    let mut prefilled = {
        let prompt = generation.prompt;
        let inputs = prepared(&input_ids, &kept, &cache, (traits, Some(prompt)));
        Some(logits(&inputs, prompt).and_drop(inputs))
    };
    let mut model_inputs = None;
    let mut has_ended = None;
    for _ in 0..generation.tokens {
        drop(has_ended.take());
        let outputs = prefilled.take().unwrap_or_else(|| {
            let inputs = prepared(&input_ids, &kept, &cache, (traits, None));
            logits(model_inputs.insert(inputs), 1)
        });
        kept.update();
        let mut next_tokens = sampler.next(&outputs);
        if let (Some(_), Some(pad)) = (&specials.eos, &specials.pad) {
            let unfinished_tokens = (&next_tokens).mul(&unfinished);
            let padding = pad.mul((&unfinished).subtracted_from(1));
            next_tokens = unfinished_tokens.add(padding);
        }
        input_ids = tracer.cat([input_ids, (&next_tokens).unsqueeze(1)], -1);
        sampler.keep(next_tokens);
        let is_done = specials.are_done(&input_ids);
        unfinished = (&unfinished).and(is_done.bitwise_not());
        has_ended = Some((&unfinished).maximum_of_all().equal_to_number(0));
        drop(outputs);
    }
    drop((model_inputs, sampler, kept, first_positions, unfinished));
    // What is computed last.
    let last = has_ended.unwrap_or_else(|| input_ids.clone());
    drop((specials, cache, input_ids));
    let mut graph = task.finish(tracer, &last)?;
    // All of it runs: nothing in it is a loss.
    graph.prediction = graph.loss;
    Ok(graph)
}
