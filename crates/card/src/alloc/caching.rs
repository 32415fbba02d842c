//! Requests in, blocks out: the policy of PyTorch's `DeviceCachingAllocator`.

use super::block::{Block, BlockId, Blocks, State};
use super::expandable::Reservations;
use super::free_set::FreeBlock;
use super::history::snapshot::Snapshot;
use super::history::stats::Stats;
use super::history::trace::{Event, Observer, SegmentAction};
use super::memory::segment::{Address, SegmentSource};
use super::pool::{PoolKey, PoolKind, Pools};
use super::settings::config::Settings;
use super::size::ABSURD;
use super::streams::{Stream, StreamIndex, Streams, Waiting};
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

/// PyTorch's caching allocator for one device.
///
/// Dropping it does not give its segments back; [`CachingAllocator::reset`] does.
#[derive(Debug, Clone)]
pub struct CachingAllocator<S, O = ()> {
    pub(super) source: S,
    pub(super) observer: O,
    pub(super) settings: Settings,
    /// What `set_per_process_memory_fraction` allows to be reserved. Compared with whole segments.
    pub(super) limit: Option<Bytes>,
    /// Every block of every segment; neighbours are linked, and no two neighbours are both free or both
    /// unmapped.
    pub(super) blocks: Blocks,
    /// The free and the unmapped ones among `blocks`, at home in the pool and stream of their segment.
    pub(super) pools: Pools,
    /// The streams that have a home in `pools`.
    pub(super) streams: Streams,
    /// The live blocks that other streams use, and the freed ones that wait for them.
    pub(super) waiting: Waiting,
    /// The expandable segments.
    pub(super) reservations: Reservations,
    /// The sum of the segments and of what is mapped. PyTorch's `total_allocated_memory`.
    pub(super) reserved: Bytes,
    pub(super) stats: Stats,
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
        let mut allocator = CachingAllocator {
            source,
            observer,
            settings,
            limit,
            blocks: Blocks::default(),
            pools: Pools::default(),
            streams: Streams::default(),
            waiting: Waiting::default(),
            reservations: Reservations::default(),
            reserved: Bytes::ZERO,
            stats: Stats::default(),
        };
        allocator.stats = allocator.new_stats();
        allocator
    }

    /// Finds or makes a block of at least `requested` bytes for the default stream. See Note [Ladder].
    ///
    /// Must not be called for zero bytes: PyTorch's tensors of no elements never reach its allocator.
    pub fn malloc(&mut self, requested: Bytes) -> Result<BlockId, OutOfMemory> {
        self.serve(requested, StreamIndex::DEFAULT)
    }

    /// The same for any stream. Streams never share free blocks.
    pub fn malloc_on(&mut self, stream: Stream, requested: Bytes) -> Result<BlockId, OutOfMemory> {
        let index = self.stream_index(stream);
        self.serve(requested, index)
    }

    fn serve(&mut self, requested: Bytes, stream: StreamIndex) -> Result<BlockId, OutOfMemory> {
        debug_assert!(requested > Bytes::ZERO, "empty tensors make no request");
        if requested >= ABSURD {
            return Err(self.refused(requested, requested, Refusal::Absurd));
        }
        self.complete_passed();
        let rounded = self.settings.round_size(requested);
        let pool = PoolKind::serving(rounded);
        let home = PoolKey { stream, pool };
        let found = match self.take_free(home, rounded) {
            Some(id) => id,
            None => match self.grow_or_release(home, rounded) {
                Ok(id) => id,
                Err(refusal) => {
                    self.observer.record(Event::OutOfMemory { rounded });
                    self.stats.num_ooms += 1;
                    return Err(self.refused(requested, rounded, refusal));
                }
            },
        };
        Ok(self.hand_out(found, requested, rounded))
    }

    /// Where a block starts.
    pub fn address(&self, id: BlockId) -> Address {
        self.live(id).address
    }

    /// The size of a block: the request rounded up, and what was too little to split off.
    pub fn size(&self, id: BlockId) -> Bytes {
        self.live(id).size
    }

    /// The stream that a block was asked for on.
    pub fn stream(&self, id: BlockId) -> Stream {
        self.streams.of(self.live(id).home.stream)
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

    /// The settings for requests from now on.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings for requests from now on, as PyTorch can at run time; see
    /// [`Settings::updated`]. What was allocated stays as it is.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Where the segments come from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Who is told of the events.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// All segments and their blocks, in the order of their addresses.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.blocks, &self.streams)
    }

    pub(super) fn live(&self, id: BlockId) -> &Block {
        let block = &self.blocks[id];
        assert!(
            block.state == State::Allocated,
            "a block is used only between its malloc and its free: {id:?} is {:?}",
            block.state
        );
        block
    }

    pub(super) fn new_stats(&self) -> Stats {
        Stats {
            max_split_size: self.settings.max_split(),
            ..Stats::default()
        }
    }

    /// Puts a block into the free set, as new to the garbage collection as can be.
    pub(super) fn put_free(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        let Block { size, address, .. } = *block;
        block.state = State::Free;
        block.free_since = self.pools.pool(block.home.pool).searches;
        let own = self.pools.shelf_mut(block.home);
        own.free.insert(FreeBlock { size, address, id });
    }

    pub(super) fn remove_free(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let own = self.pools.shelf_mut(block.home);
        own.free.remove(block.size, block.address);
    }

    /// PyTorch's `get_free_block`. One candidate: the best fit.
    fn take_free(&mut self, home: PoolKey, rounded: Bytes) -> Option<BlockId> {
        if self.collects_above().is_some() {
            self.pools.pool_mut(home.pool).searches += 1;
        }
        let (best, place) = self.pools.stream_pool(home).free.find(rounded)?;
        let found = if self.is_expandable(best.id) {
            self.candidate_past(best, home)?
        } else {
            best
        };
        if self.settings.spares(found.size, rounded) {
            return None;
        }
        let free = &mut self.pools.shelf_mut(home).free;
        if found == best {
            free.remove_at(best, place);
        } else {
            free.remove(found.size, found.address);
        }
        Some(found.id)
    }

    /// The candidate when the best fit lies in an expandable segment. With the setting on, PyTorch
    /// prefers blocks that cannot grow; with it off, only classic blocks serve.
    fn candidate_past(&self, best: FreeBlock, home: PoolKey) -> Option<FreeBlock> {
        let from_best = self.pools.stream_pool(home).free.iter_from(best.size);
        let mut others = from_best.skip_while(|block| block.address != best.address);
        others.next();
        if !self.settings.expandable() {
            return others.find(|block| !self.is_expandable(block.id));
        }
        let mut chosen = best;
        for other in others {
            if !self.is_expandable(chosen.id) || self.potential(other) >= self.potential(chosen) {
                break;
            }
            chosen = other;
        }
        Some(chosen)
    }

    /// What a free block could grow to where it is.
    fn potential(&self, free: FreeBlock) -> Bytes {
        let next = self.blocks[free.id].next.map(|next| &self.blocks[next]);
        let unmapped = next.filter(|next| next.state == State::Unmapped);
        free.size + unmapped.map_or(Bytes::ZERO, |next| next.size)
    }

    fn is_expandable(&self, id: BlockId) -> bool {
        self.blocks[id].reservation.is_some()
    }

    fn grow_or_release(&mut self, home: PoolKey, rounded: Bytes) -> Result<BlockId, Refusal> {
        self.collect_garbage();
        self.grow(home, rounded, Attempt::First)
            .or_else(|refusal| {
                if self.release_oversize(home, rounded) {
                    self.grow(home, rounded, Attempt::First)
                } else {
                    Err(refusal)
                }
            })
            .or_else(|_| {
                self.empty_cache();
                // Even when nothing could be released: PyTorch asks again, and counts the retry.
                self.grow(home, rounded, Attempt::AfterRelease)
            })
    }

    /// PyTorch's `alloc_block`: a free block that is large enough and not in the free set.
    fn grow(
        &mut self,
        home: PoolKey,
        rounded: Bytes,
        attempt: Attempt,
    ) -> Result<BlockId, Refusal> {
        if attempt == Attempt::AfterRelease {
            self.stats.num_alloc_retries += 1;
        }
        let size = self.settings.segment_size(rounded);
        // The whole segment counts, also where less would be mapped.
        let beyond = |limit: Bytes| self.reserved.0.saturating_add(size.0) > limit.0;
        if self.limit.is_some_and(beyond) {
            return Err(Refusal::Limit);
        }
        if self.settings.expandable() {
            return self.expand(home, rounded);
        }
        let address = self.source.take(size).map_err(|_| Refusal::Source)?;
        self.reserved += size;
        self.stats.num_device_alloc += 1;
        if self.settings.is_oversize(size) {
            self.stats.oversize_segments.increase(1);
        }
        self.stats.update(home.pool, |stats| {
            stats.segment.increase(1);
            stats.reserved_bytes.increase(size.0);
        });
        self.observer
            .record(Event::Segment(SegmentAction::Alloc, address, size));
        let segment = Block::whole(address, size, home, State::Free);
        Ok(self.blocks.add(segment))
    }

    /// Splits a block that was taken out of the free set, or just came from the source, and marks what
    /// the caller gets. PyTorch's `alloc_found_block`.
    fn hand_out(&mut self, found: BlockId, requested: Bytes, rounded: Bytes) -> BlockId {
        let Block {
            size,
            home: PoolKey { pool, .. },
            ..
        } = self.blocks[found];
        let was_split = self.blocks[found].is_split();
        let remainder = size - rounded;
        let splits = self.settings.splits(pool, rounded, remainder);
        let id = if splits {
            let front = self.blocks.split_front(found, rounded);
            self.put_free(found);
            front
        } else {
            found
        };
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = requested;
        let (address, size) = (block.address, block.size);
        let expandable = block.reservation.is_some();
        self.observer.record(Event::Alloc { address, requested });
        if self.settings.is_oversize(size) {
            self.stats.oversize_allocations.increase(1);
        }
        self.stats.update(pool, |stats| {
            stats.allocation.increase(1);
            stats.allocated_bytes.increase(size.0);
            stats.active.increase(1);
            stats.active_bytes.increase(size.0);
            stats.requested_bytes.increase(requested.0);
            match (splits, was_split) {
                _ if expandable => {}
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

    fn refused(&self, requested: Bytes, rounded: Bytes, refusal: Refusal) -> OutOfMemory {
        OutOfMemory {
            requested,
            rounded,
            segment: match refusal {
                Refusal::Absurd => requested,
                Refusal::Limit | Refusal::Source => self.settings.segment_size(rounded),
            },
            allocated: self.stats.allocated(),
            reserved: self.reserved,
            refusal,
        }
    }
}
