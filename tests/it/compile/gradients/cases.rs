//! One call of each operator that has a gradient.

use super::*;

#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn all() -> Vec<(Op, Vec<&'static [u64]>)> {
    let window = Window {
        padding: [0, 1, 1],
        stride: [1, 2, 2],
        ..Window::of([3, 3])
    };
    let average = |window| Pool::Average {
        window,
        count_include_pad: true,
        divisor: None,
    };
    vec![
        (Op::Linear(Linear::Linear), vec![&[4, 6], &[5, 6], &[5]]),
        (Op::Linear(Linear::Linear), vec![&[4, 6], &[5, 6]]),
        (Op::Linear(Linear::Linear), vec![&[2, 4, 6], &[5, 6], &[5]]),
        (Op::Linear(Linear::Addmm), vec![&[5], &[4, 6], &[6, 5]]),
        (
            Op::Convolution(Convolution::Plain(window)),
            vec![&[2, 3, 8, 8], &[4, 3, 3, 3], &[4]],
        ),
        (
            Op::Convolution(Convolution::Plain(Window {
                groups: 3,
                ..window
            })),
            vec![&[2, 6, 8, 8], &[9, 2, 3, 3]],
        ),
        (
            Op::Convolution(Convolution::Transposed(
                Window {
                    stride: [1, 2, 2],
                    ..Window::of([2, 2])
                },
                [0; 3],
            )),
            vec![&[2, 4, 5, 5], &[4, 3, 2, 2], &[3]],
        ),
        (Op::Matmul(Matmul::Matmul), vec![&[2, 3, 4], &[2, 4, 5]]),
        (
            Op::View(View::Select {
                dim: 1,
                index: Extent::fixed(2),
            }),
            vec![&[3, 4]],
        ),
        (
            Op::Reduce(Reduce {
                function: Reduction::Mean,
                dims: Dims::Named(vec![1]),
                keep: true,
                dtype: None,
            }),
            vec![&[3, 4]],
        ),
        (
            Op::Reduce(Reduce {
                function: Reduction::Mean,
                dims: Dims::Named(vec![0, 2]),
                keep: false,
                dtype: None,
            }),
            vec![&[3, 4, 5]],
        ),
        (
            Op::Norm(Norm::Batch {
                training: true,
                momentum: 0.1,
                eps: 1e-5,
            }),
            vec![&[2, 3, 4, 4], &[3], &[3]],
        ),
        (
            Op::Norm(Norm::Batch {
                training: false,
                momentum: 0.1,
                eps: 1e-5,
            }),
            vec![&[2, 3, 4, 4], &[3], &[3]],
        ),
        (
            Op::Norm(Norm::Layer { dims: 1, eps: 1e-5 }),
            vec![&[2, 3, 8], &[8], &[8]],
        ),
        (
            Op::Elementwise(Elementwise::of("aten.add.Tensor")),
            vec![&[3, 4], &[3, 4]],
        ),
        (
            Op::Elementwise(Elementwise::of("aten.add.Tensor")),
            vec![&[3, 4], &[4]],
        ),
        (
            Op::Elementwise(Elementwise::of("aten.add_.Tensor")),
            vec![&[3, 4], &[1, 4]],
        ),
        (
            Op::Elementwise(Elementwise::of("aten.mul.Tensor")),
            vec![&[3, 4], &[3, 4]],
        ),
        (
            Op::Elementwise(Elementwise::of("aten.mul.Tensor")),
            vec![&[3, 1], &[4]],
        ),
        (
            Op::Elementwise(Elementwise::of("aten.add.Tensor").with("other", Constant::Real(2.0))),
            vec![&[3]],
        ),
        (
            Op::Elementwise(Elementwise::of("aten.add_.Tensor").with("other", Constant::Real(2.0))),
            vec![&[3]],
        ),
        (
            Op::Elementwise(Elementwise::of("aten.mul.Tensor").with("other", Constant::Real(2.0))),
            vec![&[3]],
        ),
        (
            Op::Elementwise(
                Elementwise::of("aten.pow.Tensor_Scalar").with("exponent", Constant::Real(3.0)),
            ),
            vec![&[3]],
        ),
        (
            Op::Random(Random {
                p: 0.1,
                train: true,
                dropout: Dropout::Fused,
            }),
            vec![&[3, 5]],
        ),
        (
            Op::Random(Random {
                p: 0.1,
                train: false,
                dropout: Dropout::Fused,
            }),
            vec![&[3, 5]],
        ),
        (Op::Pool(Pool::Max(window)), vec![&[2, 3, 8, 8]]),
        (
            Op::Pool(Pool::AdaptiveAverage([1, 1, 1])),
            vec![&[2, 3, 8, 8]],
        ),
        (
            Op::Pool(Pool::AdaptiveAverage([1, 3, 2])),
            vec![&[2, 3, 8, 8]],
        ),
        (Op::Embedding(Embedding { padding: None }), vec![&[7, 4]]),
        (Op::View(View::Reshape(fixed(&[6, 2]))), vec![&[3, 4]]),
        (Op::View(View::Permute(vec![1, 2, 0])), vec![&[3, 4, 5]]),
        (Op::View(View::Unsqueeze(1)), vec![&[3, 4]]),
        (Op::View(View::Expand(fixed(&[5, 3, 4]))), vec![&[3, 1]]),
        (
            Op::View(View::Slice {
                dim: 1,
                start: Extent::ONE,
                end: Extent::fixed(3),
                step: 1,
            }),
            vec![&[3, 4]],
        ),
        (
            Op::View(View::Slice {
                dim: 0,
                start: Extent::ONE,
                end: Extent::fixed(7),
                step: 3,
            }),
            vec![&[8, 4]],
        ),
        (
            Op::View(View::Split {
                lengths: fixed(&[3, 4, 1]),
                dim: 1,
            }),
            vec![&[2, 8]],
        ),
        (Op::View(View::Unbind { dim: 1 }), vec![&[2, 3, 4]]),
        (Op::Join(Join::Cat { dim: 1 }), vec![&[2, 3], &[2, 5]]),
        (Op::Join(Join::Stack { dim: 1 }), vec![&[2, 3], &[2, 3]]),
        (
            Op::Copy(Copy::Roll {
                shifts: vec![(1, Some(0)), (-1, Some(1))],
            }),
            vec![&[2, 3]],
        ),
        (Op::Copy(Copy::Flip { dims: vec![0] }), vec![&[2, 3]]),
        (Op::Copy(Copy::Repeat(fixed(&[2, 1, 3]))), vec![&[4, 5]]),
        (Op::Copy(Copy::Repeat(fixed(&[1, 1]))), vec![&[4, 5]]),
        (
            Op::Reduce(Reduce {
                function: Reduction::Sum,
                dims: Dims::Named(vec![0, 2]),
                keep: false,
                dtype: None,
            }),
            vec![&[3, 4, 5]],
        ),
        (Op::Copy(Copy::Contiguous), vec![&[3, 4]]),
        (Op::Copy(Copy::Clone), vec![&[3, 4]]),
        (Op::View(View::Alias), vec![&[3, 4]]),
        (Op::Cast(Cast(DType::BFloat16, false)), vec![&[3, 4]]),
        (
            Op::Resample(Resample::PadConstant {
                amounts: vec![[1, 2], [0, -1]],
                value: 0.0,
            }),
            vec![&[3, 4]],
        ),
        (
            Op::Resample(Resample::PadCopied {
                amounts: vec![[1, 2]],
                reflect: true,
            }),
            vec![&[2, 3, 4]],
        ),
        (Op::Pool(average(window)), vec![&[2, 3, 8, 8]]),
        (
            Op::Resample(Resample::Interpolate(batchfit::ops::Interpolation {
                to: vec![9, 9],
                mode: batchfit::ops::Interpolated::Nearest,
                align_corners: false,
                ratios: vec![0.0, 0.0],
            })),
            vec![&[2, 3, 8, 8]],
        ),
        (Op::Resample(Resample::PixelShuffle(2)), vec![&[2, 8, 3, 3]]),
        (
            Op::Resample(Resample::PixelUnshuffle(2)),
            vec![&[2, 2, 4, 4]],
        ),
        (Op::Resample(Resample::Glu(1)), vec![&[3, 4]]),
        (Op::Resample(Resample::Unfold(window)), vec![&[2, 3, 8, 8]]),
        (
            Op::Resample(Resample::Fold {
                window: Window::of([2, 2]),
                to: [4, 4],
            }),
            vec![&[2, 12, 9]],
        ),
        (
            Op::View(View::Windows {
                dim: 1,
                size: 3,
                step: 2,
            }),
            vec![&[2, 9]],
        ),
        (
            Op::Norm(Norm::Group {
                groups: 2,
                eps: 1e-5,
            }),
            vec![&[2, 4, 3, 3], &[4], &[4]],
        ),
        (
            Op::Norm(Norm::Group {
                groups: 2,
                eps: 1e-5,
            }),
            vec![&[2, 4, 3, 3]],
        ),
        (
            Op::Norm(Norm::Instance { eps: 1e-5 }),
            vec![&[2, 4, 3, 3], &[4], &[4]],
        ),
        (
            Op::Norm(Norm::PlainBatch {
                weight: true,
                bias: false,
                momentum: 0.1,
                eps: 1e-5,
            }),
            vec![&[1, 4, 9], &[4]],
        ),
        (
            Op::Elementwise(Elementwise::of("aten.addcmul.default")),
            vec![&[3, 1], &[1, 4], &[3, 4]],
        ),
        (
            Op::Elementwise(Elementwise::of("aten.prelu.default")),
            vec![&[2, 3, 4], &[3]],
        ),
        (
            Op::Einsum(Einsum::parse("bij,bkj->kbi", &[3, 3]).unwrap()),
            vec![&[2, 3, 4], &[2, 5, 4]],
        ),
        (
            Op::Reduce(Reduce {
                function: Reduction::Norm {
                    order: 2.0,
                    is_older: false,
                },
                dims: Dims::Named(vec![1]),
                keep: false,
                dtype: None,
            }),
            vec![&[2, 3, 4]],
        ),
        (
            Op::Random(Random {
                p: 0.1,
                train: true,
                dropout: Dropout::ByNoise {
                    placement: Placement::New,
                    features: true,
                },
            }),
            vec![&[2, 3, 4]],
        ),
        (
            Op::Random(Random {
                p: 0.1,
                train: true,
                dropout: Dropout::ByNoise {
                    placement: Placement::InPlace,
                    features: false,
                },
            }),
            vec![&[2, 3, 4]],
        ),
        (Op::Pool(Pool::AdaptiveAverage([1, 1, 3])), vec![&[2, 3, 8]]),
        (Op::Pool(Pool::Max(Window::of([1, 2]))), vec![&[2, 3, 8]]),
        (Op::Pool(average(Window::of([1, 2]))), vec![&[2, 3, 8]]),
        (
            Op::Attention(Attention {
                causal: true,
                dropout: 0.1,
                grouped: false,
                scale: None,
            }),
            vec![&[2, 3, 16, 8], &[2, 3, 16, 8], &[2, 3, 16, 8]],
        ),
    ]
}
