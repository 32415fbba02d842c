//! The compiled programs of one model.

use std::collections::HashMap;
use std::sync::Arc;

use crate::compile::{CompileError, compile, compile_memory};
use crate::device::Capability;
use crate::graph::Graph;
use crate::model::Variant;
use crate::program::Program;

/// Compiles each variant of a model once, for one kind of card.
#[derive(Debug)]
pub struct Programs {
    graph: Arc<Graph>,
    capability: Capability,
    compiled: HashMap<Variant, Program>,
    /// Whether they are run, or simulated.
    with_launches: bool,
}

/// Most allocations that the programs kept for a model have together: a hundred bytes each. The largest models in use
/// have a few hundred thousand.
const MOST_KEPT: usize = 1 << 20;

impl Programs {
    /// The programs of `graph`, none compiled yet.
    pub fn new(graph: Graph, capability: Capability) -> Programs {
        Programs {
            graph: Arc::new(graph),
            capability,
            compiled: HashMap::new(),
            with_launches: true,
        }
    }

    /// The same for a simulation, which launches nothing.
    pub fn simulated(graph: Graph, capability: Capability) -> Programs {
        Programs {
            with_launches: false,
            ..Programs::new(graph, capability)
        }
    }

    /// The step program of a variant.
    pub fn of(&mut self, variant: &Variant) -> Result<&Program, CompileError> {
        if !self.compiled.contains_key(variant) {
            let kept = self.compiled.values().map(|program| program.tensors.len());
            if kept.sum::<usize>() > MOST_KEPT {
                self.compiled.clear();
            }
            let program = if self.with_launches {
                compile(&self.graph, variant, self.capability)?
            } else {
                compile_memory(&self.graph, variant, self.capability)?
            };
            self.compiled.insert(variant.clone(), program);
        }
        Ok(&self.compiled[variant])
    }
}
