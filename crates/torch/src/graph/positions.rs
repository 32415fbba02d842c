//! Values that are positions in others, and so have to be small enough.

use std::collections::HashMap;

use super::{Graph, Node, ValueId};
use crate::ops::{Copy, Op, Resample, View};
use crate::shape::Type;

/// For each value whose elements, as they are or rearranged, are positions in other values: the least number below
/// which all of them must be. A length that depends on the batch allows the first position only.
pub fn positions(graph: &Graph) -> HashMap<ValueId, u64> {
    let origin = origins(&graph.nodes);
    let mut bounds: HashMap<ValueId, u64> = HashMap::new();
    for node in &graph.nodes {
        let typed = |id: &ValueId| (graph.value(*id).dtype, graph.value(*id).shape.clone());
        let operands: Vec<Type> = node.inputs.iter().map(typed).collect();
        for (operand, length) in node.op.positions(&operands) {
            let Some(positions) = node.inputs.get(operand) else {
                continue;
            };
            let from = origin.get(positions).copied().unwrap_or(*positions);
            let bound = length.as_fixed().unwrap_or(1).max(1);
            let least = bounds.entry(from).or_insert(bound);
            *least = bound.min(*least);
        }
    }
    bounds
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

/// Whether its result has the elements of its first operand, elsewhere or as another type.
pub fn only_arranges(op: &Op) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Builder, Content, ParameterKind};
    use crate::ops::{Embedding, Indexed};
    use crate::shape::{DType, Extent};

    fn fixed(shape: &[u64]) -> Vec<Extent> {
        shape.iter().map(|length| Extent::fixed(*length)).collect()
    }

    #[test]
    fn positions_are_below_the_least_length_of_what_they_are_looked_up_in() {
        let mut builder = Builder::new("Tables");
        let mut held = |name: &str, dtype, shape: &[u64]| {
            builder.parameter(name, ParameterKind::Buffer, dtype, fixed(shape))
        };
        let table = held("table", DType::Float32, &[9, 2]);
        let small = held("small", DType::Float32, &[3, 4, 5]);
        let both = held("both", DType::Int64, &[6]);
        let large = held("large", DType::Int64, &[2, 3]);
        let second = held("second", DType::Int64, &[6]);
        let unused = held("unused", DType::Int64, &[6]);
        let x = vec![Extent::BATCH, Extent::fixed(4)];
        let x = builder.input("x", DType::Float32, x, Content::Normal);
        let row = held_row(&mut builder, large);
        let mut apply = |op: Op, inputs: &[ValueId]| {
            let done = builder.apply(Builder::ROOT, "looked_up", op, inputs);
            done.unwrap()
        };
        apply(Op::Embedding(Embedding { padding: None }), &[table, row]);
        apply(Op::Embedding(Embedding { padding: None }), &[table, both]);
        let marked = vec![true, false, true];
        let loss = apply(Indexed::Index(marked).into(), &[small, both, second]);
        let some = builder.parameter("some", ParameterKind::Buffer, DType::Int64, fixed(&[6]));
        let select = Indexed::Select { dim: 0 };
        builder
            .apply(Builder::ROOT, "rows", select, &[x, some])
            .unwrap();

        let found = positions(&builder.finish(loss, loss));

        assert_eq!(found.get(&large), Some(&9));
        assert_eq!(found.get(&both), Some(&3));
        assert_eq!(found.get(&second), Some(&5));
        assert_eq!(found.get(&unused), None);
        // A batch may have a single sample.
        assert_eq!(found.get(&some), Some(&1));
    }

    /// A value in one row.
    fn held_row(builder: &mut Builder, value: ValueId) -> ValueId {
        let flat = View::Reshape(fixed(&[6]));
        let row = builder.apply(Builder::ROOT, "view", flat, &[value]);
        row.unwrap()
    }
}
