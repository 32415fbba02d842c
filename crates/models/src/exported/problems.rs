//! What is wrong with the nodes of a graph: all of it at once.

use std::collections::HashMap;

use super::error::ExportedError;
use super::unknown::UnknownOperator;
use crate::limits::shorten_sentence;

/// So many different problems are looked for. A graph that has more is no graph of this kind at all.
const MOST: usize = 100;

/// A node that is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeProblem {
    /// Where the first node with this problem is.
    pub pointer: String,
    /// The path of the module that runs it; empty for the model itself.
    pub module: String,
    /// What is wrong.
    pub problem: String,
    /// How many nodes have it.
    pub count: usize,
}

/// The problems of a graph, in the order of its nodes.
#[derive(Debug, Default)]
pub(super) struct Problems {
    found: Vec<NodeProblem>,
    by_text: HashMap<String, usize>,
    nodes: usize,
}

impl Problems {
    pub(super) fn note(&mut self, pointer: String, module: String, problem: String) {
        self.nodes += 1;
        let problem = shorten_sentence(problem);
        if let Some(known) = self.by_text.get(&problem) {
            self.found[*known].count += 1;
            return;
        }
        self.by_text.insert(problem.clone(), self.found.len());
        self.found.push(NodeProblem {
            pointer,
            module,
            problem,
            count: 1,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Whether it makes no sense to go on. A node may take long to be refused, so nodes count too.
    pub(super) fn is_full(&self) -> bool {
        self.found.len() >= MOST || self.nodes >= 10 * MOST
    }

    /// The error, together with the operators that are not known.
    pub(super) fn with(self, unknown: Vec<UnknownOperator>) -> ExportedError {
        ExportedError::NotUnderstood {
            problems: self.found,
            unknown,
        }
    }
}
