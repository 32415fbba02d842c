//! Blocks that come back: at once, or when the streams that use them are done. See Note [Streams].

use super::block::{Block, BlockId, State};
use super::caching::CachingAllocator;
use super::history::trace::{Event, Observer};
use super::memory::segment::SegmentSource;
use super::streams::Stream;
use crate::units::Bytes;

/// How many blocks vanished in a merge, and what they held.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Absorbed {
    blocks: u64,
    bytes: Bytes,
}

impl<S: SegmentSource, O: Observer> CachingAllocator<S, O> {
    /// Takes a block back and merges it with its free neighbours. Nothing returns to the source.
    ///
    /// A block that another stream uses stays as it is until that stream has passed this point.
    pub fn free(&mut self, id: BlockId) {
        let Block {
            address,
            size,
            requested,
            home,
            shared,
            ..
        } = *self.live(id);
        self.stats.update(home.pool, |stats| {
            stats.allocation.decrease(1);
            stats.allocated_bytes.decrease(size.0);
        });
        self.observer
            .record(Event::FreeRequested { address, requested });
        if self.settings.is_oversize(size) {
            self.stats.oversize_allocations.decrease(1);
        }
        if shared {
            let block = &mut self.blocks[id];
            block.state = State::Pending;
            block.shared = false;
            self.waiting.wait(id);
        } else {
            self.complete_free(id);
        }
    }

    /// Notes that a block is used on another stream than its own, like `Tensor.record_stream`: once
    /// freed, it waits for that stream.
    pub fn record_stream(&mut self, id: BlockId, stream: Stream) {
        if stream == self.stream(id) {
            return;
        }
        self.blocks[id].shared = true;
        self.waiting.record(id, stream);
    }

    /// Says that a stream has done everything it was given so far. The blocks that waited for it are free
    /// from the next request on, when PyTorch looks at its events.
    pub fn synchronize(&mut self, stream: Stream) {
        self.waiting.complete(stream);
    }

    /// Completes the frees that no stream holds up any more. PyTorch's `process_events`.
    pub(super) fn complete_passed(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        for id in self.waiting.take_done() {
            self.complete_free(id);
        }
    }

    /// PyTorch's `free_block`.
    fn complete_free(&mut self, id: BlockId) {
        let Block {
            address,
            size,
            requested,
            home,
            ..
        } = self.blocks[id];
        self.observer
            .record(Event::FreeCompleted { address, requested });
        self.blocks[id].state = State::Free;
        let absorbed = self.absorb_neighbours(id);
        self.put_free(id);
        let block = &self.blocks[id];
        let (split, split_bytes) = if block.is_split() {
            (1, block.size.0)
        } else {
            (0, 0)
        };
        let expandable = block.reservation.is_some();
        self.stats.update(home.pool, |stats| {
            stats.active.decrease(1);
            stats.active_bytes.decrease(size.0);
            stats.requested_bytes.decrease(requested.0);
            if !expandable {
                // PyTorch counts the neighbours that vanish and the block that results as one change.
                stats.inactive_split.change(split, absorbed.blocks);
                stats
                    .inactive_split_bytes
                    .change(split_bytes, absorbed.bytes.0);
            }
        });
    }

    /// Merges a free or an unmapped block, which is in no set, with neighbours of the same state.
    /// PyTorch's `try_merge_blocks`.
    pub(super) fn absorb_neighbours(&mut self, id: BlockId) -> Absorbed {
        let Block {
            prev, next, state, ..
        } = self.blocks[id];
        let mut absorbed = Absorbed::default();
        for neighbour in [prev, next].into_iter().flatten() {
            let Block {
                state: theirs,
                size,
                address,
                home,
                ..
            } = self.blocks[neighbour];
            if theirs != state {
                continue;
            }
            let own = self.pools.shelf_mut(home);
            if state == State::Unmapped {
                own.remove_unmapped(address);
            } else {
                own.free.remove(size, address);
            }
            self.blocks.absorb(id, neighbour);
            absorbed.blocks += 1;
            absorbed.bytes += size;
        }
        absorbed
    }
}
