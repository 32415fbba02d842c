//! The allocator's expandable segments on a card.

use batchfit::alloc::{CachingAllocator, SegmentSource, SimulatedMemory, Stats};
use batchfit::device::cuda::{CudaLauncher, CudaMemory, Gpu, LauncherOptions, Tf32};
use batchfit::units::Bytes;

/// Takes, frees and takes again, so that units are mapped, unmapped and mapped into a hole; runs out of memory
/// at the end. The addresses and sizes of what is left, and the statistics.
fn exercise<S: SegmentSource>(source: S) -> (CachingAllocator<S>, Vec<(u64, u64)>) {
    let settings = "expandable_segments:True".parse().unwrap();
    let mut allocator = CachingAllocator::new(source, settings, None);
    let first = [50, 15, 200].map(|mib| allocator.malloc(Bytes::mib(mib)).unwrap());
    allocator.free(first[0]);
    allocator.empty_cache();
    let mut live = vec![first[1], first[2]];
    live.extend([30, 90].map(|mib| allocator.malloc(Bytes::mib(mib)).unwrap()));
    live.push(allocator.malloc(Bytes(1000)).unwrap());
    assert!(allocator.malloc(Bytes::gib(1000)).is_err());
    let held = live
        .iter()
        .map(|id| (allocator.address(*id).0, allocator.size(*id).0));
    let held = held.collect();
    (allocator, held)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn expandable_segments_hold_what_is_written_and_go_back() {
    let gpu = Gpu::open(0).expect("this test needs a GPU");
    let options = LauncherOptions {
        tf32: Tf32::Allowed,
        ..LauncherOptions::default()
    };
    let launcher = CudaLauncher::open(&gpu, options).unwrap();
    let (free_before, _) = gpu.free_and_total().unwrap();

    let (mut allocator, held) = exercise(CudaMemory::of(&gpu));

    for (number, (address, size)) in held.iter().enumerate() {
        launcher
            .upload(*address, &vec![number as u8 + 1; *size as usize])
            .unwrap();
    }
    for (number, (address, size)) in held.iter().enumerate() {
        let bytes = launcher.download(*address, Bytes(*size)).unwrap();
        assert!(
            bytes.iter().all(|byte| *byte == number as u8 + 1),
            "block {number}"
        );
    }
    let stats: Stats = *allocator.stats();
    let (simulated, _) = exercise(SimulatedMemory::new(gpu.facts().total));
    assert_eq!(stats, *simulated.stats());
    let (free_with, _) = gpu.free_and_total().unwrap();
    assert!(
        free_before - free_with >= stats.reserved(),
        "the memory is on the card"
    );
    allocator.reset();
    let (free_after, _) = gpu.free_and_total().unwrap();
    assert_eq!(free_after, free_before);
    assert_eq!(allocator.source().trouble(), None);
}
