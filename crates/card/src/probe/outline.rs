//! What a program needs at least, found without an allocator.

use crate::alloc::round_size;
use crate::program::{Instruction, Program};
use crate::units::Bytes;

/// A lower bound of a probe, in a hundredth of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outline {
    /// The most bytes of tensors alive at once, each rounded as the allocator rounds it. A probe of the same batch
    /// allocates at least as much: blocks may be larger than what was asked for, and the workspaces of convolutions
    /// are left out.
    pub allocated: Bytes,
    /// Instructions of a first and a later step.
    pub instructions: usize,
}

impl Outline {
    /// The outline of a program at this batch.
    pub fn of(program: &Program, batch: u64) -> Outline {
        let mut sizes = program.bytes_at(batch);
        for size in sizes.iter_mut().filter(|size| **size > Bytes::ZERO) {
            *size = round_size(*size);
        }
        let mut is_alive = vec![false; sizes.len()];
        let (mut alive, mut most, mut instructions) = (Bytes::ZERO, Bytes::ZERO, 0);
        let sections = program.steps(2).flatten();
        let lists = sections.map(|section| &section.instructions);
        for instruction in std::iter::once(&program.construction)
            .chain(lists)
            .flatten()
        {
            instructions += 1;
            let (id, allocates) = match instruction {
                Instruction::Allocate(id) => (id, true),
                Instruction::Free(id) => (id, false),
                Instruction::Launch(_) => continue,
            };
            let index = id.0 as usize;
            if is_alive[index] == allocates {
                continue;
            }
            is_alive[index] = allocates;
            // Sizes beyond all memory are as good as the largest number.
            alive = Bytes(if allocates {
                alive.0.saturating_add(sizes[index].0)
            } else {
                alive.0.saturating_sub(sizes[index].0)
            });
            most = most.max(alive);
        }
        Outline {
            allocated: most,
            instructions,
        }
    }
}
