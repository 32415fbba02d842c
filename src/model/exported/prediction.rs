//! What the model itself returns, and what its batch is filled with.

use std::collections::HashMap;

use crate::graph::{Content, Graph, Node, ValueId};
use crate::ops::{Copy, Op, Resample, View};

/// The model's output: what the loss is computed from, before the loss code's own reshaping.
///
/// The loss is traced together with the model, either in the wrapper around it or (Hugging Face) in the
/// model's own `forward`. From the loss's input this walks back over views, casts and copies that run
/// where the loss runs; what remains was made by the model: logits, in both cases.
pub(in crate::model) fn prediction(
    nodes: &[Node],
    in_wrapper: &[bool],
    loss: ValueId,
) -> Option<ValueId> {
    let producer: HashMap<ValueId, usize> = nodes
        .iter()
        .enumerate()
        .flat_map(|(index, node)| node.outputs.iter().map(move |id| (*id, index)))
        .collect();
    let scored = nodes
        .iter()
        .rposition(|node| matches!(node.op, Op::Loss(_)));
    let scored = scored.or_else(|| producer.get(&loss).copied())?;
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

/// Fills in the content of integer inputs from the nodes that use them.
pub(in crate::model) fn fill_inputs(graph: &mut Graph) {
    let origin = origins(&graph.nodes);
    // The least bound of what is looked up in each value.
    let mut bounds: HashMap<ValueId, u64> = HashMap::new();
    for node in &graph.nodes {
        let bound = match &node.op {
            Op::Embedding(_) => graph.value(node.inputs[0]).shape[0].as_fixed(),
            Op::Loss(_) => {
                let classes = graph.value(node.inputs[0]).shape.get(1);
                classes.and_then(|classes| classes.as_fixed())
            }
            _ => None,
        };
        if let Some(bound) = bound {
            let indices = node.inputs[1];
            let from = origin.get(&indices).copied().unwrap_or(indices);
            let least = bounds.entry(from).or_insert(bound);
            *least = bound.min(*least);
        }
    }
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

/// For each value that is another one rearranged: the value it comes from.
fn origins(nodes: &[Node]) -> HashMap<ValueId, ValueId> {
    let mut origin = HashMap::new();
    for node in nodes.iter().filter(|node| only_arranges(&node.op)) {
        if let Some(input) = node.inputs.first() {
            let from = origin.get(input).copied().unwrap_or(*input);
            origin.extend(node.outputs.iter().map(|output| (*output, from)));
        }
    }
    origin
}

fn only_arranges(op: &Op) -> bool {
    matches!(
        op,
        Op::View(
            View::Reshape(_)
                | View::Permute(_)
                | View::Unsqueeze(_)
                | View::Expand(_)
                | View::Slice { .. }
                | View::Split { .. }
                | View::Slices { .. }
                | View::Alias
        ) | Op::Resample(Resample::PadConstant { .. })
            | Op::Copy(Copy::Contiguous)
            | Op::Cast(_)
    )
}
