//! How the allocator behaves: what a `PYTORCH_CUDA_ALLOC_CONF` says. See Note [Settings].

use std::fmt;

use super::divisions::Divisions;
use crate::alloc::pool::PoolKind;
use crate::alloc::size::{
    LARGE_SEGMENT, MIN_BLOCK, SMALL_MAX, SMALL_SEGMENT, limit_of_fraction, round_size,
    segment_size_with,
};
use crate::units::Bytes;

/// A block is never too large to be split. PyTorch's default.
const UNLIMITED: Bytes = Bytes(u64::MAX);

/// How the allocator behaves. The default is PyTorch's, with the variable unset.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The text as it was given, without white space.
    pub(in crate::alloc) text: String,
    /// `large_segment_size_mb`.
    pub(in crate::alloc) large_segment: Bytes,
    /// `max_split_size_mb`: requests from here on get segments that are never split.
    pub(in crate::alloc) max_split: Bytes,
    /// `max_non_split_rounding_mb`: how much too large a cached block may be for one of those.
    pub(in crate::alloc) non_split_slack: Bytes,
    /// `garbage_collection_threshold`: a fraction of the limit, zero for never.
    pub(in crate::alloc) collection_threshold: f64,
    /// `roundup_power2_divisions`, where they make a difference.
    pub(in crate::alloc) divisions: Option<Box<Divisions>>,
    /// `expandable_segments`.
    pub(in crate::alloc) expandable: bool,
    /// `per_process_memory_fraction`.
    pub(in crate::alloc) fraction: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            text: String::new(),
            large_segment: LARGE_SEGMENT,
            max_split: UNLIMITED,
            non_split_slack: LARGE_SEGMENT,
            collection_threshold: 0.0,
            divisions: None,
            expandable: false,
            fraction: 1.0,
        }
    }
}

impl Settings {
    /// What may be reserved on a device of `total` bytes by `per_process_memory_fraction`, or `None` for
    /// no limit. A limit set in any other way takes its place.
    pub fn limit(&self, total: Bytes) -> Option<Bytes> {
        limit_of_fraction(self.fraction, total)
    }

    /// The size of the block that a request needs.
    ///
    /// `requested` must be below 2^60: [`crate::alloc::CachingAllocator::malloc`] refuses more.
    #[inline]
    pub fn round_size(&self, requested: Bytes) -> Bytes {
        if let Some(divisions) = &self.divisions
            && requested >= MIN_BLOCK
            && let Some(rounded) = divisions.round(requested)
        {
            return rounded;
        }
        round_size(requested)
    }

    /// The size of the segment that would be taken for a block of `rounded` bytes. What a limit is
    /// compared with, also where expandable segments map less.
    #[inline]
    pub fn segment_size(&self, rounded: Bytes) -> Bytes {
        segment_size_with(rounded, self.large_segment)
    }

    /// Whether requests that need memory get it in expandable segments.
    #[inline]
    pub fn expandable(&self) -> bool {
        self.expandable
    }

    /// The size from which blocks are never split; `None` for all are.
    pub fn max_split(&self) -> Option<Bytes> {
        (self.max_split != UNLIMITED).then_some(self.max_split)
    }

    /// What `reserved` has to exceed for a garbage collection under a limit; `None` for never.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "PyTorch truncates the product to an integer; it is below the limit"
    )]
    #[inline]
    pub(in crate::alloc) fn collection_threshold(&self, limit: Bytes) -> Option<Bytes> {
        let threshold = self.collection_threshold;
        (threshold > 0.0).then_some(Bytes((threshold * limit.0 as f64) as u64))
    }

    /// What an expandable segment of a pool grows by.
    pub(in crate::alloc) fn unit(&self, pool: PoolKind) -> Bytes {
        match pool {
            PoolKind::Small => SMALL_SEGMENT,
            PoolKind::Large => self.large_segment,
        }
    }

    /// Whether a block or segment is too large to be split.
    #[inline]
    pub(in crate::alloc) fn is_oversize(&self, size: Bytes) -> bool {
        size >= self.max_split
    }

    /// Whether a free block that would hold a request is kept for a larger one.
    #[inline]
    pub(in crate::alloc) fn spares(&self, block: Bytes, rounded: Bytes) -> bool {
        if self.is_oversize(rounded) {
            block.0 >= rounded.0.saturating_add(self.non_split_slack.0)
        } else {
            self.is_oversize(block)
        }
    }

    /// Whether what is left of a block goes back to the pool, or along with the allocation.
    ///
    /// The asymmetry is PyTorch's: the large pool keeps no remainder of 1 MiB or less, so a cached
    /// 20 MiB block can serve 19 MiB and count as 20 MiB allocated.
    #[inline]
    pub(in crate::alloc) fn splits(
        &self,
        pool: PoolKind,
        rounded: Bytes,
        remainder: Bytes,
    ) -> bool {
        if pool == PoolKind::Small || self.expandable {
            remainder >= MIN_BLOCK
        } else {
            !self.is_oversize(rounded) && remainder > SMALL_MAX
        }
    }
}

impl fmt::Display for Settings {
    /// Writes the text that the settings were read from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
