//! Taking over what another allocator held: a recording that starts late starts from there.

use super::block::{Block, BlockId, State};
use super::caching::CachingAllocator;
use super::history::snapshot::{BlockState, BlockView, SegmentView, Snapshot};
use super::history::trace::Observer;
use super::memory::segment::{Reserved, SegmentSource};
use super::pool::PoolKey;
use super::streams::{Stream, StreamIndex};
use crate::units::Bytes;

impl<S: SegmentSource, O: Observer> CachingAllocator<S, O> {
    /// Makes an allocator that holds nothing hold all of `held`, and gives its blocks that are in use, in
    /// the order of their addresses. Those that wait for a stream are as if still allocated.
    ///
    /// Each expandable segment of `held` lies in one of `reserved`, in the same one exactly when it has the
    /// same stream and pool. No observer is told, nor the source; the statistics start from what is held.
    pub fn restore(&mut self, held: &Snapshot, reserved: &[Reserved]) -> Vec<BlockId> {
        let mut live = Vec::new();
        let classic = held
            .segments
            .iter()
            .filter(|segment| !segment.is_expandable);
        for segment in classic {
            let home = self.home(segment);
            let mut row = BlockRun::new(home);
            for block in &segment.blocks {
                row.push(Block::restored(block, home));
            }
            self.restore_row(row, &mut live);
            self.stats
                .update(segment.pool, |stats| stats.segment.increase(1));
            if self.settings.is_oversize(segment.size) {
                self.stats.oversize_segments.increase(1);
            }
        }
        for range in reserved {
            let end = range.address.offset(range.size);
            let inside = |segment: &&SegmentView| {
                segment.is_expandable && (range.address..end).contains(&segment.address)
            };
            let mut runs = held.segments.iter().filter(inside).peekable();
            let Some(first) = runs.peek() else { continue };
            let home = self.home(first);
            let reservation = self.adopt_reservation(home, *range);
            let mut row = BlockRun::new(home);
            let mut at = range.address;
            for run in runs {
                row.push_unmapped(at, Bytes(run.address.0 - at.0));
                for block in &run.blocks {
                    row.push(Block::restored(block, home));
                }
                at = run.address.offset(run.size);
            }
            row.push_unmapped(at, Bytes(end.0 - at.0));
            for block in &mut row.blocks {
                block.reservation = Some(reservation);
            }
            self.restore_row(row, &mut live);
        }
        self.reserved = held.segments.iter().map(|segment| segment.size).sum();
        for segment in &held.segments {
            self.stats.update(segment.pool, |stats| {
                stats.reserved_bytes.increase(segment.size.0);
            });
        }
        live.sort_unstable_by_key(|id| self.blocks[*id].address);
        live
    }

    /// Where the memory comes from, to tell it what is not part of the seam.
    pub fn source_mut(&mut self) -> &mut S {
        &mut self.source
    }

    /// Who is told of the events, to take what was noted.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    fn home(&mut self, segment: &SegmentView) -> PoolKey {
        PoolKey {
            stream: self.stream_index(segment.stream),
            pool: segment.pool,
        }
    }

    pub(super) fn stream_index(&mut self, stream: Stream) -> StreamIndex {
        let known = self.streams.find(stream);
        known.unwrap_or_else(|| {
            self.pools.add_stream();
            self.streams.add(stream)
        })
    }

    /// Adds the blocks of one segment or reservation, linked.
    fn restore_row(&mut self, row: BlockRun, live: &mut Vec<BlockId>) {
        let is_split = row.blocks.len() > 1;
        let mut prev = None;
        for block in row.blocks {
            let id = self.blocks.add(Block { prev, ..block });
            if let Some(prev) = prev {
                self.blocks[prev].next = Some(id);
            }
            prev = Some(id);
            let Block {
                address,
                size,
                requested,
                state,
                ..
            } = block;
            match state {
                State::Allocated => {
                    live.push(id);
                    if self.settings.is_oversize(size) {
                        self.stats.oversize_allocations.increase(1);
                    }
                    self.stats.update(row.home.pool, |stats| {
                        stats.allocation.increase(1);
                        stats.allocated_bytes.increase(size.0);
                        stats.active.increase(1);
                        stats.active_bytes.increase(size.0);
                        stats.requested_bytes.increase(requested.0);
                    });
                }
                State::Unmapped => {
                    let home = self.pools.shelf_mut(row.home);
                    home.insert_unmapped(address, id);
                }
                State::Free | State::Pending | State::Vacant => {
                    self.put_free(id);
                    if is_split && block.reservation.is_none() {
                        self.stats.update(row.home.pool, |stats| {
                            stats.inactive_split.increase(1);
                            stats.inactive_split_bytes.increase(size.0);
                        });
                    }
                }
            }
        }
    }
}

/// The blocks of one segment or reservation, from its start.
struct BlockRun {
    home: PoolKey,
    blocks: Vec<Block>,
}

impl BlockRun {
    fn new(home: PoolKey) -> BlockRun {
        BlockRun {
            home,
            blocks: Vec::new(),
        }
    }

    fn push(&mut self, block: Block) {
        self.blocks.push(block);
    }

    fn push_unmapped(&mut self, address: super::Address, size: Bytes) {
        if size > Bytes::ZERO {
            let unmapped = Block::whole(address, size, self.home, State::Unmapped);
            self.blocks.push(unmapped);
        }
    }
}

impl Block {
    fn restored(view: &BlockView, home: PoolKey) -> Block {
        let state = match view.state {
            BlockState::ActiveAllocated | BlockState::ActivePendingFree => State::Allocated,
            BlockState::Inactive => State::Free,
        };
        Block {
            requested: view.requested.unwrap_or_default(),
            ..Block::whole(view.address, view.size, home, state)
        }
    }
}
