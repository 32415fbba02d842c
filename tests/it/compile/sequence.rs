//! The sequence diff: allocations and frees of a compiled program beside those that PyTorch made,
//! aligned event by event (kind and requested size).
//!
//! What a library asks for is not the compiler's to know: a convolution's workspace matches whatever was
//! allocated and freed at once. All else must be equal. The number of unmatched events is asserted, and
//! may only go down.

use std::fmt;
use std::io::Read;

use batchfit::model::{Optimizer, Precision, Variant};
use batchfit::program::{Instruction, Program, Size, TensorId};
use flate2::read::GzDecoder;
use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::program;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Event {
    Alloc(u64),
    Free(u64),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Alloc(bytes) => write!(f, "+{bytes}"),
            Event::Free(bytes) => write!(f, "-{bytes}"),
        }
    }
}

/// The requests of a recorded trace.
fn recorded(name: &str) -> Vec<Event> {
    let path = format!(
        "{}/tests/golden/traces/{name}.txt.gz",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    let event = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["alloc", _, size, _] => Some(Event::Alloc(size.parse().unwrap())),
            ["free_requested", _, size, _] => Some(Event::Free(size.parse().unwrap())),
            _ => None,
        }
    };
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(event)
        .collect()
}

/// The program's events, and which of them are convolution workspaces.
fn compiled(program: &Program, batch: u64) -> Vec<(Option<Event>, TensorId)> {
    let bytes = |id: TensorId| match &program.tensor(id).size {
        Size::Elements(count, dtype) => Some(count.at(batch) * dtype.size()),
        Size::Fixed(bytes) => Some(bytes.0),
        Size::Function(function) => Some((function.bytes)(batch)),
        Size::Workspace(_) => None,
    };
    let sections = std::iter::once(program.construction.as_slice()).chain(program.steps(3));
    sections
        .flatten()
        .filter_map(|instruction| match instruction {
            Instruction::Allocate(id) => Some((bytes(*id).map(Event::Alloc), *id)),
            Instruction::Free(id) => Some((bytes(*id).map(Event::Free), *id)),
            Instruction::Launch(_) => None,
        })
        .filter(|(event, _)| !matches!(event, Some(Event::Alloc(0) | Event::Free(0))))
        .collect()
}

/// What differs, a line an event, each with what our side would have allocated for.
fn differences(graph: &str, trace: &str, variant: &Variant, batch: u64) -> Vec<String> {
    let program = program(graph, variant);
    let mut theirs = recorded(trace);
    let events = compiled(&program, batch);
    let mut ours = Vec::new();
    let mut labels = Vec::new();
    for (index, (event, id)) in events.iter().enumerate() {
        if let Some(event) = event {
            ours.push(*event);
            labels.push(&program.tensor(*id).label);
            continue;
        }
        // A workspace: the pair that stands here belongs to it, unless it is what comes next anyway.
        let at = ours.len();
        let next = events[index..].iter().find_map(|(event, _)| *event);
        if let Some([Event::Alloc(a), Event::Free(b)]) = theirs.get(at..at + 2)
            && a == b
            && next != Some(Event::Alloc(*a))
        {
            theirs.drain(at..at + 2);
        }
    }
    let diff = capture_diff_slices(Algorithm::Myers, &ours, &theirs);
    let mut lines = Vec::new();
    for op in diff
        .into_iter()
        .filter(|op| !matches!(op, DiffOp::Equal { .. }))
    {
        lines.extend(
            op.old_range()
                .map(|i| format!("ours   {i} {} {}", ours[i], labels[i])),
        );
        lines.extend(op.new_range().map(|i| format!("theirs {i} {}", theirs[i])));
    }
    lines
}

fn assert_unmatched(expected: usize, differences: &[String]) {
    let first = differences
        .iter()
        .take(40)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert_eq!(
        differences.len(),
        expected,
        "unmatched events; the first are\n{first}"
    );
}

fn sgd() -> Variant {
    Variant {
        optimizer: Optimizer::SgdMomentum,
        ..Variant::default()
    }
}

#[test]
fn cifarnet_in_float32_is_exact() {
    let found = differences("cifarnet", "trace-cifarnet-fp32-sgd-b512", &sgd(), 512);

    assert_unmatched(0, &found);
}

#[test]
fn resnet50_in_float32_is_exact() {
    let found = differences("resnet50", "trace-resnet50-fp32-sgd-b64", &sgd(), 64);

    assert_unmatched(0, &found);
}

/// What remains are activations that Python locals keep past their last use: the graph has no names.
#[test]
fn gpt2_under_autocast_differs_only_in_lifetimes() {
    let variant = Variant {
        precision: Precision::AmpBf16,
        ..Variant::default()
    };

    let found = differences("gpt2", "trace-gpt2-ampbf16-adamw-b4", &variant, 4);

    assert_unmatched(372, &found);
}
