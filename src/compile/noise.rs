//! The type of noise that a model makes for a tensor.
//!
//! Stochastic depth multiplies a tensor by noise of its own type: `torch.rand(shape, dtype=x.dtype)`. An
//! export names the type that `x` had then; under another precision it is that of `x` again.

use std::collections::{BTreeMap, HashMap};

use crate::graph::{Graph, Node, Op, ValueId};

/// For each node that makes noise: what it is multiplied by.
pub(super) fn noise_for(graph: &Graph) -> BTreeMap<usize, ValueId> {
    let mut first_reader: HashMap<ValueId, usize> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for id in &node.inputs {
            first_reader.entry(*id).or_insert(index);
        }
    }
    let multiplied = |noise| multiplied(graph, noise, &first_reader);
    let nodes = graph.nodes.iter().enumerate();
    nodes
        .filter(|(_, node)| makes_noise(graph, node))
        .filter_map(|(index, node)| Some((index, multiplied(node.outputs[0])?)))
        .collect()
}

fn makes_noise(graph: &Graph, node: &Node) -> bool {
    let random = matches!(&node.op, Op::Create(create) if ["empty", "rand"].contains(&create.name));
    random && node.inputs.is_empty() && graph.value(node.outputs[0]).dtype.is_float()
}

/// The other factor of the product that a value ends in, through operations on it alone.
fn multiplied(
    graph: &Graph,
    mut noise: ValueId,
    first_reader: &HashMap<ValueId, usize>,
) -> Option<ValueId> {
    while let Some(reader) = first_reader.get(&noise) {
        let node = &graph.nodes[*reader];
        match (&node.op, node.inputs.as_slice()) {
            (Op::Mul, [a, b]) => return Some(if *a == noise { *b } else { *a }),
            (_, [_]) => noise = *node.outputs.first()?,
            _ => return None,
        }
    }
    None
}
