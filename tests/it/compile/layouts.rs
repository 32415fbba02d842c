//! Weights that lie channels-last in memory, as `model.to(memory_format=torch.channels_last)` leaves them.

use batchfit::compile::compile;
use batchfit::graph::Graph;
use batchfit::model::{Optimizer, Variant};
use batchfit::program::Instruction;

use super::{H200, graph};

/// How many tensors a first step makes.
fn created_tensors(graph: &Graph) -> usize {
    let variant = Variant {
        optimizer: Optimizer::Adamw,
        ..Variant::default()
    };
    let program = compile(graph, &variant, H200).unwrap();
    let sections = program.steps[0].iter();
    let instructions = sections.flat_map(|section| &section.instructions);
    let is_made = |instruction: &&Instruction| matches!(instruction, Instruction::Allocate(_));
    instructions.filter(is_made).count()
}

#[test]
fn weights_that_lie_channels_last_are_not_copied() {
    let row_major = graph("../unrecorded/oddres");
    let last = graph("../unrecorded/last-oddres");

    // Of its convolutions, one with 7x7 and three with 1x1 among them.
    let lie_so = |graph: &Graph| {
        let parameters = graph.parameters.iter();
        parameters
            .filter(|parameter| parameter.channels_last)
            .count()
    };
    assert_eq!((lie_so(&row_major), lie_so(&last)), (0, 20));
    // The images that are laid out so, and next to nothing else, as PyTorch on an H100 has it.
    assert!((1..=2).contains(&(created_tensors(&last) - created_tensors(&row_major))));
    // If the weights did not lie so, each would be copied for each of its kernels, and its gradient once more.
    let mut unlike = last;
    for parameter in &mut unlike.parameters {
        parameter.channels_last = false;
    }
    assert!(created_tensors(&unlike) > created_tensors(&row_major) + 50);
}
