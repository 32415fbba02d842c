//! Convolutions by every plan that cuDNN proposes.

use batchfit::device::cuda::Tf32;
use batchfit::device::{Launch, Launcher};
use batchfit::program::{Call, ConvolutionLayer, ConvolutionPass, ConvolutionShape, Kernel, View};
use batchfit::shape::{DType, Window};
use batchfit::units::Bytes;

use super::card::{Card, compare};
use super::numbers::{rounded, scattered, tolerance};

const BATCH: u64 = 4;

/// Forward result, gradient of the input, gradient of the weight; the second and third from `y`.
fn expected(
    shape: &ConvolutionShape,
    out: [u64; 2],
    x: &[f64],
    w: &[f64],
    y: &[f64],
) -> [Vec<f64>; 3] {
    let window = shape.layer;
    let (ins, outs) = (
        window.in_channels / window.groups,
        window.out_channels / window.groups,
    );
    let [mut forward, mut grad_x, mut grad_w] =
        [vec![0.0; y.len()], vec![0.0; x.len()], vec![0.0; w.len()]];
    for n in 0..BATCH {
        for o in 0..window.out_channels {
            for row in 0..out[0] {
                for column in 0..out[1] {
                    let at_y =
                        (((n * window.out_channels + o) * out[0] + row) * out[1] + column) as usize;
                    for i in 0..ins {
                        let channel = o / outs * ins + i;
                        for kh in 0..window.kernel[1] {
                            for kw in 0..window.kernel[2] {
                                let h = (row * window.stride[1] + kh * window.dilation[1])
                                    .wrapping_sub(window.padding[1]);
                                let v = (column * window.stride[2] + kw * window.dilation[2])
                                    .wrapping_sub(window.padding[2]);
                                if h >= window.input[1] || v >= window.input[2] {
                                    continue;
                                }
                                let at_x = (((n * window.in_channels + channel) * window.input[1]
                                    + h)
                                    * window.input[2]
                                    + v) as usize;
                                let at_w = (((o * ins + i) * window.kernel[1] + kh)
                                    * window.kernel[2]
                                    + kw) as usize;
                                forward[at_y] += x[at_x] * w[at_w];
                                grad_x[at_x] += y[at_y] * w[at_w];
                                grad_w[at_w] += y[at_y] * x[at_x];
                            }
                        }
                    }
                }
            }
        }
    }
    [forward, grad_x, grad_w]
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn all_plans_agree_with_the_definition() {
    let mut card = Card::with(Tf32::Off);
    let windows = [
        (
            3,
            16,
            Window {
                padding: [0, 1, 1],
                ..Window::of([3, 3])
            },
        ),
        (
            16,
            24,
            Window {
                stride: [1, 2, 2],
                padding: [0, 3, 3],
                ..Window::of([7, 7])
            },
        ),
        (
            16,
            32,
            Window {
                stride: [1, 2, 2],
                ..Window::of([1, 1])
            },
        ),
        (
            16,
            32,
            Window {
                padding: [0, 1, 1],
                groups: 4,
                ..Window::of([3, 3])
            },
        ),
        // A window for each channel: in half types by kernels of ours.
        (
            16,
            16,
            Window {
                padding: [0, 3, 3],
                groups: 16,
                ..Window::of([7, 7])
            },
        ),
        (
            16,
            32,
            Window {
                stride: [1, 2, 2],
                padding: [0, 2, 2],
                groups: 16,
                ..Window::of([5, 5])
            },
        ),
        (
            16,
            16,
            Window {
                padding: [0, 2, 2],
                dilation: [1, 2, 2],
                groups: 16,
                ..Window::of([3, 3])
            },
        ),
    ];
    for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
        for (in_channels, out_channels, window) in windows {
            let shape = ConvolutionShape {
                pass: ConvolutionPass::Forward,
                dtype,
                samples: batchfit::shape::Extent::BATCH,
                layer: ConvolutionLayer {
                    in_channels,
                    out_channels,
                    input: [1, 12, 14],
                    ..ConvolutionLayer::of(&window)
                },
            };
            let out = [window.output(1, 12).unwrap(), window.output(2, 14).unwrap()];
            let x_shape = [BATCH, in_channels, 12, 14];
            let w_shape = [
                out_channels,
                in_channels / window.groups,
                window.kernel[1],
                window.kernel[2],
            ];
            let y_shape = [BATCH, out_channels, out[0], out[1]];
            let values = |shape: &[u64], seed| {
                rounded(
                    dtype,
                    &scattered(shape.iter().product::<u64>() as usize, seed),
                )
            };
            let (x, w, y) = (
                values(&x_shape, 40),
                values(&w_shape, 41),
                values(&y_shape, 42),
            );
            let expected = expected(&shape, out, &x, &w, &y);
            let x = card.tensor(dtype, &x_shape, &x);
            let w = card.tensor(dtype, &w_shape, &w);
            let y = card.tensor(dtype, &y_shape, &y);
            let passes: [(ConvolutionPass, [&View; 2], &[u64]); 3] = [
                (ConvolutionPass::Forward, [&x, &w], &y_shape),
                (ConvolutionPass::GradInput, [&y, &w], &x_shape),
                (ConvolutionPass::GradWeight, [&y, &x], &w_shape),
            ];
            for ((pass, inputs, result_shape), expected) in passes.into_iter().zip(&expected) {
                let shape = ConvolutionShape { pass, ..shape };
                let plans = card.launcher.convolution_plans(&shape.at(BATCH)).unwrap();
                let mut worst = Vec::new();
                for (plan, wanted) in plans.iter().enumerate() {
                    let result = card.empty(dtype, result_shape);
                    let workspace = card.empty(DType::UInt8, &[wanted.0]);
                    let call = Call {
                        kernel: Kernel::Convolution(shape),
                        inputs: inputs.iter().map(|view| (*view).clone()).collect(),
                        outputs: vec![result.clone()],
                        workspace: (*wanted > Bytes::ZERO).then_some(workspace.tensor),
                    };
                    let launch = Launch {
                        call: &call,
                        batch: BATCH,
                        addresses: &card.addresses,
                        sizes: &card.sizes,
                        plan,
                    };
                    // cuDNN may refuse a plan only now; PyTorch then goes on to the next.
                    if card.launcher.launch(&launch).is_ok() {
                        card.launcher.finish_step().unwrap();
                        worst = card.read(&result);
                        // Plans for half types may accumulate in half, as PyTorch lets them.
                        let what = format!(
                            "{pass:?} {}x{} by plan {plan} {dtype}",
                            window.kernel[1], window.kernel[2]
                        );
                        compare(&what, &worst, expected, tolerance(dtype) * 2.0);
                    }
                    card.free(&result);
                    card.free(&workspace);
                }
                assert!(!worst.is_empty(), "no plan ran");
            }
        }
    }
}
