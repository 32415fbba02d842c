//! How the next token is chosen: `generation/logits_process.py`, and the names of `_sample()`.

use crate::Generation;
use crate::huggingface::prelude::*;

/// Chooses tokens, and holds what Python's names hold until the next one.
pub(super) struct Sampler<'a> {
    how: &'a Generation,
    next_token_logits: Option<Tensor>,
    next_token_scores: Option<Tensor>,
    probs: Option<Tensor>,
    next_tokens: Option<Tensor>,
}

impl<'a> Sampler<'a> {
    pub(super) fn new(how: &'a Generation) -> Sampler<'a> {
        Sampler {
            how,
            next_token_logits: None,
            next_token_scores: None,
            probs: None,
            next_tokens: None,
        }
    }

    /// The next token of each text, from logits of its last.
    pub(super) fn next(&mut self, logits: &Tensor) -> Tensor {
        let logits = last_in_float32(logits);
        self.next_token_logits = Some(logits.clone());
        let scores = self.processed(logits);
        self.next_token_scores = Some(scores.clone());
        let tokens = if self.how.sampling.is_some() {
            let probs = scores.softmax(-1, None);
            self.probs = Some(probs.clone());
            probs.multinomial(1).squeeze(1)
        } else {
            scores.argmax(-1)
        };
        self.next_tokens = None;
        tokens
    }

    /// Holds these tokens until there are others.
    pub(super) fn keep(&mut self, tokens: Tensor) {
        self.next_tokens = Some(tokens);
    }

    /// `LogitsProcessorList`
    #[expect(clippy::float_cmp, reason = "exactly 1 leaves out the processor")]
    fn processed(&self, mut scores: Tensor) -> Tensor {
        let Some(sampling) = &self.how.sampling else {
            return scores;
        };
        if sampling.temperature != 1.0 {
            scores = (&scores).div_number(sampling.temperature);
        }
        if sampling.top_k > 0 {
            scores = of_largest(&scores, sampling.top_k);
        }
        if sampling.top_p < 1.0 {
            scores = of_likeliest(&scores, sampling.top_p);
        }
        scores
    }
}

/// `outputs.logits[:, -1].to(copy=True, dtype=torch.float32)`
fn last_in_float32(logits: &Tensor) -> Tensor {
    let last = logits.select(1, -1);
    if last.dtype().dtype == DType::Float32 {
        last.copied()
    } else {
        last.to(DType::Float32)
    }
}

/// `TopKLogitsWarper`
fn of_largest(scores: &Tensor, count: u64) -> Tensor {
    let count = count.min(scores.length(-1));
    let is_removed = {
        let [values, indices] = scores.largest(count);
        drop(indices);
        let least = values.select(-1, -1).unsqueeze(-1);
        scores.less(least)
    };
    scores.masked_fill(&is_removed, f64::NEG_INFINITY)
}

/// `TopPLogitsWarper`
fn of_likeliest(scores: &Tensor, share: f64) -> Tensor {
    let [sorted_logits, sorted_indices] = scores.sort();
    let cumulative = (&sorted_logits).softmax(-1, None).cumsum(-1);
    let removed = (&cumulative).at_most_number(1.0 - share);
    let last = removed.length(-1).cast_signed() - 1;
    let kept = (&removed).slice_from(1, last);
    kept.change_in_place("aten.fill_.Scalar", &[("value", Argument::Int(0))]);
    drop(kept);
    let is_removed = (&removed).scatter(1, &sorted_indices, &removed);
    let processed = scores.masked_fill(&is_removed, f64::NEG_INFINITY);
    processed.and_drop((
        sorted_logits,
        sorted_indices,
        cumulative,
        removed,
        is_removed,
    ))
}
