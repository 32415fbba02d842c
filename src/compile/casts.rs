//! What an export in float32 does not say of its casts and of regions without autocast.
//!
//! See Note [Casts in an exported graph].

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{DType, Graph, ModuleId, Node, Op, ValueId};

/// For each cast that goes back to the type a value had, the operation that left it.
///
/// `x.to(float32)` and, later in the same function, `y.to(x's type)` both read "to float32" and do nothing
/// in an export in float32. Where `x` is of half precision when the graph runs, the second goes back to it.
pub(super) fn returns(graph: &Graph) -> BTreeMap<usize, usize> {
    let mut maker: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for id in &node.outputs {
            maker.insert(*id, index);
        }
    }
    let leaves = |node: &Node| {
        let of = graph.value(node.inputs[0]).dtype;
        match &node.op {
            Op::Cast(to) => to.is_float() && *to == of,
            Op::Softmax { dtype, .. } => *dtype == Some(of),
            _ => false,
        }
    };
    let mut found = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if !matches!(node.op, Op::Cast(DType::Float32)) || !leaves(node) {
            continue;
        }
        let mut seen = BTreeSet::new();
        let mut waiting = vec![node.inputs[0]];
        while let Some(id) = waiting.pop() {
            let Some(made) = maker.get(&id).filter(|made| seen.insert(**made)) else {
                continue;
            };
            let from = &graph.nodes[*made];
            if from.module != node.module {
                continue;
            }
            if leaves(from) {
                // A cast that goes back itself is no departure.
                if !found.contains_key(made) {
                    found.insert(index, *made);
                    break;
                }
                continue;
            }
            waiting.extend(&from.inputs);
        }
    }
    found
}

/// Whether a module's code runs with autocast off: Hugging Face computes rotary tables in float32, and an
/// export keeps no trace of it.
pub(super) fn is_without_autocast(graph: &Graph, module: ModuleId) -> bool {
    let class = &graph.module(module).class;
    class.starts_with("transformers.") && class.contains("RotaryEmbedding")
}
