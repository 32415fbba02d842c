//! Operators that are not known.

use super::headroom::Uncertainty;
use crate::graph::Graph;
use crate::ops::Op;
use crate::shape::{Extent, numel};
use crate::units::Bytes;

/// Elements that pass through operators taken to be elementwise, each operand and result with its size in bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Assumed(Vec<(Extent, u64)>);

impl Assumed {
    /// Those of a graph, in the types that it was exported in: float32, where autocast may have half of it.
    pub(crate) fn of(graph: &Graph) -> Assumed {
        let opaque = graph
            .nodes
            .iter()
            .filter(|node| matches!(node.op, Op::Opaque(_)));
        let values = opaque.flat_map(|node| node.inputs.iter().chain(&node.outputs));
        let sized = |id: &crate::graph::ValueId| {
            let value = graph.value(*id);
            (numel(&value.shape), value.dtype.size())
        };
        Assumed(values.map(sized).collect())
    }

    /// The uncertainty about a batch, if there is one.
    pub(crate) fn at(&self, batch: u64) -> Option<Uncertainty> {
        let bytes = |(elements, size): &(Extent, u64)| elements.at(batch).saturating_mul(*size);
        let all = self.0.iter().map(bytes).fold(0, u64::saturating_add);
        (!self.0.is_empty()).then_some(Uncertainty::Assumed(Bytes(all)))
    }
}
