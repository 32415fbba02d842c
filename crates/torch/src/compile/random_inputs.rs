//! The type of tensors that a model makes for another one.
//!
//! Stochastic depth multiplies a tensor by noise of its own type: `torch.rand(shape, dtype=x.dtype)`; message
//! passing adds messages into zeros of their type: `torch.zeros(shape, dtype=message.dtype)`, since PyTorch
//! refuses to add others. An export names the type that `x` had then; under another precision it is that of
//! `x` again.

use std::collections::{BTreeMap, HashMap};

use crate::graph::{Graph, Node, ValueId};
use crate::ops::{CreatedType, Indexed, Op};

/// For each node that makes a tensor for another one: that one.
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
        .filter_map(|(index, node)| {
            let made = *node.outputs.first()?;
            let partner = if makes_noise(graph, node) {
                multiplied(made)
            } else if makes_floats_of_a_written_type(node) {
                added(graph, made, &first_reader)
            } else {
                None
            };
            Some((index, partner?))
        })
        .collect()
}

fn makes_noise(graph: &Graph, node: &Node) -> bool {
    let random = matches!(&node.op, Op::Create(create) if ["empty", "rand"].contains(&create.name));
    random && node.inputs.is_empty() && graph.value(node.outputs[0]).dtype.is_float()
}

fn makes_floats_of_a_written_type(node: &Node) -> bool {
    matches!(&node.op, Op::Create(create) if matches!(create.dtype, CreatedType::OfModel(_)))
}

/// What is added into a value at looked-up places, where that is the first thing done with it.
fn added(graph: &Graph, made: ValueId, first_reader: &HashMap<ValueId, usize>) -> Option<ValueId> {
    let reader = &graph.nodes[*first_reader.get(&made)?];
    let adds = matches!(
        reader.op,
        Op::Indexed(Indexed::Add { .. } | Indexed::Put { .. } | Indexed::Scatter { .. })
    );
    let source = reader.inputs.last().filter(|_| reader.inputs.len() > 2)?;
    let floats = graph.value(*source).dtype.is_float();
    (adds && floats && reader.inputs[0] == made && *source != made).then_some(*source)
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
            (Op::Elementwise(op), [a, b]) if op.is_product_of_tensors() => {
                return Some(if *a == noise { *b } else { *a });
            }
            (_, [_]) => noise = *node.outputs.first()?,
            _ => return None,
        }
    }
    None
}
