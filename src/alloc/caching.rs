//! Requests in, blocks out: the policy of PyTorch's `DeviceCachingAllocator`.

use super::block::{Block, BlockId, Blocks, State};
use super::config::Settings;
use super::free_set::FreeBlock;
use super::pool::{PoolKind, Pools};
use super::segment::{Address, SegmentSource};
use super::size::{ABSURD, round_size, segment_size};
use super::snapshot::Snapshot;
use super::stats::Stats;
use super::trace::{Event, Observer};
use crate::units::Bytes;

/// Who said no to the last attempt to take a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The segment would have gone past the limit, so the source was not asked.
    Limit,
    /// The source had no room.
    Source,
    /// The request was beyond 2^60 bytes. PyTorch does not count these among its `num_ooms`.
    Absurd,
}

/// A request that could not be served even after everything cached had been given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no room for {requested}: {allocated} allocated, {reserved} reserved")]
pub struct OutOfMemory {
    /// What the caller asked for.
    pub requested: Bytes,
    /// The block it needed. What PyTorch's trace shows for an `oom`.
    pub rounded: Bytes,
    /// The segment it needed. What PyTorch's message says it tried to allocate.
    pub segment: Bytes,
    /// What the caller's blocks hold.
    pub allocated: Bytes,
    /// What is held from the source, with nothing more to give back.
    pub reserved: Bytes,
    /// Who refused.
    pub refusal: Refusal,
}

/// Which attempt of the ladder in [`CachingAllocator::malloc`] a growth belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    AfterRelease,
}

/// PyTorch's caching allocator for one device and one stream.
///
/// Dropping it does not give its segments back; [`CachingAllocator::reset`] does.
#[derive(Debug, Clone)]
pub struct CachingAllocator<S, O = ()> {
    source: S,
    observer: O,
    settings: Settings,
    /// What `set_per_process_memory_fraction` allows to be reserved. Compared with whole segments.
    limit: Option<Bytes>,
    /// Every block of every segment; neighbours are linked, and no two neighbours are free.
    blocks: Blocks,
    /// The free ones among `blocks`, in the pool that their segment was taken for.
    pools: Pools,
    /// The sum of the segments. PyTorch's `total_allocated_memory`.
    reserved: Bytes,
    stats: Stats,
}

impl<S: SegmentSource> CachingAllocator<S> {
    /// An allocator that holds nothing yet. `limit` bounds what it may reserve.
    pub fn new(source: S, settings: Settings, limit: Option<Bytes>) -> Self {
        Self::observed(source, settings, limit, ())
    }
}

impl<S: SegmentSource, O: Observer> CachingAllocator<S, O> {
    /// An allocator that tells `observer` of every event.
    pub fn observed(source: S, settings: Settings, limit: Option<Bytes>, observer: O) -> Self {
        CachingAllocator {
            source,
            observer,
            settings,
            limit,
            blocks: Blocks::default(),
            pools: Pools::default(),
            reserved: Bytes::ZERO,
            stats: Stats::default(),
        }
    }

    /// Finds or makes a block of at least `requested` bytes. See Note [Ladder].
    ///
    /// Must not be called for zero bytes: PyTorch's tensors of no elements never reach its allocator.
    pub fn malloc(&mut self, requested: Bytes) -> Result<BlockId, OutOfMemory> {
        debug_assert!(requested > Bytes::ZERO, "empty tensors make no request");
        if requested >= ABSURD {
            return Err(self.refused(requested, requested, Refusal::Absurd));
        }
        let rounded = round_size(requested);
        let kind = PoolKind::serving(rounded);
        let found = match self.take_free(kind, rounded) {
            Some(id) => id,
            None => match self.grow_or_release(kind, segment_size(rounded)) {
                Ok(id) => id,
                Err(refusal) => {
                    self.observer.record(Event::OutOfMemory { rounded });
                    self.stats.num_ooms += 1;
                    return Err(self.refused(requested, rounded, refusal));
                }
            },
        };
        Ok(self.hand_out(found, kind, requested, rounded))
    }

    /// Where a block starts.
    pub fn address(&self, id: BlockId) -> Address {
        self.live(id).address
    }

    /// The size of a block: the request rounded up, and what was too little to split off.
    pub fn size(&self, id: BlockId) -> Bytes {
        self.live(id).size
    }

    /// Takes a block back and merges it with its free neighbours. Nothing returns to the source.
    pub fn free(&mut self, id: BlockId) {
        let Block {
            address,
            size,
            requested,
            pool,
            prev,
            next,
            ..
        } = *self.live(id);
        self.observer
            .record(Event::FreeRequested { address, requested });
        self.observer
            .record(Event::FreeCompleted { address, requested });

        // PyTorch counts the free neighbours that vanish and the block that results as one change.
        let (mut vanished, mut vanished_bytes) = (0, 0);
        for neighbour in [prev, next].into_iter().flatten() {
            let Block {
                state,
                size,
                address,
                ..
            } = self.blocks[neighbour];
            if state == State::Free {
                self.pools.free_mut(pool).remove(size, address);
                self.blocks.absorb(id, neighbour);
                vanished += 1;
                vanished_bytes += size.0;
            }
        }
        let block = &mut self.blocks[id];
        block.state = State::Free;
        let (split, split_bytes) = if block.is_split() {
            (1, block.size.0)
        } else {
            (0, 0)
        };
        self.pools.free_mut(pool).insert(FreeBlock {
            size: block.size,
            address: block.address,
            id,
        });

        self.stats.update(pool, |stats| {
            stats.allocation.decrease(1);
            stats.allocated_bytes.decrease(size.0);
            stats.active.decrease(1);
            stats.active_bytes.decrease(size.0);
            stats.requested_bytes.decrease(requested.0);
            stats.inactive_split.change(split, vanished);
            stats
                .inactive_split_bytes
                .change(split_bytes, vanished_bytes);
        });
    }

    /// Gives every segment without a live block back to the source, like `torch.cuda.empty_cache`.
    pub fn empty_cache(&mut self) {
        self.stats.num_sync_all_streams += 1;
        for kind in [PoolKind::Large, PoolKind::Small] {
            let free = self.pools.free(kind).iter();
            let whole: Vec<FreeBlock> = free
                .filter(|free| !self.blocks[free.id].is_split())
                .collect();
            for free in whole {
                self.release(kind, free);
            }
        }
    }

    /// The statistics so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Sets every peak to the current value, like `torch.cuda.reset_peak_memory_stats`.
    pub fn reset_peaks(&mut self) {
        self.stats.reset_peaks();
    }

    /// What may be reserved.
    pub fn limit(&self) -> Option<Bytes> {
        self.limit
    }

    /// Changes what may be reserved from now on. As in PyTorch, nothing is given back for it.
    pub fn set_limit(&mut self, limit: Option<Bytes>) {
        self.limit = limit;
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where the segments come from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Who is told of the events.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// Gives all segments back, live blocks or not, and forgets everything, ids included. Keeps its
    /// room, so that the next of many simulations starts without allocating. Not an event.
    pub fn reset(&mut self) {
        for head in self.blocks.heads() {
            let size = self.blocks.chain(head).map(|block| block.size).sum();
            self.source.give_back(self.blocks[head].address, size);
        }
        self.blocks.clear();
        self.pools.clear();
        self.reserved = Bytes::ZERO;
        self.stats = Stats::default();
    }

    /// All segments and their blocks, in the order of their addresses.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.blocks)
    }

    fn live(&self, id: BlockId) -> &Block {
        let block = &self.blocks[id];
        assert!(
            block.state == State::Allocated,
            "a block is used only between its malloc and its free: {id:?} is {:?}",
            block.state
        );
        block
    }

    /// PyTorch's `get_free_block`. One candidate: the best fit.
    fn take_free(&mut self, kind: PoolKind, rounded: Bytes) -> Option<BlockId> {
        let free = self.pools.free_mut(kind);
        let found = free.best_fit(rounded)?;
        free.remove(found.size, found.address);
        Some(found.id)
    }

    fn grow_or_release(&mut self, kind: PoolKind, segment: Bytes) -> Result<BlockId, Refusal> {
        self.grow(kind, segment, Attempt::First).or_else(|_| {
            self.empty_cache();
            // Even when nothing could be released: PyTorch asks again, and counts the retry.
            self.grow(kind, segment, Attempt::AfterRelease)
        })
    }

    /// PyTorch's `alloc_block`: a segment of its own block, which is not in the free set yet.
    fn grow(
        &mut self,
        kind: PoolKind,
        segment: Bytes,
        attempt: Attempt,
    ) -> Result<BlockId, Refusal> {
        if attempt == Attempt::AfterRelease {
            self.stats.num_alloc_retries += 1;
        }
        if self
            .limit
            .is_some_and(|limit| self.reserved + segment > limit)
        {
            return Err(Refusal::Limit);
        }
        let address = self.source.take(segment).map_err(|_| Refusal::Source)?;
        self.reserved += segment;
        self.stats.num_device_alloc += 1;
        self.stats.update(kind, |stats| {
            stats.segment.increase(1);
            stats.reserved_bytes.increase(segment.0);
        });
        self.observer.record(Event::SegmentAlloc {
            address,
            size: segment,
        });
        Ok(self.blocks.add(Block {
            address,
            size: segment,
            requested: Bytes::ZERO,
            prev: None,
            next: None,
            pool: kind,
            state: State::Free,
        }))
    }

    /// Splits a block that was taken out of the free set, or just came from the source, and marks what
    /// the caller gets. PyTorch's `alloc_found_block`.
    fn hand_out(
        &mut self,
        found: BlockId,
        kind: PoolKind,
        requested: Bytes,
        rounded: Bytes,
    ) -> BlockId {
        let Block { size, .. } = self.blocks[found];
        let was_split = self.blocks[found].is_split();
        let remainder = size - rounded;
        let splits = kind.splits_off(remainder);
        let id = if splits {
            let front = self.blocks.split_front(found, rounded);
            self.pools.free_mut(kind).insert(FreeBlock {
                size: remainder,
                address: self.blocks[found].address,
                id: found,
            });
            front
        } else {
            found
        };
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = requested;
        let (address, size) = (block.address, block.size);
        self.observer.record(Event::Alloc { address, requested });
        self.stats.update(kind, |stats| {
            stats.allocation.increase(1);
            stats.allocated_bytes.increase(size.0);
            stats.active.increase(1);
            stats.active_bytes.increase(size.0);
            stats.requested_bytes.increase(requested.0);
            match (splits, was_split) {
                (true, true) => stats.inactive_split_bytes.decrease(size.0),
                (true, false) => {
                    stats.inactive_split.increase(1);
                    stats.inactive_split_bytes.increase(remainder.0);
                }
                (false, true) => {
                    stats.inactive_split.decrease(1);
                    stats.inactive_split_bytes.decrease(size.0);
                }
                (false, false) => {}
            }
        });
        id
    }

    /// Gives a segment that is one free block back to the source. PyTorch's `release_block`.
    fn release(&mut self, kind: PoolKind, free: FreeBlock) {
        let FreeBlock { size, address, id } = free;
        self.observer.record(Event::SegmentFree { address, size });
        self.pools.free_mut(kind).remove(size, address);
        self.blocks.remove(id);
        self.source.give_back(address, size);
        self.reserved -= size;
        self.stats.num_device_free += 1;
        self.stats.update(kind, |stats| {
            stats.segment.decrease(1);
            stats.reserved_bytes.decrease(size.0);
        });
    }

    fn refused(&self, requested: Bytes, rounded: Bytes, refusal: Refusal) -> OutOfMemory {
        OutOfMemory {
            requested,
            rounded,
            segment: match refusal {
                Refusal::Absurd => requested,
                Refusal::Limit | Refusal::Source => segment_size(rounded),
            },
            allocated: self.stats.allocated(),
            reserved: self.reserved,
            refusal,
        }
    }
}
