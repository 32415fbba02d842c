//! How cached memory goes back to the source: the garbage collection, and two rungs of Note [Ladder].

use super::block::State;
use super::caching::CachingAllocator;
use super::free_set::FreeBlock;
use super::history::trace::{Event, Observer, SegmentAction};
use super::memory::segment::SegmentSource;
use super::pool::{PoolKey, PoolKind};
use crate::units::Bytes;

impl<S: SegmentSource, O: Observer> CachingAllocator<S, O> {
    /// Gives cached memory back to the source, like `torch.cuda.empty_cache`: every segment without a
    /// live block, and every whole unit of expandable ones. Waits for all streams.
    pub fn empty_cache(&mut self) {
        self.stats.num_sync_all_streams += 1;
        self.waiting.complete_all();
        self.complete_passed();
        for pool in [PoolKind::Large, PoolKind::Small] {
            let (expandable, classic): (Vec<FreeBlock>, Vec<FreeBlock>) = self
                .free_blocks(pool)
                .partition(|free| self.blocks[free.id].reservation.is_some());
            for free in classic {
                if self.is_whole_segment(free) {
                    self.release(free);
                }
            }
            for free in expandable {
                self.unmap(free.id);
            }
        }
    }

    /// The threshold of the garbage collection in bytes; `None` while nothing is collected.
    pub(super) fn collects_above(&self) -> Option<Bytes> {
        let limit = self.limit?;
        self.settings.collection_threshold(limit)
    }

    /// Releases the segments that were not used for longest until enough is free again. PyTorch's
    /// `garbage_collect_cached_blocks`.
    pub(super) fn collect_garbage(&mut self) {
        let Some(threshold) = self.collects_above() else {
            return;
        };
        if self.reserved <= threshold {
            return;
        }
        let target = self.reserved - threshold;
        let now = self.pools.pool(PoolKind::Large).searches;
        let unused = self.free_blocks(PoolKind::Large).filter_map(|free| {
            let block = &self.blocks[free.id];
            (!block.is_split()).then_some((free, now - block.free_since))
        });
        let mut unused: Vec<(FreeBlock, u64)> = unused.collect();
        // Expandable ones weigh in the average age, and are never released here.
        let mut count = unused.len();
        let mut ages: u64 = unused.iter().map(|(_, age)| age).sum();
        unused.retain(|(free, _)| self.is_whole_segment(*free));

        let mut reclaimed = Bytes::ZERO;
        while reclaimed < target && count > 0 {
            let average = ages as f64 / count as f64;
            let is_old = |(_, age): &(FreeBlock, u64)| *age as f64 >= average;
            let (old, young): (Vec<_>, Vec<_>) = unused.into_iter().partition(is_old);
            if old.is_empty() {
                return;
            }
            for (free, age) in old {
                reclaimed += free.size;
                ages -= age;
                count -= 1;
                self.release(free);
            }
            unused = young;
        }
    }

    /// Releases cached oversize segments that one of the size asked for can take the place of. PyTorch's
    /// `release_available_cached_blocks`.
    pub(super) fn release_oversize(&mut self, home: PoolKey, rounded: Bytes) -> bool {
        let Some(max_split) = self.settings.max_split() else {
            return false;
        };
        let needed = rounded.max(max_split);
        let free = &self.pools.stream_pool(home).free;
        if let Some(fit) = free.best_fit(needed)
            && self.is_whole_segment(fit)
        {
            self.release(fit);
            return true;
        }
        // PyTorch would also free a block that is part of a segment here, which a change of settings at
        // run time can bring about; the driver refuses that, or takes live neighbours along.
        let smaller: Vec<FreeBlock> = free
            .iter_from(max_split)
            .take_while(|block| block.size < needed)
            .filter(|block| self.is_whole_segment(*block))
            .collect();
        let mut released = Bytes::ZERO;
        for block in smaller.into_iter().rev() {
            if released >= needed {
                break;
            }
            released += block.size;
            self.release(block);
        }
        released >= needed
    }

    /// Gives a segment that is one free block back to the source. PyTorch's `release_block`.
    fn release(&mut self, free: FreeBlock) {
        let FreeBlock { size, address, id } = free;
        let pool = self.blocks[id].home.pool;
        self.observer
            .record(Event::Segment(SegmentAction::Free, address, size));
        self.remove_free(id);
        self.blocks.remove(id);
        self.source.give_back(address, size);
        self.reserved -= size;
        self.stats.num_device_free += 1;
        if self.settings.is_oversize(size) {
            self.stats.oversize_segments.decrease(1);
        }
        self.stats.update(pool, |stats| {
            stats.segment.decrease(1);
            stats.reserved_bytes.decrease(size.0);
        });
    }

    /// Gives all segments back, live blocks or not, and forgets everything, ids included. Keeps its
    /// room, so that the next of many simulations starts without allocating. Not an event.
    pub fn reset(&mut self) {
        let heads = if self.source.give_back_all(self.reserved) {
            Vec::new()
        } else {
            self.blocks.heads().collect()
        };
        for head in heads {
            let Some(reservation) = self.blocks[head].reservation else {
                let size = self.blocks.chain(head).map(|block| block.size).sum();
                self.source.give_back(self.blocks[head].address, size);
                continue;
            };
            let blocks = self.blocks.chain(head);
            let mapped: Vec<_> = blocks
                .filter(|block| block.state != State::Unmapped)
                .collect();
            for run in mapped.chunk_by(|block, next| block.end() == next.address) {
                let size = run.iter().map(|block| block.size).sum();
                self.source.unmap(run[0].address, size);
            }
            let reserved = self.reservations.remove(reservation);
            self.source.release(reserved);
        }
        self.blocks.clear();
        self.pools.clear();
        self.waiting.clear();
        self.reserved = Bytes::ZERO;
        self.stats = self.new_stats();
    }

    /// The free blocks of a pool in PyTorch's order: by stream, size, address.
    fn free_blocks(&self, pool: PoolKind) -> impl Iterator<Item = FreeBlock> + '_ {
        let streams = self.streams.ordered().iter();
        streams.flat_map(move |stream| {
            let stream = *stream;
            self.pools.stream_pool(PoolKey { stream, pool }).free.iter()
        })
    }

    /// Whether a free block is all of a segment that came whole from the source.
    fn is_whole_segment(&self, free: FreeBlock) -> bool {
        let block = &self.blocks[free.id];
        !block.is_split() && block.reservation.is_none()
    }
}
