//! The sequence diff: allocations and frees of a compiled program beside those that PyTorch made.

use std::fmt;

use similar::{Algorithm, DiffOp, capture_diff_slices};

use batchfit_step::program::{Instruction, Program, TensorId};
use batchfit_step::units::Bytes;

/// How many unmatched events are shown.
const SHOWN: usize = 40;

/// One request to the allocator, by the size that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Requested {
    /// An allocation.
    Alloc(Bytes),
    /// A free.
    Free(Bytes),
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Requested::Alloc(bytes) => write!(f, "+{}", bytes.0),
            Requested::Free(bytes) => write!(f, "-{}", bytes.0),
        }
    }
}

/// How many requests agree, and the first ones that do not.
pub fn sequence(program: &Program, batch: u64, steps: usize, theirs: &[Requested]) -> String {
    let lines = unmatched(program, batch, steps, theirs);
    let mut text = format!(
        "{} requests were recorded; {} of both sides have no counterpart\n",
        theirs.len(),
        lines.len()
    );
    for line in lines.iter().take(SHOWN) {
        text.push_str(line);
        text.push('\n');
    }
    if lines.len() > SHOWN {
        text.push_str("...\n");
    }
    text
}

/// The requests without a counterpart, a line each: ours with what they are for and who made them.
///
/// How large a convolution's workspace is depends on the plan: it matches whatever was allocated and freed at
/// once. All else must be equal.
pub fn unmatched(program: &Program, batch: u64, steps: usize, theirs: &[Requested]) -> Vec<String> {
    let events = requests(program, batch, steps);
    let mut workspaces = events.iter().filter(|(event, _)| event.is_none()).count();
    let (ours, labels): (Vec<Requested>, Vec<_>) = events
        .iter()
        .filter_map(|(event, id)| event.map(|event| (event, &program.tensor(*id).label)))
        .unzip();
    let mut lines = Vec::new();
    for op in capture_diff_slices(Algorithm::Myers, &ours, theirs) {
        if matches!(op, DiffOp::Equal { .. }) {
            continue;
        }
        let added = &theirs[op.new_range()];
        let is_workspace = |pair: &[Requested]| matches!(pair, [Requested::Alloc(a), Requested::Free(b)] if a == b);
        if op.old_range().is_empty()
            && added.chunks(2).all(is_workspace)
            && added.len() <= workspaces
        {
            workspaces -= added.len();
            continue;
        }
        let mine = op.old_range();
        lines.extend(mine.map(|i| format!("ours   {i} {} {}", ours[i], labels[i])));
        lines.extend(op.new_range().map(|i| format!("theirs {i} {}", theirs[i])));
    }
    lines
}

/// The program's requests; `None` for those of convolution workspaces.
fn requests(program: &Program, batch: u64, steps: usize) -> Vec<(Option<Requested>, TensorId)> {
    let bytes = |id: TensorId| program.size(id).at(batch);
    program
        .unrolled(steps)
        .filter_map(|instruction| match instruction {
            Instruction::Allocate(id) => Some((bytes(*id).map(Requested::Alloc), *id)),
            Instruction::Free(id) => Some((bytes(*id).map(Requested::Free), *id)),
            Instruction::Launch(_) => None,
        })
        .filter(|(event, _)| {
            let nothing = [Requested::Alloc(Bytes::ZERO), Requested::Free(Bytes::ZERO)];
            !event.is_some_and(|event| nothing.contains(&event))
        })
        .collect()
}
