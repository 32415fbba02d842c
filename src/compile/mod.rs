//! From a graph and a variant to the program of a training step.
//!
//! The compiler runs the model once as eager PyTorch would, on tensors that have shapes and owners but no
//! values. Every rule about what is saved, when it dies and in which order the backward pass runs is in
//! here; nothing outside knows about autograd.
#![doc = include_str!("NOTES.md")]

mod autocast;
mod autograd;
mod casts;
mod checkpoint;
mod eager;
mod emit;
mod forward;
mod lifetimes;
mod noise;
mod ops;
mod optimizer;
mod step;
mod tensor;

use std::sync::Arc;

use crate::graph::Graph;
use crate::model::{Checkpointing, Mode, Variant};
use crate::program::Capability;
use crate::program::Program;

/// Why there is no program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// Checkpointing was asked for and nothing matches.
    #[error(
        "no module to checkpoint: the model has no repeated blocks; name modules instead, as in \
         {{\"modules\": [\"layer*.*\"]}}"
    )]
    NoRepeatedBlocks,
    /// A glob was given and nothing matches.
    #[error("no module matches {globs}; paths look like {example}")]
    NoSuchModules {
        /// What was asked for.
        globs: String,
        /// A path that exists.
        example: String,
    },
}

/// Compiles the step program of a graph under a variant, for a card.
pub fn compile(
    graph: &Graph,
    variant: &Variant,
    capability: Capability,
) -> Result<Program, CompileError> {
    check_checkpointing(graph, variant)?;
    let eager = eager::Eager::new(capability);
    let graph = Arc::new(graph.clone());
    Ok(step::Training::construct(eager, graph, variant).into_program())
}

/// The same program without its launches: what a simulation runs. Launches are nine tenths of a program.
pub fn compile_memory(
    graph: &Arc<Graph>,
    variant: &Variant,
    capability: Capability,
) -> Result<Program, CompileError> {
    check_checkpointing(graph, variant)?;
    let mut eager = eager::Eager::new(capability);
    eager.leave_out_launches();
    Ok(step::Training::construct(eager, Arc::clone(graph), variant).into_program())
}

fn check_checkpointing(graph: &Graph, variant: &Variant) -> Result<(), CompileError> {
    let nothing = variant.mode == Mode::Train
        && variant.checkpointing != Checkpointing::None
        && checkpoint::regions(graph, &variant.checkpointing).is_empty();
    match &variant.checkpointing {
        Checkpointing::Modules(globs) if nothing => {
            let longest = graph
                .modules
                .iter()
                .max_by_key(|module| module.path.matches('.').count());
            Err(CompileError::NoSuchModules {
                globs: globs.join(", "),
                example: longest
                    .map(|module| module.path.clone())
                    .unwrap_or_default(),
            })
        }
        _ if nothing => Err(CompileError::NoRepeatedBlocks),
        _ => Ok(()),
    }
}
