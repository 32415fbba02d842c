//! Runs the conversations beside this file: one command a line, its events and what came of it below.
//!
//! `capacity SIZE` and `limit SIZE` come first. Then `alloc NAME SIZE [STREAM]`, `free NAME`,
//! `record_stream NAME STREAM`, `synchronize STREAM`, `settings TEXT`, `empty_cache`, `reset_peaks` and
//! `show`, which writes the segments and the statistics.

use std::collections::BTreeMap;
use std::fmt::Write;

use batchfit::alloc::{
    Address, BlockId, BlockState, CachingAllocator, Event, PoolKind, SegmentAction, Settings,
    SimulatedMemory, Stream,
};
use batchfit::units::Bytes;

#[test]
fn scenarios() {
    insta::glob!("*.txt", |path| {
        let text = std::fs::read_to_string(path).unwrap();
        insta::with_settings!({ omit_expression => true }, {
            insta::assert_snapshot!(play(&text));
        });
    });
}

struct Stage {
    allocator: CachingAllocator<SimulatedMemory, Vec<Event>>,
    names: BTreeMap<String, BlockId>,
    /// Events that were written already.
    told: usize,
    /// Segments by the order in which they were first seen; addresses mean nothing to a reader.
    segments: Vec<Address>,
}

fn play(text: &str) -> String {
    let (mut capacity, mut limit) = (Bytes::gib(1), None);
    let mut stage = None;
    let mut out = String::new();
    for line in text.lines() {
        writeln!(out, "{line}").unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] | ["#", ..] => {}
            ["capacity", size] => capacity = bytes(size),
            ["limit", size] => limit = Some(bytes(size)),
            _ => stage
                .get_or_insert_with(|| Stage::open(capacity, limit))
                .act(&words, &mut out),
        }
    }
    out
}

impl Stage {
    fn open(capacity: Bytes, limit: Option<Bytes>) -> Stage {
        let memory = SimulatedMemory::new(capacity);
        Stage {
            allocator: CachingAllocator::observed(memory, Settings::default(), limit, Vec::new()),
            names: BTreeMap::new(),
            told: 0,
            segments: Vec::new(),
        }
    }

    fn act(&mut self, words: &[&str], out: &mut String) {
        let mut answer = None;
        match *words {
            ["alloc", name, size] => answer = self.alloc(name, size, Stream::default()),
            ["alloc", name, size, on] => answer = self.alloc(name, size, stream(on)),
            ["record_stream", name, on] => {
                self.allocator.record_stream(self.names[name], stream(on));
            }
            ["synchronize", on] => self.allocator.synchronize(stream(on)),
            ["settings", text] => {
                let settings = self.allocator.settings().updated(text).unwrap();
                self.allocator.set_settings(settings);
            }
            ["free", name] => self.allocator.free(self.names.remove(name).unwrap()),
            ["empty_cache"] => self.allocator.empty_cache(),
            ["reset_peaks"] => self.allocator.reset_peaks(),
            ["show"] => self.show(out),
            _ => panic!("not a command: {words:?}"),
        }
        for event in &self.allocator.observer()[self.told..] {
            match *event {
                Event::Segment(SegmentAction::Alloc, address, size) => {
                    let number = self.segments.len();
                    self.segments.push(address);
                    writeln!(out, "    takes segment {number} of {size}").unwrap();
                }
                Event::Segment(SegmentAction::Free, address, size) => {
                    let number = number_of(&self.segments, address);
                    writeln!(out, "    gives back segment {number} of {size}").unwrap();
                }
                Event::Segment(SegmentAction::Map, _, size) => {
                    writeln!(out, "    maps {size}").unwrap();
                }
                Event::Segment(SegmentAction::Unmap, _, size) => {
                    writeln!(out, "    unmaps {size}").unwrap();
                }
                Event::OutOfMemory { rounded } => {
                    writeln!(out, "    out of memory for {rounded}").unwrap();
                }
                Event::Alloc { .. } | Event::FreeRequested { .. } | Event::FreeCompleted { .. } => {
                }
            }
        }
        self.told = self.allocator.observer().len();
        if let Some(answer) = answer {
            writeln!(out, "    {answer}").unwrap();
        }
    }

    /// Says why not, if so.
    fn alloc(&mut self, name: &str, size: &str, on: Stream) -> Option<String> {
        match self.allocator.malloc_on(on, bytes(size)) {
            Ok(block) => {
                self.names.insert(name.to_owned(), block);
                None
            }
            Err(refused) => Some(format!("{refused} ({:?})", refused.refusal)),
        }
    }

    fn show(&self, out: &mut String) {
        let snapshot = self.allocator.snapshot();
        let numbered = snapshot.segments.into_iter().map(|segment| {
            let known = !segment.is_expandable;
            let number = known.then(|| number_of(&self.segments, segment.address));
            (number, segment)
        });
        let mut segments: Vec<_> = numbered.collect();
        segments.sort_by_key(|(number, segment)| (*number, segment.address));
        for (number, segment) in segments {
            let name = number.map_or("mapped".to_owned(), |number| format!("segment {number}"));
            let pool = match segment.pool {
                PoolKind::Small => "small",
                PoolKind::Large => "large",
            };
            let blocks = segment.blocks.iter().map(|block| {
                let owner =
                    |(_, id): &(&String, &BlockId)| self.allocator.address(**id) == block.address;
                let owner = self.names.iter().find(owner).map(|(name, _)| name.as_str());
                let owner = match block.state {
                    BlockState::ActiveAllocated => owner.unwrap(),
                    BlockState::ActivePendingFree => "pending",
                    BlockState::Inactive => "free",
                };
                format!("{owner} {}", block.size)
            });
            let blocks: Vec<String> = blocks.collect();
            let size = segment.size;
            writeln!(out, "    {name}  {pool}  {size}: {}", blocks.join(" | ")).unwrap();
        }
        let stats = self.allocator.stats();
        let all = stats.all;
        writeln!(
            out,
            "    reserved {} (peak {})  allocated {} (peak {})  requested {}  inactive split {}",
            stats.reserved(),
            stats.peak_reserved(),
            stats.allocated(),
            stats.peak_allocated(),
            Bytes(all.requested_bytes.current),
            Bytes(all.inactive_split_bytes.current),
        )
        .unwrap();
        writeln!(
            out,
            "    retries {}  ooms {}",
            stats.num_alloc_retries, stats.num_ooms
        )
        .unwrap();
    }
}

/// The latest segment at an address: addresses are used again.
fn number_of(segments: &[Address], address: Address) -> usize {
    segments
        .iter()
        .rposition(|segment| *segment == address)
        .unwrap()
}

fn stream(text: &str) -> Stream {
    Stream(text.parse().unwrap())
}

fn bytes(text: &str) -> Bytes {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let number: u64 = digits.parse().unwrap();
    match &text[digits.len()..] {
        "B" => Bytes(number),
        "KiB" => Bytes(number << 10),
        "MiB" => Bytes::mib(number),
        "GiB" => Bytes::gib(number),
        unit => panic!("no such unit: {unit}"),
    }
}
