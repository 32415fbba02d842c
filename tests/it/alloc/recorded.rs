//! Replays what PyTorch recorded and expects every event back. See tests/golden/traces/README.md.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use batchfit::alloc::{
    Address, CachingAllocator, Event, Full, Reserved, SegmentAction, SegmentSource, Settings,
    SimulatedMemory, expandable_size, limit_of_fraction,
};
use batchfit::units::Bytes;
use flate2::read::GzDecoder;
use serde::Deserialize;

#[derive(Deserialize)]
struct Header {
    alloc_conf: String,
    total: u64,
    limit: u64,
    ok: bool,
    retries: u64,
    ooms: u64,
    /// Absent when the first step did not finish.
    peak_allocated: Option<u64>,
    peak_reserved: Option<u64>,
}

impl Header {
    fn peaks(&self) -> [Option<u64>; 2] {
        [self.peak_allocated, self.peak_reserved]
    }
}

/// Gives out what was recorded, in its order: whole segments, and memory mapped into expandable ones.
struct RecordedSegments {
    taken: VecDeque<Event>,
    total: Bytes,
}

impl SegmentSource for RecordedSegments {
    fn take(&mut self, asked: Bytes) -> Result<Address, Full> {
        match self.taken.front() {
            Some(&Event::Segment(SegmentAction::Alloc, address, size)) if size == asked => {
                self.taken.pop_front();
                Ok(address)
            }
            _ => Err(Full { asked }),
        }
    }

    fn give_back(&mut self, _: Address, _: Bytes) {}

    /// A new reservation starts where the next mapping was recorded.
    fn reserve(&mut self, unit: Bytes) -> Result<Reserved, Full> {
        let size = expandable_size(self.total, unit).unwrap();
        match self.taken.front() {
            Some(&Event::Segment(SegmentAction::Map, address, _)) => Ok(Reserved { address, size }),
            _ => Err(Full { asked: size }),
        }
    }

    fn map(&mut self, at: Address, asked: Bytes) -> Result<(), Full> {
        let mapping = Event::Segment(SegmentAction::Map, at, asked);
        if self.taken.front() != Some(&mapping) {
            return Err(Full { asked });
        }
        self.taken.pop_front();
        Ok(())
    }

    fn unmap(&mut self, _: Address, _: Bytes) {}

    fn release(&mut self, _: Reserved) {}
}

fn traces() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/traces");
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut traces: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "gz"))
        .collect();
    traces.sort();
    assert!(!traces.is_empty(), "there are recorded traces");
    traces
}

fn read(path: &Path) -> (Header, Vec<Event>) {
    let mut text = String::new();
    GzDecoder::new(fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    let (header, lines) = text.split_once('\n').unwrap();
    let header = serde_json::from_str(header.strip_prefix("# ").unwrap()).unwrap();
    let lines = lines.lines().filter(|line| !line.starts_with('#'));
    (header, lines.map(event).collect())
}

fn event(line: &str) -> Event {
    let [action, address, size, _stream] = line.split(' ').collect::<Vec<_>>()[..] else {
        panic!("an event has four columns: {line}");
    };
    let address = Address(u64::from_str_radix(address, 16).unwrap());
    let size = Bytes(size.parse().unwrap());
    match action {
        "segment_alloc" => Event::Segment(SegmentAction::Alloc, address, size),
        "segment_map" => Event::Segment(SegmentAction::Map, address, size),
        "segment_unmap" => Event::Segment(SegmentAction::Unmap, address, size),
        "segment_free" => Event::Segment(SegmentAction::Free, address, size),
        "alloc" => Event::Alloc {
            address,
            requested: size,
        },
        "free_requested" => Event::FreeRequested {
            address,
            requested: size,
        },
        "free_completed" => Event::FreeCompleted {
            address,
            requested: size,
        },
        "oom" => Event::OutOfMemory { rounded: size },
        other => panic!("unknown action {other}"),
    }
}

fn recorded_segments(header: &Header, recorded: &[Event]) -> RecordedSegments {
    let is_taken = |event: &&Event| {
        matches!(
            event,
            Event::Segment(SegmentAction::Alloc | SegmentAction::Map, ..)
        )
    };
    RecordedSegments {
        taken: recorded.iter().filter(is_taken).copied().collect(),
        total: Bytes(header.total),
    }
}

/// Repeats the requests among `recorded`: `alloc`, `free_requested` and, as far as it is known, `oom`.
fn replay<S: SegmentSource>(
    source: S,
    header: &Header,
    recorded: &[Event],
) -> CachingAllocator<S, Vec<Event>> {
    let settings: Settings = header.alloc_conf.parse().unwrap();
    let limit = limit_of_fraction(
        header.limit as f64 / header.total as f64,
        Bytes(header.total),
    );
    let mut allocator = CachingAllocator::observed(source, settings, limit, Vec::new());
    let mut live = HashMap::new();
    for event in recorded {
        match *event {
            Event::Alloc { address, requested } => {
                if let Ok(block) = allocator.malloc(requested) {
                    live.insert(address, block);
                }
            }
            Event::FreeRequested { address, .. } => {
                if let Some(block) = live.remove(&address) {
                    allocator.free(block);
                }
            }
            Event::OutOfMemory { rounded } => {
                let refused = allocator.malloc(rounded);
                assert!(refused.is_err(), "{rounded} was refused and is not");
            }
            Event::Segment(..) | Event::FreeCompleted { .. } => {}
        }
    }
    allocator
}

#[test]
fn recorded_traces_come_back_event_for_event() {
    for path in traces() {
        let name = path.file_name().unwrap().to_string_lossy();
        let (header, recorded) = read(&path);

        let allocator = replay(recorded_segments(&header, &recorded), &header, &recorded);

        let replayed = allocator.observer();
        let equal = recorded
            .iter()
            .zip(replayed)
            .take_while(|(a, b)| a == b)
            .count();
        assert!(
            equal == recorded.len() && equal == replayed.len(),
            "{name}: event {equal} of {} is {:?} and was {:?}",
            recorded.len(),
            replayed.get(equal).map(ToString::to_string),
            recorded.get(equal).map(ToString::to_string),
        );
        let stats = allocator.stats();
        assert_eq!(stats.num_alloc_retries, header.retries, "{name}: retries");
        assert_eq!(stats.num_ooms, header.ooms, "{name}: refusals");
        if header.ok {
            assert_eq!(peaks(&allocator), header.peaks(), "{name}: peaks");
        }
    }
}

/// Traces whose peaks come out otherwise with made-up addresses, by how many bytes: allocated, reserved. See
/// Note [Simulated placement].
const OTHERWISE: &[(&str, [i64; 2])] = &[
    ("gpt2-ampbf16-adamw-b10.pow2div4", [0, 2_097_152]),
    ("gpt2-ampbf16-adamw-b10", [30_569_472, 2_097_152]),
    ("gpt2-ampbf16-adamw-b4.pow2div4", [2_097_152, 0]),
    ("gpt2-ampbf16-adamw-b9", [393_216, 0]),
    ("resnet50-fp32-sgd-b143.split128gc80", [0, 77_594_624]),
];

/// Where segments lie decides which of several blocks of a size is used first, no more: the retries of these
/// traces come out the same with made-up addresses, and most peaks.
#[test]
fn simulated_placement_gives_the_recorded_peaks() {
    for path in traces() {
        let name = path.file_name().unwrap().to_string_lossy();
        let (header, recorded) = read(&path);

        let memory = SimulatedMemory::new(Bytes(header.total));
        let allocator = replay(memory, &header, &recorded);

        let case = name
            .trim_start_matches("trace-")
            .trim_end_matches(".txt.gz");
        let stats = allocator.stats();
        assert_eq!(stats.num_alloc_retries, header.retries, "{name}: retries");
        let known = OTHERWISE.iter().find(|(other, _)| *other == case);
        let otherwise = known.map_or([0; 2], |(_, by)| *by);
        for ((ours, theirs), by) in peaks(&allocator)
            .into_iter()
            .zip(header.peaks())
            .zip(otherwise)
        {
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                assert_eq!(
                    ours,
                    theirs.checked_add_signed(by).unwrap(),
                    "{name}: peaks"
                );
            }
        }
    }
}

fn peaks<S: SegmentSource>(allocator: &CachingAllocator<S, Vec<Event>>) -> [Option<u64>; 2] {
    let stats = allocator.stats();
    [stats.peak_allocated(), stats.peak_reserved()].map(|peak| Some(peak.0))
}
