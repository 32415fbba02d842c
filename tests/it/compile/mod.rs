//! Step programs against recorded PyTorch runs.

mod functions;
mod gradients;
mod operations;
mod sequence;
mod steps;

use batchfit::compile::compile;
use batchfit::graph::Graph;
use batchfit::model::{Variant, exported};
use batchfit::program::{Capability, Program};

/// The card that the truth was recorded on.
pub(crate) const H200: Capability = Capability {
    compute: (9, 0),
    multiprocessors: 132,
    threads_per_multiprocessor: 2048,
};

/// A graph of the corpus.
pub(crate) fn graph(name: &str) -> Graph {
    exported::parse(&crate::model::golden(name)).unwrap().graph
}

/// The step program of a graph of the corpus on an H200.
pub(crate) fn program(name: &str, variant: &Variant) -> Program {
    compile(&graph(name), variant, H200).unwrap()
}
