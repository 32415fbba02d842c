//! Each allocation and free of a step or a recording: what is told event by event adds up to what is reported.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use batchfit::jobs::{Engine as _, FitEngine};
use batchfit::limits::Cancel;
use batchfit::model::{Request, RequestDocument};
use batchfit::probe::{
    Detail, MOST_EVENTS, MemoryEvents, Phase, ProbeReport, SegmentAction, SegmentColumns, Verdict,
};
use batchfit::program::Category;
use batchfit::replay::{AddressSource, ReplayOptions, SegmentReport};
use serde_json::{Value, json};

use crate::replay::{all, report};
use crate::sample::sample;

/// Memory right after each event, and what was in use then.
struct Walked {
    allocated: Vec<u64>,
    reserved: Vec<u64>,
    /// The map at the events that were asked for: ranges with their blocks.
    maps: HashMap<u32, Vec<(u64, u64, Vec<u64>)>>,
}

/// Ranges of addresses.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, start: u64, end: u64) {
        let before = self.0.range(..end).next_back();
        assert!(before.is_none_or(|(_, other)| *other <= start), "twice");
        self.0.insert(start, end);
    }

    /// Takes a range out, across those that touch.
    fn remove(&mut self, start: u64, end: u64) {
        assert!(self.hold(start, end), "{start:x} is not held");
        let mut at = start;
        while at < end {
            let (first, last) = self.0.range(..=at).next_back().unwrap();
            let (first, last) = (*first, *last);
            self.0.remove(&first);
            if first < at {
                self.0.insert(first, at);
            }
            let stop = last.min(end);
            if stop < last {
                self.0.insert(stop, last);
            }
            at = stop;
        }
    }

    /// Whether a range lies in them, across those that touch.
    fn hold(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            match self.0.range(..=at).next_back() {
                Some((_, last)) if *last > at => at = *last,
                _ => return false,
            }
        }
        true
    }
}

fn apply(ranges: &mut Ranges, segments: &SegmentColumns, at: usize) -> i64 {
    let (start, bytes) = (segments.address[at], segments.bytes[at]);
    match segments.action[at] {
        SegmentAction::Alloc | SegmentAction::Map => {
            ranges.add(start, start + bytes);
            i64::try_from(bytes).unwrap()
        }
        SegmentAction::Free | SegmentAction::Unmap => {
            ranges.remove(start, start + bytes);
            -i64::try_from(bytes).unwrap()
        }
    }
}

/// Walks through all events, and checks that blocks lie in segments and never overlap.
fn walk(told: &MemoryEvents, maps_at: &[u32]) -> Walked {
    let blocks = &told.blocks;
    let pending: HashMap<u32, u32> = told
        .pending
        .block
        .iter()
        .copied()
        .zip(told.pending.until.iter().copied())
        .collect();
    let mut gone: HashMap<u32, Vec<usize>> = HashMap::new();
    for (index, freed) in (0_u32..).zip(&blocks.freed) {
        let released = pending.get(&index).copied().or(*freed);
        if let Some(released) = released {
            gone.entry(released).or_default().push(index as usize);
        }
    }
    let mut walked = Walked {
        allocated: Vec::new(),
        reserved: Vec::new(),
        maps: HashMap::new(),
    };
    let (mut held, mut used) = (Ranges::default(), BTreeMap::new());
    let (mut segment, mut block) = (0, 0);
    let (mut allocated, mut reserved) = (0_u64, 0_i64);
    let mut freed_at: HashMap<u32, u64> = HashMap::new();
    for (freed, bytes) in blocks.freed.iter().zip(&blocks.bytes) {
        if let Some(freed) = freed {
            *freed_at.entry(*freed).or_default() += bytes;
        }
    }
    for event in 0..=told.events {
        let segments = &told.segments;
        while segments.event.get(segment) == Some(&event) {
            reserved += apply(&mut held, segments, segment);
            segment += 1;
        }
        for index in gone.get(&event).into_iter().flatten() {
            let removed = used.remove(&blocks.address[*index]);
            assert_eq!(removed, Some(blocks.bytes[*index]), "event {event}");
        }
        while blocks.allocated.get(block) == Some(&event) {
            let (start, bytes) = (blocks.address[block], blocks.bytes[block]);
            let end = start + bytes;
            assert!(held.hold(start, end), "event {event}: outside of segments");
            let below = used.range(..end).next_back();
            assert!(
                below.is_none_or(|(other, size): (&u64, &u64)| other + size <= start),
                "event {event}: two blocks in one place"
            );
            assert!(blocks.requested_bytes[block] <= bytes);
            used.insert(start, bytes);
            allocated += bytes;
            block += 1;
        }
        allocated -= freed_at.get(&event).copied().unwrap_or(0);
        if maps_at.contains(&event) {
            let map = held.0.iter().map(|(start, end)| {
                let inside = used.range(*start..*end).map(|(_, bytes)| *bytes);
                (*start, *end, inside.collect())
            });
            walked.maps.insert(event, map.collect());
        }
        walked.allocated.push(allocated);
        walked.reserved.push(u64::try_from(reserved).unwrap());
    }
    assert_eq!(
        (segment, block),
        (told.segments.event.len(), blocks.bytes.len())
    );
    walked
}

/// Bytes of the blocks in use after an event, by what `of` makes of their owners.
fn shares<K: std::hash::Hash + Eq>(
    told: &MemoryEvents,
    event: u32,
    of: impl Fn(usize) -> K,
) -> HashMap<K, u64> {
    let mut shares = HashMap::new();
    for (index, bytes) in told.blocks.bytes.iter().enumerate() {
        let freed = told.blocks.freed[index];
        if told.blocks.allocated[index] <= event && freed.is_none_or(|freed| freed > event) {
            let owner = told.blocks.owner[index] as usize;
            *shares.entry(of(owner)).or_default() += bytes;
        }
    }
    shares
}

fn probe(document: &Value, batch: u64) -> ProbeReport {
    let document = RequestDocument::from(document.clone());
    let request = Request::parse(document).unwrap();
    let engine = FitEngine::new(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")));
    engine
        .probe(&request, batch, Detail::Events, &Cancel::NEVER)
        .unwrap()
}

fn gpt2(training: &Value, limit: &str, allocator: &str) -> Value {
    let model = json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 1000, "n_positions": 128, "n_embd": 64,
        "n_layer": 3, "n_head": 4,
    });
    json!({
        "model": { "hf": model, "seq_len": 128 }, "training": training, "device": "sim:h200", "memory_limit": limit,
        "allocator": allocator,
    })
}

fn resnet18(training: &Value, limit: &str, allocator: &str) -> Value {
    json!({
        "model": { "preset": "resnet18" }, "training": training, "device": "sim:h200", "memory_limit": limit,
        "allocator": allocator,
    })
}

/// The most of some events' bytes.
fn most(of: &[u64], events: std::ops::Range<usize>) -> u64 {
    of[events].iter().copied().max().unwrap_or(0)
}

/// The events of a step, from 1.
fn events_of(told: &MemoryEvents, step: u32) -> std::ops::Range<usize> {
    let first = told.bands.step.iter().position(|at| *at == step).unwrap();
    let after = told.bands.step.iter().position(|at| *at > step);
    let end = after.map_or(told.events + 1, |after| told.bands.event[after]);
    told.bands.event[first] as usize..end as usize
}

#[test]
fn the_events_of_a_step_add_up_to_its_report() {
    let plain = ["8GiB", ""];
    let cases = [
        (resnet18(&json!({}), plain[0], plain[1]), 33),
        (
            resnet18(
                &json!({ "optimizer": "sgd" }),
                "2GiB",
                "expandable_segments:True",
            ),
            40,
        ),
        (
            resnet18(
                &json!({ "precision": "amp_fp16" }),
                "1GiB",
                "max_split_size_mb:32",
            ),
            20,
        ),
        (
            gpt2(&json!({ "precision": "amp_bf16" }), plain[0], plain[1]),
            9,
        ),
        (
            gpt2(
                &json!({ "checkpointing": "per_block" }),
                plain[0],
                "roundup_power2_divisions:4",
            ),
            40,
        ),
        (
            gpt2(&json!({ "mode": "inference" }), plain[0], plain[1]),
            12,
        ),
        (
            gpt2(
                &json!({ "parallel": { "strategy": "ddp", "world_size": 4 } }),
                plain[0],
                plain[1],
            ),
            6,
        ),
    ];
    for (document, batch) in cases {
        let about = format!("{} in {}", document["training"], document["allocator"]);

        let report = probe(&document, batch);

        let told = report.events.as_ref().unwrap();
        assert_eq!(told.omitted, 0, "{about}");
        let walked = walk(told, &[]);
        for (number, step) in (1..).zip(&report.steps) {
            let events = events_of(told, number);
            // Peaks are counted from what is there when a step begins.
            let with_before = events.start - 1..events.end;
            assert_eq!(
                most(&walked.allocated, with_before.clone()),
                step.peak_allocated_bytes,
                "{about}, step {number}"
            );
            assert_eq!(
                most(&walked.reserved, with_before),
                step.peak_reserved_bytes,
                "{about}, step {number}"
            );
            assert_eq!(
                walked.allocated[events.end - 1],
                step.allocated_bytes,
                "{about}"
            );
        }
        let peak = report.peak.as_ref().unwrap();
        let event = told.peak_event.unwrap();
        assert_eq!(
            walked.allocated[event as usize], peak.allocated_bytes,
            "{about}"
        );
        let by_category = shares(told, event, |owner| told.owners[owner].category.unwrap());
        let at_peak: HashMap<Category, u64> = report
            .at_peak
            .iter()
            .map(|part| (part.category, part.bytes))
            .collect();
        assert_eq!(by_category, at_peak, "{about}");
        let by_module = shares(told, event, |owner| told.owners[owner].module.clone());
        for module in &peak.modules {
            assert_eq!(by_module[&module.module], module.bytes, "{about}");
        }
        let band = told.bands.event.partition_point(|begins| *begins <= event) - 1;
        assert_eq!(told.bands.step[band], peak.step, "{about}");
        assert_eq!(told.bands.phase[band], Some(peak.phase), "{about}");
    }
}

#[test]
fn bands_are_the_phases_of_a_step_in_their_order() {
    let report = probe(&resnet18(&json!({}), "8GiB", ""), 4);

    let bands = report.events.unwrap().bands;
    let of_second: Vec<Phase> = bands
        .step
        .iter()
        .zip(&bands.phase)
        .filter(|(step, _)| **step == 2)
        .map(|(_, phase)| phase.unwrap())
        .collect();
    assert_eq!(
        of_second,
        [Phase::Forward, Phase::Backward, Phase::OptimizerStep]
    );
    assert_eq!(
        (bands.event[0], bands.step[0], bands.phase[0]),
        (1, 0, None)
    );
}

#[test]
fn a_refusal_is_the_last_event() {
    let report = probe(&resnet18(&json!({}), "1GiB", ""), 400);

    assert_eq!(report.verdict, Verdict::OutOfMemory);
    let told = report.events.unwrap();
    let walked = walk(&told, &[]);
    assert_eq!(told.refused.event.last(), Some(&told.events));
    assert_eq!(
        told.refused.bytes.last().copied(),
        report.shortage.unwrap().requested_bytes
    );
    assert_eq!(
        walked.reserved.last().copied(),
        Some(report.shortage.unwrap().reserved_bytes)
    );
}

#[test]
fn micro_steps_that_repeat_are_counted_and_told_once() {
    let few = probe(&gpt2(&json!({ "accumulation": 2 }), "8GiB", ""), 2);
    let many = probe(&gpt2(&json!({ "accumulation": 60_000 }), "8GiB", ""), 2);

    let told = many.events.unwrap();
    walk(&told, &[]);
    assert_eq!(told.omitted, 0);
    assert!(told.events < 10 * few.events.unwrap().events);
    let repeated: u64 = told.repeats.times.iter().sum();
    assert!(repeated > 50_000, "{repeated}");
    assert_eq!(many.peak_allocated_bytes, few.peak_allocated_bytes);
}

#[test]
fn what_is_told_is_bounded_and_says_what_it_lacks() {
    // Two shapes of steps in turn would be told for ever; a section of many instructions is enough here.
    let model = json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 100, "n_positions": 32, "n_embd": 32,
        "n_layer": 700, "n_head": 2,
    });
    let document = json!({
        "model": { "hf": model, "seq_len": 32 }, "device": "sim:h200",
        "training": { "optimizer_impl": "for_loop", "precision": "amp_fp16" },
    });

    let told = probe(&document, 1).events.unwrap();

    assert_eq!(told.events, MOST_EVENTS);
    assert!(told.omitted > 0);
    walk(&told, &[]);
}

/// A map as a report has it: ranges and the sizes of what is in use in them.
fn map_of(segments: &[SegmentReport]) -> Vec<(u64, u64, Vec<u64>)> {
    let of = |segment: &SegmentReport| {
        let start = u64::from_str_radix(&segment.address, 16).unwrap();
        let blocks = segment.blocks.iter();
        let used = blocks.filter(|block| block.state != "inactive");
        let used = used.map(|block| block.size_bytes).collect();
        (start, start + segment.size_bytes, used)
    };
    segments.iter().map(of).collect()
}

#[test]
fn the_events_of_a_recording_add_up_to_its_report() {
    let mut names = all("traces");
    names.extend(all("snapshots"));
    let settings = [None, Some("expandable_segments:True")];
    for name in sample(4, names) {
        for allocator in settings {
            let asked = ReplayOptions {
                settings: allocator.map(|text| text.parse().unwrap()),
                events: true,
                ..ReplayOptions::default()
            };
            let about = format!("{name} {allocator:?}");

            let report = report(&name, &asked);

            let told = report.events.as_ref().unwrap();
            assert_eq!(told.omitted, 0, "{about}");
            let walked = walk(told, &[]);
            let end = walked.allocated.len();
            if report.addresses == AddressSource::Recorded {
                assert_eq!(report.equals_recording, Some(true), "{about}");
            }
            assert_eq!(
                most(&walked.reserved, 0..end),
                report.peak_reserved_bytes,
                "{about}"
            );
            assert_eq!(
                most(&walked.allocated, 0..end),
                report.peak_allocated_bytes,
                "{about}"
            );
            // Right after the request for which most was reserved, for the first time.
            let grown = (0_u32..)
                .zip(&walked.reserved)
                .find(|(_, bytes)| **bytes == report.peak.reserved_bytes);
            let grown = grown.unwrap().0;
            let granted = told.blocks.allocated.iter().find(|event| **event >= grown);
            // What the recording refused and was granted now is freed at once: the report is of after that.
            let is_kept = report.stopped.is_none() && report.granted_ooms == 0;
            if let (Some(event), true) = (granted, is_kept) {
                let walked = walk(told, &[*event]);
                let reported = map_of(&report.peak.segments);
                let (told, reported) = (used_of(&walked.maps[event]), used_of(&reported));
                assert_eq!(told, reported, "{about}");
            }
        }
    }
}

/// The bytes of a map and of each block in it, lowest first.
fn used_of(map: &[(u64, u64, Vec<u64>)]) -> (u64, Vec<u64>) {
    let bytes = map.iter().map(|(start, end, _)| end - start).sum();
    let blocks = map.iter().flat_map(|(_, _, blocks)| blocks.clone());
    (bytes, blocks.collect())
}

#[test]
fn lines_and_rounds_of_a_recording_are_told() {
    let asked = ReplayOptions {
        events: true,
        ..ReplayOptions::default()
    };

    let report = report("planted/growth-hook.pickle.gz", &asked);

    let told = report.events.unwrap();
    walk(&told, &[]);
    let forward = told
        .owners
        .iter()
        .position(|owner| owner.operation == "planted.py:30 forward");
    let peak = told.peak_event.unwrap();
    let by_line = shares(&told, peak, |owner| owner);
    assert_eq!(by_line[&forward.unwrap()], report.findings.at_peak[0].bytes);
    assert_eq!(
        u64::from(*told.bands.step.last().unwrap()),
        report.findings.rounds
    );
    assert!(told.owners.iter().all(|owner| owner.category.is_none()));
}
