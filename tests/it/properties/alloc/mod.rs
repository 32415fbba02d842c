//! The caching allocator under arbitrary requests, settings, streams and limits, on a source that refuses at
//! will.

use batchfit::alloc::{CachingAllocator, LARGE_SEGMENT, Settings, SimulatedMemory};
use batchfit::units::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use stage::{Moody, SETTINGS, Stage, Step};

mod stage;

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![
        4 => 1..4096_u64,
        3 => 4096..1_100_000_u64,
        3 => 1_000_000..12_000_000_u64,
        2 => 10_000_000..80_000_000_u64,
        1 => prop_oneof![Just(1_u64 << 59), Just(1 << 60), Just(1 << 63), Just(u64::MAX)],
    ];
    let stream = prop_oneof![4 => Just(0_u8), 1 => 0..4_u8];
    prop_oneof![
        20 => (stream, size).prop_map(|(stream, size)| Step::Alloc { stream, size }),
        18 => any::<u16>().prop_map(Step::Free),
        3 => (any::<u16>(), 0..4_u8).prop_map(|(block, stream)| Step::RecordStream { block, stream }),
        1 => (0..4_u8).prop_map(Step::Synchronize),
        1 => Just(Step::EmptyCache),
        1 => any::<u8>().prop_map(Step::Change),
        1 => prop::option::of(4..400_u16).prop_map(Step::Limit),
        1 => Just(Step::ResetPeaks),
    ]
}

fn settings() -> impl Strategy<Value = &'static str> {
    prop::sample::select(SETTINGS)
}

fn limit() -> impl Strategy<Value = Option<Bytes>> {
    prop::option::of((4..400_u64).prop_map(Bytes::mib))
}

proptest! {
    /// Layout, statistics and limit hold after every step, whatever the source refuses; and freeing everything
    /// returns to nothing.
    #[test]
    fn layout_and_statistics_hold(
        settings in settings(),
        limit in limit(),
        refusals in vec(any::<bool>(), 0..8),
        steps in vec(step(), 1..150),
    ) {
        let device = Moody::new(Bytes::mib(400), refusals);
        let mut stage = Stage::new(device, settings, limit);

        for step in &steps {
            stage.play_checked(step);
        }

        stage.finish();
    }

    /// The same steps give the same layout, also in an allocator that was used and reset before.
    #[test]
    fn a_reset_allocator_is_a_new_one(
        settings in settings(),
        before in vec(step(), 0..60),
        steps in vec(step(), 1..60),
    ) {
        let stage = || Stage::new(Moody::new(Bytes::mib(300), Vec::new()), settings, None);
        let (mut new, mut used) = (stage(), stage());
        for step in &before {
            used.play(step);
        }
        used.live.clear();
        used.allocator.set_settings(settings.parse().unwrap());
        used.allocator.set_limit(None);
        used.allocator.reset();

        for step in &steps {
            new.play(step);
            used.play(step);
        }

        prop_assert_eq!(new.allocator.snapshot(), used.allocator.snapshot());
        prop_assert_eq!(new.allocator.stats(), used.allocator.stats());
    }

    /// No text makes the reader of settings panic, and what it takes it writes.
    #[test]
    fn any_settings_are_read_or_refused(text in "[a-z_:,\\[\\]>0-9. ]{0,60}|(max_split_size_mb|roundup_power2_divisions|expandable_segments):[\\[\\]:,>0-9TrueFals]{0,20}") {
        if let Ok(settings) = text.parse::<Settings>() {
            prop_assert_eq!(settings.to_string().parse(), Ok(settings));
        }
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
