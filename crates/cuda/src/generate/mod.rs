//! Kernels made from formulas: [`Generated`] and its operands to the text of a kernel and its arguments.
//!
//! Pure: it needs a card's number of multiprocessors and nothing else. A text depends on what is computed, on the types of
//! operands, and on how many dimensions are left once those that lie behind one another are merged; lengths, strides,
//! addresses and constants are arguments, so that a model needs some dozens of kernels for all of its batches.
//!
//! The language is C++ as NVRTC compiles it behind `prelude.cuh`. The same text compiles for a host, where tests run it.

mod dims;
mod each;
mod groups;
#[cfg(test)]
mod host;
mod map;
mod reduce;
mod rows;
mod source;

use crate::program::{Form, Generated};

use super::layout::Operand;

pub(super) use groups::parts;
pub(super) use source::{Changing, Source, divider_of, divider_parts, element};

/// A launch of a generated kernel.
#[derive(Debug, Clone)]
pub(super) struct GeneratedLaunch {
    pub(super) source: Source,
    /// Which of the text's kernels.
    pub(super) entry: &'static str,
    pub(super) blocks: [u64; 2],
    pub(super) threads: [u32; 2],
    /// Independent pieces of work: blocks where a block has one thread.
    #[cfg_attr(not(test), expect(dead_code, reason = "what tests on a host run"))]
    pub(super) work: u64,
    /// The kernel's parameter.
    pub(super) words: Vec<u64>,
    pub(super) changing: Changing,
}

/// What decides how work is shared out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resources {
    pub(super) multiprocessors: u64,
    /// Memory for partial results, and its bytes.
    pub(super) scratch: (u64, u64),
    /// The key of the launch's random numbers.
    pub(super) seed: u64,
    /// The batch: the value of every symbolic length.
    pub(super) batch: u64,
}

/// How many threads work together on so many elements, and how many such groups a block has.
fn lanes(length: u64) -> (u32, u32) {
    match length {
        0..=1024 => (32, 8),
        1025..=8192 => (256, 1),
        8193.. => (1024, 1),
    }
}

/// What a text says of them.
fn lanes_of_text(lanes: u32) -> String {
    format!(
        "#ifdef ON_HOST\nstatic const int LANES = 1;\n#else\nstatic const int LANES = {lanes};\n#endif"
    )
}

/// The operands of a call by their names.
struct Named<'a> {
    name: &'static str,
    operand: &'a Operand,
}

/// A formula with its operands.
struct Operation<'a> {
    generated: &'a Generated,
    inputs: Vec<Named<'a>>,
    outputs: Vec<Named<'a>>,
    resources: Resources,
}

impl<'a> Operation<'a> {
    /// Inputs, then outputs.
    fn operands(&self) -> impl Iterator<Item = &Named<'a>> {
        self.inputs.iter().chain(&self.outputs)
    }
}

/// Why no kernel can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoKernel {
    #[error("operand `{0}` is missing")]
    Missing(&'static str),
    #[error("operand `{name}` of shape {shape:?} does not broadcast to {to:?}")]
    DoesNotBroadcast {
        name: &'static str,
        shape: Vec<u64>,
        to: Vec<u64>,
    },
    #[error("{0}")]
    Misuse(&'static str),
}

/// The launches that compute a formula; none where there is nothing to compute.
pub(super) fn launches(
    generated: &Generated,
    inputs: &[Operand],
    outputs: &[Operand],
    resources: Resources,
) -> Result<Vec<GeneratedLaunch>, NoKernel> {
    let operation = Operation {
        generated,
        inputs: named(&generated.inputs, inputs)?,
        outputs: named(&generated.outputs, outputs)?,
        resources,
    };
    if operation.outputs.is_empty() {
        return Err(NoKernel::Misuse("a formula has no result"));
    }
    match &generated.form {
        Form::Map(body) => map::launches(&operation, body),
        Form::Each {
            over,
            without,
            body,
        } => each::launches(&operation, *over, without, body),
        Form::Groups {
            over,
            without,
            body,
        } => groups::launches(&operation, *over, without, body),
        Form::Reduce { dims, .. } => reduce::launches(&operation, dims),
        Form::Rows { dims, body } => rows::launches(&operation, dims, &[], body),
        Form::RowsAndTables { dims, tables, body } => {
            rows::launches(&operation, dims, tables, body)
        }
    }
}

fn named<'a>(names: &[&'static str], operands: &'a [Operand]) -> Result<Vec<Named<'a>>, NoKernel> {
    let with_operand = |(position, name): (usize, &&'static str)| {
        let operand = operands.get(position).ok_or(NoKernel::Missing(name))?;
        Ok(Named { name, operand })
    };
    names.iter().enumerate().map(with_operand).collect()
}

#[cfg(test)]
mod tests;
