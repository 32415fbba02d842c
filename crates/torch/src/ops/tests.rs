use super::*;

#[test]
fn the_exporter_knows_which_operators_have_rules() {
    let listed = include_str!("../../../../clients/python/src/batchfit/export/operators.txt");

    // After a change: batchfit operators > clients/python/src/batchfit/export/operators.txt
    // Rows that only tests have are in no release.
    let known = known_operators();
    let known: Vec<&str> = known
        .lines()
        .filter(|name| !name.contains("test_only"))
        .collect();
    assert_eq!(listed.lines().collect::<Vec<_>>(), known);
}

use crate::shape::{Extent, Window};

fn batched(rest: &[u64]) -> Vec<Extent> {
    let mut shape = vec![Extent::BATCH];
    shape.extend(rest.iter().map(|n| Extent::fixed(*n)));
    shape
}

fn fixed(shape: &[u64]) -> Vec<Extent> {
    shape.iter().map(|n| Extent::fixed(*n)).collect()
}

fn one(op: &Op, shapes: &[Vec<Extent>]) -> Vec<Extent> {
    let operands: Vec<Type> = shapes.iter().map(|s| (DType::Float32, s.clone())).collect();
    infer(op, &operands).unwrap().remove(0).1
}

fn refusal(op: &Op, shapes: &[Vec<Extent>]) -> String {
    let operands: Vec<Type> = shapes.iter().map(|s| (DType::Float32, s.clone())).collect();
    infer(op, &operands).unwrap_err()
}

#[test]
fn a_linear_replaces_the_last_dimension() {
    let shape = one(
        &Op::Linear(Linear::Linear),
        &[batched(&[7, 16]), fixed(&[10, 16]), fixed(&[10])],
    );

    assert_eq!(shape, batched(&[7, 10]));
}

#[test]
fn a_convolution_slides_over_the_padded_input() {
    let window = Window {
        stride: [1, 2, 2],
        padding: [0, 3, 3],
        ..Window::of([7, 7])
    };

    let shape = one(
        &Op::Convolution(Convolution::Plain(window)),
        &[batched(&[3, 224, 224]), fixed(&[64, 3, 7, 7])],
    );

    assert_eq!(shape, batched(&[64, 112, 112]));
}

#[test]
fn a_kernel_larger_than_its_input_is_refused_with_both_sizes() {
    let text = refusal(
        &Op::Convolution(Convolution::Plain(Window::of([5, 5]))),
        &[batched(&[3, 4, 4]), fixed(&[8, 3, 5, 5])],
    );

    assert_eq!(
        text,
        "a kernel of 5 with padding 0 does not fit a height of 4"
    );
}

#[test]
fn channels_must_agree() {
    let text = refusal(
        &Op::Convolution(Convolution::Plain(Window::of([1, 1]))),
        &[batched(&[4, 8, 8]), fixed(&[8, 3, 1, 1])],
    );

    assert_eq!(
        text,
        "the input has 4 channels, the weight takes 3 in each of 1 groups"
    );
}

#[test]
fn pooling_rounds_down_unless_told() {
    let down = Window {
        stride: [1, 2, 2],
        ..Window::of([2, 2])
    };
    let up = Window {
        ceil_mode: true,
        ..down
    };

    assert_eq!(
        one(&Op::Pool(Pool::Max(down)), &[batched(&[8, 7, 7])]),
        batched(&[8, 3, 3])
    );
    assert_eq!(
        one(&Op::Pool(Pool::Max(up)), &[batched(&[8, 7, 7])]),
        batched(&[8, 4, 4])
    );
}

#[test]
fn sums_broadcast_and_promote() {
    let operands = [
        (DType::Float16, batched(&[1, 4])),
        (DType::Float32, fixed(&[3, 1])),
    ];

    let result = infer(&Elementwise::of("aten.add.Tensor").into(), &operands).unwrap();

    assert_eq!(result, [(DType::Float32, batched(&[3, 4]))]);
}

#[test]
fn a_split_may_leave_a_shorter_last_part() {
    let parts = infer(
        &Op::View(View::Split {
            lengths: [4, 4, 2].map(Extent::fixed).into(),
            dim: 1,
        }),
        &[(DType::Float32, batched(&[10]))],
    )
    .unwrap();

    let lengths: Vec<_> = parts.iter().map(|(_, shape)| shape[1]).collect();
    assert_eq!(lengths, fixed(&[4, 4, 2]));
}

#[test]
fn cross_entropy_takes_one_target_for_each_prediction() {
    let good = infer(
        &Op::Loss(Loss::CROSS_ENTROPY),
        &[
            (DType::Float32, batched(&[21, 8, 8])),
            (DType::Int64, batched(&[8, 8])),
        ],
    );
    let bad = refusal(
        &Op::Loss(Loss::CROSS_ENTROPY),
        &[batched(&[10]), batched(&[10])],
    );

    assert_eq!(good.unwrap(), [(DType::Float32, vec![])]);
    assert_eq!(bad, "targets [b, 10] do not fit predictions [b, 10]");
}

#[test]
fn elementwise_functions_keep_the_shape() {
    let op = Op::Elementwise(Elementwise::of("aten.relu.default"));

    assert_eq!(one(&op, &[batched(&[5])]), batched(&[5]));
}

#[test]
fn a_reshape_keeps_the_number_of_elements_for_every_batch() {
    let to = vec![Extent::per_sample(4), Extent::fixed(6)];

    assert_eq!(
        one(&Op::View(View::Reshape(to.clone())), &[batched(&[4, 6])]),
        to
    );
    assert!(refusal(&Op::View(View::Reshape(to)), &[batched(&[5, 6])]).contains("other elements"));
}

#[test]
fn attention_keeps_the_query_and_takes_the_values_width() {
    let op = Op::Attention(Attention {
        causal: true,
        dropout: 0.0,
        grouped: false,
        scale: None,
    });

    let shape = one(
        &op,
        &[
            batched(&[12, 8, 64]),
            batched(&[12, 9, 64]),
            batched(&[12, 9, 32]),
        ],
    );

    assert_eq!(shape, batched(&[12, 8, 32]));
}
