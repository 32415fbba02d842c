//! The compiled programs of one model.

use std::collections::HashMap;

use crate::compile::{CompileError, compile};
use crate::device::Capability;
use crate::graph::Graph;
use crate::model::Variant;
use crate::program::Program;

/// Compiles each variant of a model once, for one kind of card.
#[derive(Debug)]
pub struct Programs {
    graph: Graph,
    capability: Capability,
    compiled: HashMap<Variant, Program>,
}

impl Programs {
    /// The programs of `graph`, none compiled yet.
    pub fn new(graph: Graph, capability: Capability) -> Programs {
        Programs {
            graph,
            capability,
            compiled: HashMap::new(),
        }
    }

    /// The step program of a variant.
    pub fn of(&mut self, variant: &Variant) -> Result<&Program, CompileError> {
        if !self.compiled.contains_key(variant) {
            let program = compile(&self.graph, variant, self.capability)?;
            self.compiled.insert(variant.clone(), program);
        }
        Ok(&self.compiled[variant])
    }
}
