//! Step programs against recorded PyTorch runs.

mod collectives;
pub(crate) mod functions;
mod gaps;
mod generation;
mod gradients;
mod layouts;
mod operations;
mod parallel;
mod repeats;
mod sequence;
mod steps;

use batchfit::compile::compile;
use batchfit::graph::Graph;
use batchfit::model::{Variant, exported};
use batchfit::program::{Capability, Instruction, Program, TensorId};

/// The card that the truth was recorded on.
pub(crate) const H200: Capability = Capability::of((9, 0), 132);

/// A graph of the corpus.
pub(crate) fn graph(name: &str) -> Graph {
    exported::parse(&crate::model::golden(name)).unwrap().graph
}

/// The step program of a graph of the corpus on an H200.
pub(crate) fn program(name: &str, variant: &Variant) -> Program {
    compile(&graph(name), variant, H200).unwrap()
}

/// Construction and three steps, one request a line: `+BYTES` or `-BYTES`, and `@STREAM` where it is not the default stream.
fn requests(program: &Program, batch: u64) -> Vec<String> {
    requests_of(program, batch, 3)
}

/// The same of construction and so many steps.
fn requests_of(program: &Program, batch: u64, steps: usize) -> Vec<String> {
    let event = |sign: char, id: &TensorId| {
        let bytes = program.size(*id).at(batch);
        let bytes = bytes.map_or(0, |bytes| bytes.0);
        let stream = match program.tensor(*id).stream {
            0 => String::new(),
            other => format!("@{other}"),
        };
        (bytes > 0).then(|| format!("{sign}{bytes}{stream}"))
    };
    let events = program
        .unrolled(steps)
        .filter_map(|instruction| match instruction {
            Instruction::Allocate(id) => event('+', id),
            Instruction::Free(id) => event('-', id),
            Instruction::Launch(_) => None,
        });
    events.collect()
}
