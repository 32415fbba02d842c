//! The two pools that requests are served from.

use super::free_set::FreeSet;
use super::size::SMALL_MAX;
use crate::units::Bytes;

/// Which pool a block, and with it its whole segment, belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Rounded sizes up to 1 MiB, cut from segments of 2 MiB.
    Small,
    /// Everything above.
    Large,
}

impl PoolKind {
    /// The pool that serves blocks of a rounded size.
    #[must_use]
    pub fn serving(rounded: Bytes) -> PoolKind {
        if rounded <= SMALL_MAX {
            PoolKind::Small
        } else {
            PoolKind::Large
        }
    }

    /// Whether what is left of a block goes back to the pool, or along with the allocation.
    ///
    /// The asymmetry is PyTorch's: the large pool keeps no remainder of 1 MiB or less, so a cached
    /// 20 MiB block can serve 19 MiB and count as 20 MiB allocated.
    pub(super) fn splits_off(self, remainder: Bytes) -> bool {
        match self {
            PoolKind::Small => remainder >= super::size::MIN_BLOCK,
            PoolKind::Large => remainder > SMALL_MAX,
        }
    }
}

/// The free blocks of both pools.
#[derive(Debug, Clone, Default)]
pub(super) struct Pools {
    small: FreeSet,
    large: FreeSet,
}

impl Pools {
    pub(super) fn free(&self, kind: PoolKind) -> &FreeSet {
        match kind {
            PoolKind::Small => &self.small,
            PoolKind::Large => &self.large,
        }
    }

    pub(super) fn free_mut(&mut self, kind: PoolKind) -> &mut FreeSet {
        match kind {
            PoolKind::Small => &mut self.small,
            PoolKind::Large => &mut self.large,
        }
    }

    pub(super) fn clear(&mut self) {
        self.small.clear();
        self.large.clear();
    }
}
