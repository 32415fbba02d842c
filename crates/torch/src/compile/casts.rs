//! What an export in float32 does not say of its casts and of regions without autocast.
//!
//! See Note [Casts in an exported graph].

use std::collections::BTreeMap;

use crate::graph::{Graph, Lifetimes, Node, ValueId};
use crate::ops::{Cast, Op};
use crate::shape::DType;

/// For each cast that goes back to the type a value had, the cast that left it.
///
/// `x.to(float32)` and, later in the same function, `y.to(x's type)` both read "to float32" and do nothing
/// in an export in float32. Where `x` is of half precision when the graph runs, the second goes back to it.
/// So do norms of queries and keys. Only arguments of the module's call count: of what a function makes
/// itself it may have converted one to the type of another.
pub(super) fn returns(graph: &Graph) -> BTreeMap<usize, usize> {
    let mut makers = vec![None; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for id in &node.outputs {
            makers[id.0 as usize] = Some(index);
        }
    }
    let maker = |id: &ValueId| makers[id.0 as usize];
    let is_idle = |node: &Node| {
        let of = node.inputs.first().map(|id| graph.value(*id).dtype);
        matches!(node.op, Op::Cast(Cast(DType::Float32, _))) && of == Some(DType::Float32)
    };
    let departs = |node: &Node| {
        let made = node.inputs.first().and_then(maker);
        is_idle(node) && made.is_some_and(|made: usize| graph.nodes[made].module != node.module)
    };
    // For each node, the departure that its operands come from inside of its own module: of the last operand that
    // comes from one. Worked out in order, each from those before.
    let mut departure: Vec<Option<usize>> = Vec::with_capacity(graph.nodes.len());
    let mut found = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let beside = |id: &ValueId| {
            let made = maker(id).filter(|made| *made < index)?;
            (graph.nodes[made].module == node.module).then_some(made)
        };
        let from = |made: usize| {
            if departs(&graph.nodes[made]) {
                Some(made)
            } else {
                departure[made]
            }
        };
        if is_idle(node) && !departs(node) {
            // The same argument converted once more is no return.
            let made = beside(&node.inputs[0]).filter(|made| !departs(&graph.nodes[*made]));
            if let Some(left) = made.and_then(|made| departure[made]) {
                found.insert(index, left);
            }
        }
        let operands = node.inputs.iter().rev().filter_map(beside);
        let left = operands.map(from).find_map(|left| left);
        departure.push(left);
    }
    found
}

/// Whether a node runs with autocast off: because the export says so, or, where the export was not watched,
/// because Hugging Face computes rotary tables in float32 and tracing leaves no mark of it.
pub(super) fn is_without_autocast(graph: &Graph, node: &Node) -> bool {
    let class = &graph.module(node.module).class;
    let rotary = class.starts_with("transformers.") && class.contains("RotaryEmbedding");
    !node.autocast_enabled || (rotary && graph.lifetimes() == Lifetimes::Assumed)
}
