//! What a person wants to know of recordings: whether they align, what follows from them, and how well they predict one
//! that was left out.

use std::collections::BTreeMap;

use serde::Serialize;

use super::RecordedError;
use super::align::align;
use super::matching::Matching;
use super::sequence::Sequence;
use super::steps::Steps;
use crate::device::sim::workspaces::{Lookup, WorkspaceTable};
use crate::program::{Instruction, Size};
use crate::units::Bytes;

/// Most borders and uncertain sizes that are listed: the largest.
const MOST_LISTED: usize = 20;

/// What recordings say together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Each recording, by its batch.
    pub recordings: Vec<RecordingCheck>,
    /// How each aligns with the next.
    pub alignments: Vec<Alignment>,
    /// What sizes follow, by how much memory there is of each kind when most is allocated, at twice the largest batch.
    pub sizes: Vec<Kind>,
    /// The batch that `sizes` are of.
    pub sizes_batch: u64,
    /// Memory that only some recordings have: the largest at the largest batch that has it.
    pub borders: Vec<Border>,
    /// Sizes that do not follow from the recordings, the largest.
    pub uncertain: Vec<UncertainSize>,
    /// How well the others predict each recording that is left out, and all of them the one of `--against`.
    pub predictions: Vec<Predicted>,
}

/// One recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecordingCheck {
    /// Its batch.
    pub batch: u64,
    /// What was recorded, where it was noted.
    pub case: Option<String>,
    /// Allocations in it.
    pub allocations: usize,
    /// Frees in it.
    pub frees: usize,
    /// CUDA streams on which memory was allocated.
    pub streams: usize,
    /// Most bytes asked for at once.
    pub peak_requested_bytes: u64,
}

/// Two neighbouring recordings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alignment {
    /// The smaller and the larger batch.
    pub batches: [u64; 2],
    /// Allocations that both have.
    pub matched: usize,
    /// Those of each that the other lacks.
    pub unmatched: [usize; 2],
    /// Where they first differ, in each file; null where they never do.
    pub first_difference: Option<[String; 2]>,
}

/// Sizes of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kind {
    /// `constant`, `proportional`, `affine`, `quadratic`, `rounded up`, `line` (extrapolated), `reduction` or `convolution`.
    pub kind: String,
    /// Allocations of it.
    pub allocations: usize,
    /// Bytes of it when most is allocated.
    pub bytes_at_peak: u64,
}

/// Memory that only some recordings have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Border {
    /// Where it is asked for.
    pub place: String,
    /// The batches of the recordings that have it.
    pub batches: Vec<u64>,
    /// How large it is in the last of them.
    pub bytes: u64,
}

/// A size that does not follow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UncertainSize {
    /// Where it is asked for.
    pub place: String,
    /// How it is continued.
    pub kind: String,
    /// What was recorded, by batch.
    pub recorded: Vec<(u64, u64)>,
}

/// A recording as others predict it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Predicted {
    /// Its batch.
    pub batch: u64,
    /// The batches that it is predicted from.
    pub from: Vec<u64>,
    /// The share of its allocations that are predicted at their place and with their size, from 0 to 1.
    pub allocations: f64,
    /// The same of the bytes that are allocated when most is.
    pub bytes_at_peak: f64,
    /// Most bytes asked for at once, as recorded.
    pub peak_requested_bytes: u64,
    /// The same as predicted.
    pub predicted_peak_requested_bytes: u64,
}

impl Check {
    /// Looks at recordings, and at how well they predict `against`.
    pub fn of(
        mut sequences: Vec<Sequence>,
        against: Option<&Sequence>,
    ) -> Result<Check, RecordedError> {
        crate::order::by_key(&mut sequences, |sequence| sequence.batch);
        let steps = Steps::learn(sequences.clone())?;
        let mut alignments = Vec::new();
        for pair in sequences.windows(2) {
            alignments.push(alignment(&pair[0], &pair[1])?);
        }
        let mut predictions = Vec::new();
        for left_out in 0..sequences.len() {
            // Two others are needed for any size to follow.
            if sequences.len() < 3 {
                break;
            }
            let mut others = sequences.clone();
            let target = others.remove(left_out);
            predictions.push(Predicted::of(others, &target)?);
        }
        if let Some(against) = against {
            let mut others = sequences.clone();
            others.retain(|sequence| sequence.batch != against.batch);
            predictions.push(Predicted::of(others, against)?);
        }
        let batch = steps
            .batches
            .last()
            .map_or(1, |last| last.saturating_mul(2));
        Ok(Check {
            recordings: sequences.iter().map(RecordingCheck::of).collect(),
            alignments,
            sizes: kinds(&steps, batch),
            sizes_batch: batch,
            borders: borders(&steps),
            uncertain: uncertain(&steps),
            predictions,
        })
    }
}

impl RecordingCheck {
    fn of(sequence: &Sequence) -> RecordingCheck {
        let frees = sequence.events.iter().filter(|event| event.is_free).count();
        let streams = sequence.blocks.iter().map(|block| block.stream).max();
        let events = sequence.events.iter();
        let events = events.map(|event| (event.is_free, sequence.blocks[event.block].bytes));
        RecordingCheck {
            batch: sequence.batch,
            case: sequence.case.clone(),
            allocations: sequence.blocks.len(),
            frees,
            streams: streams.map_or(0, |last| usize::from(last) + 1),
            peak_requested_bytes: peak(events).1,
        }
    }
}

/// After which event most is allocated, and how much.
fn peak(events: impl Iterator<Item = (bool, u64)>) -> (usize, u64) {
    let (mut allocated, mut most) = (0_u64, (0, 0));
    for (index, (is_free, bytes)) in events.enumerate() {
        if is_free {
            allocated = allocated.saturating_sub(bytes);
        } else {
            allocated = allocated.saturating_add(bytes);
        }
        if allocated > most.1 {
            most = (index, allocated);
        }
    }
    most
}

fn alignment(small: &Sequence, large: &Sequence) -> Result<Alignment, RecordedError> {
    let matching = Matching::of(small, large)?;
    let unmatched = matching.unmatched();
    let matched = small.blocks.len() - unmatched;
    Ok(Alignment {
        batches: [small.batch, large.batch],
        matched,
        unmatched: [unmatched, large.blocks.len() - matched],
        first_difference: matching
            .first_divergence
            .map(|(i, j)| [small.place(i), large.place(j)]),
    })
}

/// Events of a program at a batch: whether memory is freed, and how much.
fn events(steps: &Steps, batch: u64) -> Vec<(bool, usize, u64)> {
    let mut lookup = Lookup::new(WorkspaceTable::h200());
    let mut sizes: Vec<u64> = Vec::with_capacity(steps.program.sizes.len());
    for size in &steps.program.sizes {
        sizes.push(match size {
            Size::Workspace(id) => {
                let plans = lookup.plans(&steps.program.convolution(*id).at(batch));
                plans.workspaces.first().map_or(0, |bytes| bytes.0)
            }
            Size::Elements(..) | Size::Fixed(_) | Size::Function(_) => {
                size.at(batch).unwrap_or(Bytes::ZERO).0
            }
        });
    }
    let of = |id: usize| sizes[steps.program.tensors[id].size.0 as usize];
    let events = steps.program.unrolled(1).filter_map(|instruction| {
        let (is_free, id) = match instruction {
            Instruction::Allocate(id) => (false, id.0 as usize),
            Instruction::Free(id) => (true, id.0 as usize),
            Instruction::Launch(_) => return None,
        };
        Some((is_free, id, of(id)))
    });
    // What has no size is not there.
    events.filter(|(.., bytes)| *bytes > 0).collect()
}

fn kinds(steps: &Steps, batch: u64) -> Vec<Kind> {
    let events = events(steps, batch);
    let (most, _) = peak(events.iter().map(|(is_free, _, bytes)| (*is_free, *bytes)));
    let mut kinds: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for (index, (is_free, id, bytes)) in events.iter().enumerate() {
        let tensor = &steps.program.tensors[*id];
        let name = match &steps.program.sizes[tensor.size.0 as usize] {
            Size::Workspace(_) => "convolution",
            Size::Fixed(_) => "constant",
            Size::Elements(..) => "proportional",
            Size::Function(function) => function.name,
        };
        let (allocations, at_peak) = kinds.entry(name).or_default();
        match (is_free, index <= most) {
            (false, true) => *at_peak += bytes,
            (true, true) => *at_peak -= bytes,
            (_, false) => {}
        }
        *allocations += usize::from(!is_free);
    }
    let kind = |(kind, (allocations, bytes_at_peak)): (&str, (usize, u64))| Kind {
        kind: kind.to_owned(),
        allocations,
        bytes_at_peak,
    };
    let mut kinds: Vec<Kind> = kinds.into_iter().map(kind).collect();
    crate::order::by_key(&mut kinds, |kind| std::cmp::Reverse(kind.bytes_at_peak));
    kinds
}

fn borders(steps: &Steps) -> Vec<Border> {
    let mut borders: Vec<Border> = Vec::new();
    for (tensor, recorded) in steps.program.tensors.iter().zip(steps.recorded()) {
        let there = there(recorded);
        let is_everywhere = there.len() == recorded.len();
        if let (Some((_, bytes)), false) = (there.last(), is_everywhere) {
            borders.push(Border {
                place: tensor.label.to_string(),
                batches: there.iter().map(|(batch, _)| *batch).collect(),
                bytes: *bytes,
            });
        }
    }
    crate::order::by_key(&mut borders, |border| std::cmp::Reverse(border.bytes));
    borders.truncate(MOST_LISTED);
    borders
}

fn uncertain(steps: &Steps) -> Vec<UncertainSize> {
    let mut sizes: Vec<UncertainSize> = Vec::new();
    let tensors = steps
        .program
        .tensors
        .iter()
        .zip(steps.recorded())
        .enumerate();
    for (index, (tensor, recorded)) in tensors {
        let recorded = there(recorded);
        if !steps.is_uncertain(index) || recorded.len() < steps.batches.len() {
            continue;
        }
        let kind = match &steps.program.sizes[tensor.size.0 as usize] {
            Size::Function(function) => function.name,
            Size::Workspace(_) | Size::Fixed(_) | Size::Elements(..) => "constant",
        };
        sizes.push(UncertainSize {
            place: tensor.label.to_string(),
            kind: kind.to_owned(),
            recorded,
        });
    }
    crate::order::by_key(&mut sizes, |size| {
        std::cmp::Reverse(size.recorded.last().map(|(_, bytes)| *bytes))
    });
    sizes.truncate(MOST_LISTED);
    sizes
}

fn there(recorded: &[(u64, Option<u64>)]) -> Vec<(u64, u64)> {
    let known = recorded.iter();
    known
        .filter_map(|(batch, bytes)| Some((*batch, (*bytes)?)))
        .collect()
}

impl Predicted {
    fn of(others: Vec<Sequence>, target: &Sequence) -> Result<Predicted, RecordedError> {
        let steps = Steps::learn(others)?;
        let predicted = events(&steps, target.batch);
        let lengths = [predicted.len(), target.events.len()];
        let size = |j: usize| target.blocks[target.events[j].block].bytes;
        let is_same = |i: usize, j: usize| {
            let (is_free, _, bytes) = predicted[i];
            is_free == target.events[j].is_free && bytes == size(j)
        };
        let pairs = align(lengths, is_same).unwrap_or_default();
        let mut is_right = vec![false; target.blocks.len()];
        for (_, j) in pairs {
            let event = target.events[j];
            if !event.is_free {
                is_right[event.block] = true;
            }
        }
        let recorded = target.events.iter().enumerate();
        let recorded = recorded.map(|(index, event)| (event.is_free, size(index)));
        let (most, peak_requested_bytes) = peak(recorded);
        let at_peak = |block: &super::sequence::Block| {
            block.born <= most && block.freed.is_none_or(|freed| freed > most)
        };
        let blocks = target.blocks.iter().zip(&is_right);
        let right: u64 = blocks
            .filter(|(block, right)| **right && at_peak(block))
            .map(|(block, _)| block.bytes)
            .sum();
        let events = predicted
            .iter()
            .map(|(is_free, _, bytes)| (*is_free, *bytes));
        let count = is_right.iter().filter(|right| **right).count();
        Ok(Predicted {
            batch: target.batch,
            from: steps.batches.clone(),
            allocations: count as f64 / is_right.len().max(1) as f64,
            bytes_at_peak: right as f64 / peak_requested_bytes.max(1) as f64,
            peak_requested_bytes,
            predicted_peak_requested_bytes: peak(events).1,
        })
    }
}
