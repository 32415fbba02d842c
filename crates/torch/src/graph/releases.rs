//! When Python lets go of values, recorded while a graph was exported.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::ValueId;

/// How it is known when values of the forward pass die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetimes {
    /// The model's own Python code was watched.
    Recorded,
    /// The graph has no names: a value is taken to live as long as the module call that consumes it, at
    /// least.
    Assumed,
}

/// What Python did with the values of a graph besides computing them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Releases {
    /// Values whose lifetime was watched. Those in no release live until the loss exists.
    pub watched: BTreeSet<ValueId>,
    /// For a node, the values that Python lets go of once it has run, in this order. Nothing after it reads
    /// them, and they are made by then.
    pub after: BTreeMap<usize, Vec<ValueId>>,
    /// Nodes after which eager code looks for packed sequences, and the position ids it looks at, which have
    /// two dimensions.
    pub packed_checks: Vec<(usize, ValueId)>,
    /// Casts whose code asks for the type of a tensor (`x.to(y.dtype)`), by node: that tensor, or `None` for a parameter
    /// or a tensor of the batch.
    pub dtypes_of: BTreeMap<usize, Option<ValueId>>,
}
