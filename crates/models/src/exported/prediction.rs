//! What the model itself returns, and what its batch is filled with.

use std::collections::HashMap;

use crate::graph::{Content, Graph, Node, ValueId, only_arranges, positions};
use crate::ops::Op;

/// The model's output: what the loss is computed from, before the loss code's own reshaping.
///
/// The loss is traced together with the model, either in the wrapper around it or (Hugging Face) in the
/// model's own `forward`. From the loss's input this walks back over views, casts and copies that run
/// where the loss runs; what remains was made by the model: logits, in both cases.
pub(crate) fn prediction(nodes: &[Node], in_wrapper: &[bool], loss: ValueId) -> Option<ValueId> {
    let producer: HashMap<ValueId, usize> = nodes
        .iter()
        .enumerate()
        .flat_map(|(index, node)| node.outputs.iter().map(move |id| (*id, index)))
        .collect();
    let scored = scoring(nodes, loss)?;
    let place = (nodes[scored].module, in_wrapper.get(scored));
    let mut value = *nodes[scored].inputs.first()?;
    while let Some(index) = producer.get(&value) {
        let node = &nodes[*index];
        let same_place = (node.module, in_wrapper.get(*index)) == place;
        match node.inputs.first() {
            Some(input) if same_place && only_arranges(&node.op) => value = *input,
            _ => break,
        }
    }
    Some(value)
}

/// The node that computes the loss: the last loss function, or else what makes the scalar that is trained on.
pub(crate) fn scoring(nodes: &[Node], loss: ValueId) -> Option<usize> {
    let function = nodes
        .iter()
        .rposition(|node| matches!(node.op, Op::Loss(_)));
    function.or_else(|| nodes.iter().rposition(|node| node.outputs.contains(&loss)))
}

/// Fills in the content of integer inputs from the nodes that use them.
pub(crate) fn fill_inputs(graph: &mut Graph) {
    let bounds = positions(graph);
    for index in 0..graph.inputs.len() {
        let input = graph.inputs[index].value;
        if graph.value(input).dtype.is_float() {
            continue;
        }
        // Indices that nothing bounds stay at zero, which is valid everywhere.
        let bound = bounds.get(&input).copied().unwrap_or(1);
        graph.inputs[index].content = Content::Below(bound);
    }
}
