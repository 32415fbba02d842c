//! What runs around a range of a graph's nodes.

use std::collections::BTreeMap;
use std::ops::Range;

use batchfit_step::Variant;

use super::checkpoint::{is_reentrant, regions};
use crate::graph::Graph;

/// Nodes that something runs before and after.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) end: usize,
    pub(super) around: Around,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Around {
    /// `torch.utils.checkpoint`. Hugging Face's is outside of a module's hooks.
    Checkpoint,
    /// The same with `use_reentrant=True`.
    Reentrant,
    /// The hooks of a sharded unit.
    Unit(usize),
}

/// Checkpointed regions; the whole of a graph is none.
pub(super) fn checkpoints(graph: &Graph, variant: &Variant) -> BTreeMap<usize, Vec<Scope>> {
    let all = 0..graph.nodes.len();
    let regions = regions(graph, &variant.checkpointing).into_iter();
    let scope = |region: Range<usize>| {
        let around = if is_reentrant(graph, &region) {
            Around::Reentrant
        } else {
            Around::Checkpoint
        };
        let end = region.end;
        (region.start, vec![Scope { end, around }])
    };
    regions.filter(|region| *region != all).map(scope).collect()
}
