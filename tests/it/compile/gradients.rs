//! Every operation's gradients have the shapes and types of what they are gradients of.

mod cases;

use batchfit::aten::Constant;
use batchfit::compile::compile;
use batchfit::graph::{Builder, Content, Graph, ParameterKind};
use batchfit::model::{Optimizer, Precision, Variant};
use batchfit::ops::{
    Attention, Cast, Convolution, Copy, Dims, Dropout, Einsum, Elementwise, Embedding, Join,
    Linear, Loss, Matmul, Norm, Op, Pool, Random, Reduce, Reduction, Resample, View,
};
use batchfit::program::Placement;
use batchfit::program::{Category, Instruction, Program, Size};
use batchfit::shape::{DType, Extent, Window, numel};

use super::H200;

fn fixed(shape: &[u64]) -> Vec<Extent> {
    shape.iter().map(|n| Extent::fixed(*n)).collect()
}

/// A model whose loss is `op` on trained parameters of these shapes, made a row of class scores.
fn model_of(op: &Op, operands: &[&[u64]]) -> Graph {
    let mut builder = Builder::new("Model");
    let parameters: Vec<_> = operands
        .iter()
        .enumerate()
        .map(|(i, shape)| {
            builder.parameter(
                &format!("p{i}"),
                ParameterKind::Trained,
                DType::Float32,
                fixed(shape),
            )
        })
        .collect();
    let buffers: Vec<_> = match op {
        Op::Norm(Norm::Batch { .. }) => ["mean", "var"]
            .map(|name| {
                let shape = fixed(operands[1]);
                builder.parameter(name, ParameterKind::Buffer, DType::Float32, shape)
            })
            .into(),
        _ => Vec::new(),
    };
    let below = |n| Content::Below(n);
    let target = builder.input("target", DType::Int64, fixed(&[1]), below(2));
    let mut inputs: Vec<_> = parameters
        .iter()
        .map(|id| {
            // A leaf cannot be overwritten; its product with one can.
            builder
                .apply(
                    Builder::ROOT,
                    "operand",
                    Op::Elementwise(
                        Elementwise::of("aten.mul.Tensor").with("other", Constant::Real(1.0)),
                    ),
                    &[*id],
                )
                .unwrap()
        })
        .collect();
    if matches!(op, Op::Embedding(_)) {
        inputs.push(builder.input("indices", DType::Int64, fixed(&[5, 3]), below(7)));
    }
    inputs.extend(buffers);
    let results = builder
        .apply_many(Builder::ROOT, &["result"], op.clone(), &inputs)
        .unwrap();
    let mut rows = Vec::new();
    for result in results {
        let row = vec![Extent::ONE, numel(&builder.value(result).shape)];
        rows.push(
            builder
                .apply(
                    Builder::ROOT,
                    "row",
                    Op::View(View::Reshape(row)),
                    &[result],
                )
                .unwrap(),
        );
    }
    let scores = builder
        .apply(
            Builder::ROOT,
            "scores",
            Op::Join(Join::Cat { dim: 1 }),
            &rows,
        )
        .unwrap();
    let loss = builder
        .apply(
            Builder::ROOT,
            "loss",
            Op::Loss(Loss::CROSS_ENTROPY),
            &[scores, target],
        )
        .unwrap();
    builder.finish(scores, loss)
}

/// The gradient of each parameter, by path: how many elements of which type.
fn gradients(program: &Program) -> Vec<(&str, u64, DType)> {
    let in_first = |index: usize| {
        let sections = program.steps[0].iter();
        let mut instructions = sections.flat_map(|section| &section.instructions);
        instructions.any(|instruction| {
            matches!(instruction, Instruction::Allocate(id) if id.0 as usize == index)
        })
    };
    program
        .tensors
        .iter()
        .enumerate()
        .filter(|(index, tensor)| tensor.category == Category::Gradients && in_first(*index))
        .map(|(_, tensor)| match program.sizes[tensor.size.0 as usize] {
            Size::Elements(count, dtype) => (&*tensor.label, count.at(1), dtype),
            _ => panic!("{}: a gradient has elements", tensor.label),
        })
        .collect()
}

#[test]
fn gradients_have_the_shapes_of_their_parameters() {
    for precision in Precision::ALL {
        let variant = Variant {
            precision,
            optimizer: Optimizer::SgdMomentum,
            accumulation: 2,
            ..Variant::default()
        };
        for (op, operands) in cases::all() {
            let graph = model_of(&op, &operands);

            let program = compile(&graph, &variant, H200).unwrap();

            let mut found = gradients(&program);
            found.sort_unstable();
            let labels: Vec<String> = (0..operands.len()).map(|i| format!("p{i}")).collect();
            let expected: Vec<_> = labels
                .iter()
                .zip(&operands)
                .map(|(label, shape)| {
                    (
                        label.as_str(),
                        shape.iter().product::<u64>(),
                        precision.parameters(),
                    )
                })
                .collect();
            assert_eq!(found, expected, "{} under {}", op.name(), precision.name());
        }
    }
}

/// Nothing is read before it exists or after it is gone, and nothing leaks from step to step.
#[test]
fn launches_touch_only_what_is_allocated() {
    let variant = Variant {
        accumulation: 4,
        ..Variant::default()
    };
    for (op, operands) in cases::all() {
        let program = compile(&model_of(&op, &operands), &variant, H200).unwrap();

        let mut live = std::collections::BTreeSet::new();
        let mut after = Vec::new();
        let mut seen = 0;
        for steps in 0..3 {
            for instruction in program.unrolled(steps).skip(seen) {
                match instruction {
                    Instruction::Allocate(id) => assert!(live.insert(*id), "{id:?} twice"),
                    Instruction::Free(id) => assert!(live.remove(id), "{id:?} was not allocated"),
                    Instruction::Launch(call) => {
                        for view in call.inputs.iter().chain(&call.outputs) {
                            assert!(live.contains(&view.tensor), "{}: {call:?}", op.name());
                        }
                    }
                }
            }
            seen = program.unrolled(steps).count();
            after.push(live.len());
        }
        assert_eq!(after[1], after[2], "{}: tensors after each step", op.name());
    }
}
