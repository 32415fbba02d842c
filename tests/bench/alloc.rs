//! How fast the allocator serves recorded requests, and what a live block costs.
//!
//! `cargo bench --bench alloc`. The times per pair of `alloc` and `free` are those of a replay divided by
//! its requests; they include the replay's own bookkeeping, an index per block.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark reports on stdout and stops at what it does not expect"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use batchfit::alloc::{BlockId, CachingAllocator, Settings, SimulatedMemory};
use batchfit::units::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

/// What the caller did, blocks by the order of their requests.
#[derive(Clone, Copy)]
enum Request {
    Alloc(Bytes),
    Free(usize),
}

struct Trace {
    settings: Settings,
    total: Bytes,
    limit: Bytes,
    requests: Vec<Request>,
    allocations: usize,
}

fn traces() -> Vec<(String, Trace)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/traces");
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries
        .filter(|path| path.to_string_lossy().ends_with(".txt.gz"))
        .collect();
    paths.sort();
    let named = paths.iter().map(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        (name.trim_end_matches(".txt.gz").to_owned(), read(path))
    });
    named.collect()
}

fn read(path: &Path) -> Trace {
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    let (header, lines) = text.split_once('\n').unwrap();
    let header: serde_json::Value = serde_json::from_str(header.trim_start_matches("# ")).unwrap();
    let mut requests = Vec::new();
    let mut live = HashMap::new();
    let mut allocations = 0;
    for line in lines.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "alloc" => {
                live.insert(words[1], allocations);
                requests.push(Request::Alloc(Bytes(words[2].parse().unwrap())));
                allocations += 1;
            }
            "free_requested" => requests.push(Request::Free(live.remove(words[1]).unwrap())),
            _ => {}
        }
    }
    Trace {
        settings: header["alloc_conf"].as_str().unwrap().parse().unwrap(),
        total: Bytes(header["total"].as_u64().unwrap()),
        limit: Bytes(header["limit"].as_u64().unwrap()),
        requests,
        allocations,
    }
}

impl Trace {
    fn allocator(&self) -> CachingAllocator<SimulatedMemory> {
        let memory = SimulatedMemory::new(self.total);
        CachingAllocator::new(memory, self.settings.clone(), Some(self.limit))
    }

    fn pairs(&self) -> u64 {
        self.requests.len() as u64 / 2
    }

    /// Makes the requests of the trace. A request that does not fit is skipped.
    fn play(
        &self,
        allocator: &mut CachingAllocator<SimulatedMemory>,
        blocks: &mut Vec<Option<BlockId>>,
    ) {
        blocks.clear();
        for request in &self.requests {
            match *request {
                Request::Alloc(size) => blocks.push(allocator.malloc(size).ok()),
                Request::Free(block) => {
                    if let Some(id) = blocks[block] {
                        allocator.free(id);
                    }
                }
            }
        }
    }
}

/// One pair of `alloc` and `free`, on average over a trace.
fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pairs");
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    for (name, trace) in traces() {
        if !["llama1b", "gpt2-ampbf16-adamw-b4", "resnet50-fp32-sgd-b64"]
            .iter()
            .any(|case| name.contains(case))
        {
            continue;
        }
        let mut allocator = trace.allocator();
        let mut blocks = Vec::with_capacity(trace.allocations);
        group.throughput(Throughput::Elements(trace.pairs()));
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    allocator.reset();
                    let began = Instant::now();
                    trace.play(&mut allocator, &mut blocks);
                    spent += began.elapsed();
                }
                spent
            });
        });
    }
}

/// All requests of each trace, in an allocator that is made for it.
fn replays(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("replays");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500));
    for (name, trace) in traces() {
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || (trace.allocator(), Vec::with_capacity(trace.allocations)),
                |(allocator, blocks)| trace.play(allocator, blocks),
                BatchSize::SmallInput,
            );
        });
    }
}

/// What the allocator's own memory grows by for each block: live ones, in the worst of many moments, and
/// when every other one is free and has an entry in the free set too.
fn memory(_: &mut Criterion) {
    const BLOCKS: usize = 600_000;
    let memory = SimulatedMemory::new(Bytes::gib(1 << 10));
    let before = HELD.load(Ordering::Relaxed);
    let mut allocator = CachingAllocator::new(memory, Settings::default(), None);
    let mut blocks = Vec::with_capacity(BLOCKS);
    let own = blocks.capacity() * size_of::<BlockId>();
    let held = || (HELD.load(Ordering::Relaxed) - before - own) as f64;
    let mut worst = 0.0_f64;
    for count in 1..=BLOCKS {
        blocks.push(allocator.malloc(Bytes(2048)).unwrap());
        // The bins of the free set are there from the start.
        if count >= 1000 {
            worst = worst.max(held() / count as f64);
        }
    }
    let live = held() / BLOCKS as f64;
    for block in blocks.iter().step_by(2) {
        allocator.free(*block);
    }
    let half = held() / BLOCKS as f64;
    println!(
        "memory per block: {live:.0} bytes with {BLOCKS} live, {worst:.0} at worst from 1000 on, \
         {half:.0} with every other one free"
    );
}

/// Counts the bytes that the program holds.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

#[expect(
    unsafe_code,
    reason = "counting is all it adds to the system's allocator"
)]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above, which is the system's.
        unsafe { System.dealloc(pointer, layout) };
    }
}

criterion_group!(benches, pairs, replays, memory);
criterion_main!(benches);
