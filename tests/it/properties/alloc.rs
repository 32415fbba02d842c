//! The caching allocator under arbitrary requests, limits and sources that refuse at will.

use batchfit::alloc::{
    Address, BlockId, CachingAllocator, Full, LARGE_SEGMENT, MIN_BLOCK, PoolKind, SegmentSource,
    SegmentView, Settings, SimulatedMemory, Snapshot,
};
use batchfit::units::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Alloc(u64),
    /// Frees one of the live blocks, by its position among them.
    Free(prop::sample::Index),
    EmptyCache,
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![
        4 => 1..4096_u64,
        3 => 4096..1_100_000_u64,
        3 => 1_000_000..12_000_000_u64,
        2 => 10_000_000..80_000_000_u64,
    ];
    prop_oneof![
        10 => size.prop_map(Step::Alloc),
        9 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => Just(Step::EmptyCache),
    ]
}

/// A device that refuses the requests it was told to, besides those that do not fit.
struct Moody {
    memory: SimulatedMemory,
    refusals: Vec<bool>,
    asked: usize,
}

impl SegmentSource for Moody {
    fn take(&mut self, size: Bytes) -> Result<Address, Full> {
        let refuses = self.refusals.get(self.asked % self.refusals.len().max(1));
        self.asked += 1;
        if refuses == Some(&true) {
            return Err(Full { asked: size });
        }
        self.memory.take(size)
    }

    fn give_back(&mut self, segment: Address, size: Bytes) {
        self.memory.give_back(segment, size);
    }
}

fn moody(refusals: Vec<bool>) -> Moody {
    Moody {
        memory: SimulatedMemory::new(Bytes::mib(400)),
        refusals,
        asked: 0,
    }
}

fn play<S: SegmentSource>(
    allocator: &mut CachingAllocator<S>,
    live: &mut Vec<BlockId>,
    step: &Step,
) {
    match step {
        Step::Alloc(size) => live.extend(allocator.malloc(Bytes(*size))),
        Step::Free(_) if live.is_empty() => {}
        Step::Free(at) => allocator.free(live.swap_remove(at.index(live.len()))),
        Step::EmptyCache => allocator.empty_cache(),
    }
}

/// Blocks tile their segment, segments do not overlap, and no two neighbours are free.
fn check_layout(snapshot: &Snapshot) {
    let mut end_of_last = Address(0);
    for segment in &snapshot.segments {
        assert!(
            segment.address >= end_of_last,
            "segments overlap: {snapshot:?}"
        );
        let mut at = segment.address;
        for block in &segment.blocks {
            assert_eq!(block.address, at, "blocks tile {segment:?}");
            assert!(block.size >= MIN_BLOCK && block.size.0.is_multiple_of(MIN_BLOCK.0));
            at = at.offset(block.size);
        }
        assert_eq!(at, segment.address.offset(segment.size));
        let neighbours = segment.blocks.windows(2);
        for pair in neighbours {
            assert!(
                pair.iter().any(|block| block.requested.is_some()),
                "two free neighbours in {segment:?}"
            );
        }
        end_of_last = at;
    }
}

/// A statistic recounted over some segments: (allocation, segment, inactive split, then their bytes).
fn recount<'a>(segments: impl Iterator<Item = &'a SegmentView>) -> [u64; 7] {
    let mut counted = [0; 7];
    for segment in segments {
        counted[1] += 1;
        counted[4] += segment.size.0;
        for block in &segment.blocks {
            match block.requested {
                Some(requested) => {
                    counted[0] += 1;
                    counted[3] += block.size.0;
                    counted[6] += requested.0;
                }
                None if segment.blocks.len() > 1 => {
                    counted[2] += 1;
                    counted[5] += block.size.0;
                }
                None => {}
            }
        }
    }
    counted
}

fn check_statistics<S: SegmentSource>(allocator: &CachingAllocator<S>, snapshot: &Snapshot) {
    let stats = allocator.stats();
    let of = |kind| {
        let segments = snapshot.segments.iter();
        recount(segments.filter(move |segment| kind == segment.pool))
    };
    let both = recount(snapshot.segments.iter());
    for (stats, counted) in [
        (&stats.all, both),
        (&stats.small_pool, of(PoolKind::Small)),
        (&stats.large_pool, of(PoolKind::Large)),
    ] {
        let reported = [
            stats.allocation,
            stats.segment,
            stats.inactive_split,
            stats.allocated_bytes,
            stats.reserved_bytes,
            stats.inactive_split_bytes,
            stats.requested_bytes,
        ];
        assert_eq!(reported.map(|stat| stat.current), counted);
        // Without streams, active and allocated are the same.
        assert_eq!(stats.active, stats.allocation);
        assert_eq!(stats.active_bytes, stats.allocated_bytes);
        for stat in reported {
            assert!(stat.peak >= stat.current && stat.allocated - stat.freed == stat.current);
        }
        assert!(counted[6] <= counted[3] && counted[3] <= counted[4]);
    }
    assert!(
        allocator
            .limit()
            .is_none_or(|limit| stats.peak_reserved() <= limit)
    );
    assert_eq!(
        stats.num_device_alloc - stats.num_device_free,
        stats.all.segment.current
    );
}

proptest! {
    /// Layout and statistics hold after every step, whatever the source refuses and wherever the limit is.
    #[test]
    fn layout_and_statistics_hold(
        steps in vec(step(), 1..120),
        limit in prop::option::of(4..400_u64),
        refusals in vec(any::<bool>(), 0..8),
    ) {
        let limit = limit.map(Bytes::mib);
        let mut allocator = CachingAllocator::new(moody(refusals), Settings::default(), limit);
        let mut live = Vec::new();

        for step in &steps {
            play(&mut allocator, &mut live, step);

            let snapshot = allocator.snapshot();
            check_layout(&snapshot);
            check_statistics(&allocator, &snapshot);
            prop_assert_eq!(allocator.stats().all.allocation.current, live.len() as u64);
        }
    }

    /// What the caller holds does not overlap and is what was asked for, rounded or unsplit.
    #[test]
    fn live_blocks_never_overlap(steps in vec(step(), 1..120)) {
        let mut allocator =
            CachingAllocator::new(SimulatedMemory::new(Bytes::gib(1)), Settings::default(), None);
        let mut live = Vec::new();
        for step in &steps {
            play(&mut allocator, &mut live, step);
        }

        let mut held: Vec<(Address, Bytes)> =
            live.iter().map(|id| (allocator.address(*id), allocator.size(*id))).collect();
        held.sort();

        for pair in held.windows(2) {
            prop_assert!(pair[0].0.offset(pair[0].1) <= pair[1].0);
        }
    }

    /// Freeing everything and emptying the cache returns to nothing, and the device has all its memory.
    #[test]
    fn everything_freed_is_nothing_reserved(steps in vec(step(), 1..120), refusals in vec(any::<bool>(), 0..8)) {
        let mut allocator = CachingAllocator::new(moody(refusals), Settings::default(), None);
        let mut live = Vec::new();
        for step in &steps {
            play(&mut allocator, &mut live, step);
        }

        for id in live {
            allocator.free(id);
        }
        allocator.empty_cache();

        prop_assert_eq!(allocator.snapshot(), Snapshot::default());
        prop_assert_eq!(allocator.stats().reserved(), Bytes::ZERO);
        prop_assert_eq!(allocator.stats().all.inactive_split.current, 0);
        let memory = &allocator.source().memory;
        prop_assert_eq!(memory.free(), memory.capacity());
    }

    /// The same steps give the same layout, also in an allocator that was used and reset before.
    #[test]
    fn a_reset_allocator_is_a_new_one(before in vec(step(), 0..60), steps in vec(step(), 1..60)) {
        let memory = || SimulatedMemory::new(Bytes::mib(300));
        let mut new = CachingAllocator::new(memory(), Settings::default(), None);
        let mut used = CachingAllocator::new(memory(), Settings::default(), None);
        let mut live = Vec::new();
        for step in &before {
            play(&mut used, &mut live, step);
        }
        used.reset();

        let (mut live_in_new, mut live_in_used) = (Vec::new(), Vec::new());
        for step in &steps {
            play(&mut new, &mut live_in_new, step);
            play(&mut used, &mut live_in_used, step);
        }

        prop_assert_eq!(new.snapshot(), used.snapshot());
        prop_assert_eq!(new.stats(), used.stats());
    }
}

#[test]
#[should_panic(expected = "used only between its malloc and its free")]
fn freeing_twice_panics() {
    let mut allocator = CachingAllocator::new(
        SimulatedMemory::new(LARGE_SEGMENT),
        Settings::default(),
        None,
    );
    let block = allocator.malloc(Bytes(1)).unwrap();
    let other = allocator.malloc(Bytes(1)).unwrap();

    allocator.free(block);
    allocator.free(block);

    allocator.free(other);
}

#[test]
fn an_absurd_request_is_refused_and_not_counted() {
    let mut allocator = CachingAllocator::new(
        SimulatedMemory::new(LARGE_SEGMENT),
        Settings::default(),
        None,
    );

    let refused = allocator.malloc(Bytes(1 << 60));

    assert!(refused.is_err());
    assert_eq!(allocator.stats().num_ooms, 0);
}
