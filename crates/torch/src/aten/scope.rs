//! Names and what they stand for.

use std::collections::HashMap;

use super::ValueId;
use super::schema::{ExportedSize, TensorMeta};
use crate::shape::Extent;

/// What names of values stand for inside one graph.
#[derive(Default)]
pub struct Scope<'a> {
    /// Tensors by name.
    pub tensors: HashMap<&'a str, ValueId>,
    /// Sizes that are values, by name.
    pub sizes: HashMap<&'a str, Extent>,
    /// Sizes that were not known when the graph was entered, because values that nodes make decide on them.
    pub pending: HashMap<&'a str, &'a ExportedSize<'a>>,
    /// Symbolic numbers as they were for the batch that the graph was traced with.
    pub numbers: HashMap<&'a str, f64>,
    /// What the graph records of its tensors.
    pub types: HashMap<&'a str, &'a TensorMeta<'a>>,
}
