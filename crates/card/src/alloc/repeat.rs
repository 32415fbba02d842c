//! Requests that repeat: when the same ones must be answered in the same way, and what they would be counted as.
//!
//! See Note [Repeated requests].

use std::hash::{DefaultHasher, Hash, Hasher};

use super::block::{Block, State};
use super::caching::CachingAllocator;
use super::history::stats::Stats;
use super::history::trace::Observer;
use super::memory::segment::SegmentSource;
use super::pool::PoolKind;

/// What decides how the requests to come are served, in digests, and what was counted until then.
#[derive(Debug, Clone, Copy)]
pub struct Checkpoint {
    /// All blocks: where they are, how large, and whose.
    layout: u64,
    /// The source, and how long blocks have been free; `None` where the source does not tell.
    around: Option<u64>,
    /// The clocks of the pools.
    searches: [u64; 2],
    stats: Stats,
}

impl Checkpoint {
    /// Whether requests that led from `before` to this, and that end as they began, will do nothing new when they are
    /// made again.
    pub fn repeats(&self, before: &Checkpoint) -> bool {
        // What served everything from free blocks asked neither the source nor for the age of a block.
        let is_quiet = self.stats.upheavals() == before.stats.upheavals();
        let is_same = self.around.is_some() && self.around == before.around;
        self.layout == before.layout && (is_quiet || is_same)
    }
}

impl<S: SegmentSource, O: Observer> CachingAllocator<S, O> {
    /// Where the allocator stands. Walks over all blocks. `None` while blocks wait for streams.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        if !self.waiting.is_empty() {
            return None;
        }
        let heads = self.blocks.heads();
        let mut blocks: Vec<&Block> = heads.flat_map(|head| self.blocks.chain(head)).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        let mut layout = DefaultHasher::new();
        let mut ages = DefaultHasher::new();
        for block in blocks {
            self.digest(block, &mut layout, &mut ages);
        }
        let around = self.source.digest().map(|source| {
            (source, ages.finish(), self.reserved).hash(&mut ages);
            ages.finish()
        });
        Some(Checkpoint {
            layout: layout.finish(),
            around,
            searches: self.searches(),
            stats: self.stats,
        })
    }

    fn digest(&self, block: &Block, layout: &mut impl Hasher, ages: &mut impl Hasher) {
        let Block {
            address,
            size,
            requested,
            free_since,
            // Addresses tell the neighbours, except where a segment starts.
            prev,
            next,
            reservation,
            home,
            state,
            shared,
        } = *block;
        let is_first = prev.is_none();
        let is_last = next.is_none();
        let reserved = reservation.map(|_| self.reserved_of(block).address);
        let place = (address, size, is_first, is_last, reserved);
        let home = (home.stream.index(), home.pool);
        (place, home, state as u8, shared).hash(layout);
        match state {
            // What was asked for is stale in all other blocks.
            State::Allocated | State::Pending => requested.hash(layout),
            State::Free if self.collects_above().is_some() => {
                (self.pools.pool(block.home.pool).searches - free_since).hash(ages);
            }
            State::Free | State::Unmapped | State::Vacant => {}
        }
    }

    /// Counts what happened since `before` so many times more, as if the same requests had been made again. It takes
    /// a mark that [repeats](Mark::repeats) `before`.
    pub fn count_again(&mut self, before: &Checkpoint, times: u64) {
        self.stats.count_again(&before.stats, times);
        let now = self.searches();
        for (index, kind) in [PoolKind::Small, PoolKind::Large].into_iter().enumerate() {
            let passed = (now[index] - before.searches[index]).saturating_mul(times);
            self.pools.pool_mut(kind).searches += passed;
            // What was freed since would have been freed again; the rest grows old.
            for block in self.blocks.all_mut() {
                let is_new = block.free_since > before.searches[index];
                if block.state == State::Free && block.home.pool == kind && is_new {
                    block.free_since += passed;
                }
            }
        }
    }

    /// Whether blocks alone decide how requests to come are served, as long as these are served from free ones: none waits for a
    /// stream, and no garbage is collected, for which it counts how long they have been free.
    pub fn is_told_by_blocks(&self) -> bool {
        self.waiting.is_empty() && self.collects_above().is_none()
    }

    fn searches(&self) -> [u64; 2] {
        [PoolKind::Small, PoolKind::Large].map(|kind| self.pools.pool(kind).searches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::{Settings, SimulatedMemory};
    use crate::units::Bytes;

    /// Requests that free all they allocate, in an order that leaves holes.
    fn churn(allocator: &mut CachingAllocator<SimulatedMemory>) {
        let sizes = [30, 7, 90, 3, 12, 55, 41].map(Bytes::mib);
        let mut live = std::collections::VecDeque::new();
        for size in sizes
            .into_iter()
            .chain(sizes.map(|size| Bytes(size.0 / 40)))
        {
            live.extend(allocator.malloc(size));
            if live.len() > 3 {
                let oldest = live.pop_front().unwrap();
                allocator.free(oldest);
            }
        }
        while let Some(id) = live.pop_back() {
            allocator.free(id);
        }
    }

    /// Churns `times` times, and as often again as counted; gives what both say in the end.
    fn ends(settings: &str, limit: Bytes, times: u64) -> [(Stats, u64); 2] {
        let settings: Settings = settings.parse().unwrap();
        let new = || {
            CachingAllocator::new(
                SimulatedMemory::new(Bytes::gib(1)),
                settings.clone(),
                Some(limit),
            )
        };
        let mut counted = new();
        let mut marks = Vec::new();
        let mut done = 0;
        while done < times {
            churn(&mut counted);
            done += 1;
            let mark = counted.checkpoint().unwrap();
            let before = marks.iter().rposition(|before| mark.repeats(before));
            if let Some(index) = before {
                let cycle = (marks.len() - index) as u64;
                counted.count_again(&marks[index], (times - done) / cycle);
                done += (times - done) / cycle * cycle;
                marks.clear();
            }
            marks.push(mark);
        }
        let mut repeated = new();
        for _ in 0..times {
            churn(&mut repeated);
        }
        // One more shows whether what is free has the same age.
        [counted, repeated].map(|mut allocator| {
            churn(&mut allocator);
            (*allocator.stats(), allocator.checkpoint().unwrap().layout)
        })
    }

    #[test]
    fn repeats_that_are_counted_are_repeats_that_happened() {
        let settings = [
            "",
            "expandable_segments:True",
            "max_split_size_mb:20",
            "garbage_collection_threshold:0.5",
            "garbage_collection_threshold:0.9,max_split_size_mb:20",
        ];
        for settings in settings {
            // The last one is too little for what is alive at a time.
            for mib in [1024, 400, 300, 200, 150] {
                let [counted, repeated] = ends(settings, Bytes::mib(mib), 500);

                assert_eq!(counted, repeated, "{settings:?} within {mib} MiB");
            }
        }
    }

    #[test]
    fn what_asks_the_source_again_and_again_is_seen_to_repeat() {
        let memory = SimulatedMemory::new(Bytes::mib(150));
        let mut allocator = CachingAllocator::new(memory, Settings::default(), None);
        let mut marks: Vec<Checkpoint> = Vec::new();
        let repeats = (0..20).position(|_| {
            churn(&mut allocator);
            let mark = allocator.checkpoint().unwrap();
            let found = marks.iter().any(|before| mark.repeats(before));
            marks.push(mark);
            found
        });

        assert!(allocator.stats().num_alloc_retries > 0);
        assert!(repeats.is_some());
    }
}
