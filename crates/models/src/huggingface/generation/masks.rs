//! Masks where keys and values are kept: `masking_utils.py`, for `sdpa`.

use super::Past;
use super::cache::{Cache, Span};
use crate::huggingface::attention::{all_true, create_causal_mask};
use crate::huggingface::prelude::*;

/// What a model's `forward` is given besides tokens.
pub(in crate::huggingface) struct GenerationInputs<'a> {
    pub(in crate::huggingface) cache: &'a Cache,
    /// `position_ids`.
    pub(in crate::huggingface) position_ids: Tensor,
    /// `attention_mask`.
    pub(in crate::huggingface) given: TokenMask,
    /// Whether the prompt is through.
    pub(in crate::huggingface) is_decoding: bool,
}

/// Which tokens may be attended to.
pub(in crate::huggingface) enum TokenMask {
    /// A number for each token.
    Tokens(Tensor),
    /// Masks that `generate()` made itself for layers without and with a window: a cache whose shapes never change asks for them.
    Made([Option<Tensor>; 2]),
}

impl GenerationInputs<'_> {
    /// `create_causal_mask`, or with a window `create_sliding_window_causal_mask`; `None` where attention masks by itself what comes after.
    pub(in crate::huggingface) fn mask(
        &self,
        batch: Extent,
        queries: u64,
        window: Option<u64>,
    ) -> Option<Tensor> {
        match &self.given {
            TokenMask::Made(masks) => masks[usize::from(window.is_some())].clone(),
            TokenMask::Tokens(tokens) => mask_of_tokens(self.cache, tokens, batch, queries, window),
        }
    }
}

impl GenerationInputs<'_> {
    /// Whether `attention_mask` is `None`: `generate()` found that there is nothing to mask.
    pub(in crate::huggingface) fn mask_is_missing(&self) -> bool {
        matches!(&self.given, TokenMask::Made([None, None]))
    }

    /// `create_causal_mask` of a mask that the model made.
    pub(in crate::huggingface) fn mask_of(&self, tokens: &Tensor, ids: &Tensor) -> Option<Tensor> {
        mask_of_tokens(self.cache, tokens, ids.size(0), ids.length(1), None)
    }
}

/// `position_ids`, which a model makes itself where it is given none.
pub(in crate::huggingface) fn positions(past: Past<'_>, tracer: &Tracer, seq_len: u64) -> Tensor {
    if let Some(past) = past {
        return past.position_ids.clone();
    }
    let mut position_ids = tracer.arange(seq_len).add_number(0);
    position_ids = (&position_ids).unsqueeze(0);
    position_ids
}

/// `create_causal_mask` of a model all whose layers attend to all tokens.
pub(in crate::huggingface) fn masked(
    past: Past<'_>,
    position_ids: &Tensor,
    ids: &Tensor,
) -> Option<Tensor> {
    if let Some(past) = past {
        return past.mask(ids.size(0), ids.length(1), None);
    }
    create_causal_mask(position_ids, ids.size(0))
}

/// The same from a number for each token.
pub(super) fn mask_of_tokens(
    cache: &Cache,
    tokens: &Tensor,
    batch: Extent,
    queries: u64,
    window: Option<u64>,
) -> Option<Tensor> {
    let tokens = tokens.to(DType::Bool);
    let span = cache.span(window.is_some(), queries);
    let missing = (span.keys + span.first_key).saturating_sub(tokens.length(1));
    let padding = if missing > 0 {
        (&tokens).pad(&[0, missing.cast_signed()], None)
    } else {
        tokens.clone()
    };
    let may_skip = !(cache.is_static() && queries == 1);
    let mask = if may_skip && is_causal(&padding, &span, queries, window) {
        None
    } else {
        Some(whole(&padding, &span, batch, queries, window))
    };
    drop((padding, tokens));
    mask
}

/// `_ignore_causal_mask_sdpa`, of prompts without padding.
fn is_causal(padding: &Tensor, span: &Span, queries: u64, window: Option<u64>) -> bool {
    let mut padding = padding.clone();
    if padding.length(1) > span.keys {
        let tracer = padding.tracer();
        let indices = tracer
            .arange(span.keys)
            .add_number(span.first_key.cast_signed());
        padding = (&padding).index(&[None, Some(&indices)]);
    }
    if window.is_some_and(|window| span.keys >= window) {
        return false;
    }
    // A static cache has room beyond the prompt, which counts as padding.
    if queries == 1 || span.keys == queries {
        all_true(&padding);
        return true;
    }
    if span.seen == 0 {
        all_true((&padding).slice(1, 0, queries.cast_signed()));
        all_true(
            (&padding)
                .slice_from(1, queries.cast_signed())
                .bitwise_not(),
        );
        return true;
    }
    false
}

/// `sdpa_mask`: truth values of queries and keys.
fn whole(
    padding: &Tensor,
    span: &Span,
    batch: Extent,
    queries: u64,
    window: Option<u64>,
) -> Tensor {
    let tracer = padding.tracer();
    let samples = tracer.arange_of(batch, DType::Int64);
    let heads = tracer.arange(1);
    let query = match &span.counted {
        Some(seen) => tracer.arange(queries).add(seen),
        None => tracer.arange(queries).add_number(span.seen.cast_signed()),
    };
    let key = tracer
        .arange(span.keys)
        .add_number(span.first_key.cast_signed());
    let mut mask = {
        let sample = (&samples).unsqueeze(1).unsqueeze(2).unsqueeze(3);
        let head = (&heads).unsqueeze(0).unsqueeze(2).unsqueeze(3);
        let queries = (&query).unsqueeze(0).unsqueeze(1).unsqueeze(3);
        let keys = (&key).unsqueeze(0).unsqueeze(1).unsqueeze(2);
        let mut result = (&queries).new_ones(&[], DType::Bool);
        let allowed = match window {
            None => (&keys).at_most(&queries),
            Some(window) => near(&queries, &keys, window),
        };
        result = (&result).and(allowed.to_device());
        let attended = padding.index(&[Some(&sample), Some(&keys)]);
        result = (&result).and(attended.to_device());
        result.and_drop((sample, head, queries, keys))
    };
    let sizes = [batch.into(), Size::REST, queries.into(), span.keys.into()];
    mask = (&mask).expand(&sizes);
    mask.and_drop((samples, heads, query, key))
}

/// `sliding_window_causal_mask_function`
fn near(queries: &Tensor, keys: &Tensor, window: u64) -> Tensor {
    let mut result = queries.new_ones(&[], DType::Bool);
    let window = i64::try_from(window).unwrap_or(i64::MAX);
    let is_near = keys.greater(queries.sub_number(window));
    result = (&result).and(is_near.to_device());
    result = (&result).and(keys.at_most(queries).to_device());
    result
}

/// `x[..., -count:].clone()`
pub(super) fn last_copied(x: &Tensor, count: u64) -> Tensor {
    let start = x.length(1).saturating_sub(count).cast_signed();
    x.slice_from(1, start).copied()
}
