//! Names and what they stand for.

use std::collections::HashMap;

use super::ValueId;
use super::schema::{ExportedSize, TensorMeta};
use crate::shape::Extent;

/// What names of values stand for inside one graph.
pub(crate) struct Scope<'a> {
    pub(crate) tensors: HashMap<&'a str, ValueId>,
    pub(crate) sizes: HashMap<&'a str, Extent>,
    /// Sizes that were not known when the graph was entered, because values that nodes make decide on them.
    pub(crate) pending: HashMap<&'a str, &'a ExportedSize<'a>>,
    /// Symbolic numbers as they were for the batch that the graph was traced with.
    pub(crate) numbers: HashMap<&'a str, f64>,
    /// What the graph records of its tensors.
    pub(crate) types: HashMap<&'a str, &'a TensorMeta<'a>>,
}
