//! The two pools that requests are served from, for each stream apart.

use super::block::BlockId;
use super::free_set::FreeSet;
use super::memory::segment::Address;
use super::size::SMALL_MAX;
use super::streams::StreamIndex;
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
    #[inline]
    pub fn serving(rounded: Bytes) -> PoolKind {
        if rounded <= SMALL_MAX {
            PoolKind::Small
        } else {
            PoolKind::Large
        }
    }
}

/// The pool and the stream of a segment. Blocks never move to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolKey {
    pub(super) stream: StreamIndex,
    pub(super) pool: PoolKind,
}

/// What one stream has in one pool.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamPool {
    /// Mapped, not allocated, not waiting for any stream.
    pub(super) free: FreeSet,
    /// Parts of expandable segments without memory behind them, by address.
    pub(super) unmapped: Vec<(Address, BlockId)>,
}

impl StreamPool {
    pub(super) fn insert_unmapped(&mut self, address: Address, id: BlockId) {
        let at = self.unmapped.partition_point(|(other, _)| *other < address);
        self.unmapped.insert(at, (address, id));
    }

    pub(super) fn remove_unmapped(&mut self, address: Address) {
        let at = self.unmapped.binary_search_by_key(&address, |(at, _)| *at);
        self.unmapped
            .remove(at.expect("every unmapped block is among those of its pool"));
    }
}

/// One of the two pools. PyTorch's `BlockPool`.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    /// By the index of the stream.
    stream_pools: Vec<StreamPool>,
    /// How often a free block was looked for while garbage could be collected: the pool's clock.
    pub(super) searches: u64,
}

impl Default for Pool {
    fn default() -> Self {
        Pool {
            stream_pools: vec![StreamPool::default()],
            searches: 0,
        }
    }
}

/// Both pools.
#[derive(Debug, Clone, Default)]
pub(super) struct Pools {
    small: Pool,
    large: Pool,
}

impl Pools {
    #[inline]
    pub(super) fn pool(&self, kind: PoolKind) -> &Pool {
        match kind {
            PoolKind::Small => &self.small,
            PoolKind::Large => &self.large,
        }
    }

    #[inline]
    pub(super) fn pool_mut(&mut self, kind: PoolKind) -> &mut Pool {
        match kind {
            PoolKind::Small => &mut self.small,
            PoolKind::Large => &mut self.large,
        }
    }

    #[inline]
    pub(super) fn stream_pool(&self, home: PoolKey) -> &StreamPool {
        &self.pool(home.pool).stream_pools[home.stream.index()]
    }

    #[inline]
    pub(super) fn shelf_mut(&mut self, home: PoolKey) -> &mut StreamPool {
        &mut self.pool_mut(home.pool).stream_pools[home.stream.index()]
    }

    /// Makes room for the blocks of one more stream.
    pub(super) fn add_stream(&mut self) {
        for pool in [&mut self.small, &mut self.large] {
            pool.stream_pools.push(StreamPool::default());
        }
    }

    /// Forgets all blocks and keeps the room for them.
    pub(super) fn clear(&mut self) {
        for pool in [&mut self.small, &mut self.large] {
            pool.searches = 0;
            for shelf in &mut pool.stream_pools {
                shelf.free.clear();
                shelf.unmapped.clear();
            }
        }
    }
}
