//! The order of an exported graph's values.

use crate::graph::{Graph, ParameterKind, ValueId};

/// A graph with its values in the order of an exported one: parameters, buffers, batch, then results.
pub(super) fn in_order_of_exports(mut graph: Graph) -> Graph {
    graph
        .parameters
        .sort_by_key(|parameter| parameter.kind == ParameterKind::Buffer);
    let held = graph.parameters.iter().map(|parameter| parameter.value);
    let batch = graph.inputs.iter().map(|input| input.value);
    let results = graph
        .nodes
        .iter()
        .flat_map(|node| node.outputs.iter().copied());
    let order: Vec<ValueId> = held.chain(batch).chain(results).collect();
    let mut position = vec![ValueId(0); graph.values.len()];
    for (new, old) in (0..).map(ValueId).zip(&order) {
        position[old.0 as usize] = new;
    }
    let place = |id: &mut ValueId| *id = position[id.0 as usize];

    graph.values = order
        .iter()
        .map(|old| graph.values[old.0 as usize].clone())
        .collect();
    graph
        .parameters
        .iter_mut()
        .for_each(|parameter| place(&mut parameter.value));
    graph
        .inputs
        .iter_mut()
        .for_each(|input| place(&mut input.value));
    for node in &mut graph.nodes {
        node.inputs.iter_mut().for_each(place);
        node.outputs.iter_mut().for_each(place);
    }
    if let Some(releases) = &mut graph.releases {
        let watched = std::mem::take(&mut releases.watched);
        let watched = watched.into_iter().map(|id| position[id.0 as usize]);
        releases.watched = watched.collect();
        releases.after.values_mut().flatten().for_each(place);
        let checks = releases.packed_checks.iter_mut();
        checks.for_each(|(_, id)| place(id));
        releases.dtypes_of.values_mut().flatten().for_each(place);
    }
    for call in &mut graph.functions {
        call.inputs.iter_mut().for_each(|(id, _)| place(id));
        call.outputs
            .iter_mut()
            .for_each(|out| place(&mut out.value));
        let kept = call.saved.iter_mut().chain(&mut call.held);
        kept.for_each(|(id, _)| place(id));
    }
    place(&mut graph.prediction);
    place(&mut graph.loss);
    graph
}
