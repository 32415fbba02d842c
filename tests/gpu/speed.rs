//! How fast the kernels that move most memory are, beside a plain copy. Prints; fails only where one is absurdly
//! slow.

use batchfit::device::Launcher;
use batchfit::program::Unary;
use batchfit::program::{
    Binary, Call, ConvolutionLayer, ConvolutionPass, ConvolutionShape, Kernel, View,
};
use batchfit::shape::{DType, Extent, Window};

use super::card::{Card, strided};

/// Milliseconds of one call, the best of three after a first one.
fn time(card: &mut Card, kernel: Kernel, inputs: &[&View], outputs: &[&View]) -> f64 {
    let call = Call {
        kernel,
        inputs: inputs.iter().map(|view| (*view).clone()).collect(),
        outputs: outputs.iter().map(|view| (*view).clone()).collect(),
        workspace: None,
    };
    (0..4)
        .map(|_| {
            card.launch(&call).unwrap();
            card.launcher.finish_step().unwrap().elapsed_ms
        })
        .skip(1)
        .fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn bandwidth_of_large_operations() {
    let mut card = Card::open();
    // An activation of cifarnet at 15,000 samples: 983 million elements.
    let shape = [15_000_u64, 64, 32, 32];
    let halved = [15_000_u64, 64, 16, 16];
    let count = shape.iter().product::<u64>() as f64;
    for dtype in [DType::Float32, DType::BFloat16] {
        let size = dtype.size() as f64;
        let x = card.empty(dtype, &shape);
        let y = card.empty(dtype, &shape);
        let bias = card.empty(dtype, &[64]);
        let spread = strided(&bias, 0, &shape, &[0, 1, 0, 0]);
        let channels = strided(&bias, 0, &[1, 64, 1, 1], &[64, 1, 1, 1]);
        let small = card.empty(dtype, &halved);
        let indices = card.empty(DType::Int64, &halved);
        let weight = card.empty(DType::Float32, &[64]);
        let scratch: Vec<View> = (0..4).map(|_| card.empty(DType::Float32, &[64])).collect();
        card.run(Kernel::RandomNormal, &[], &[&x]);
        card.run(Kernel::Fill(0.5), &[], &[&bias]);
        card.run(Kernel::Fill(0.5), &[], &[&weight]);
        let norm = Kernel::BatchNorm {
            momentum: 0.1,
            eps: 1e-5,
        };
        let pool = Window {
            stride: [1, 2, 2],
            ..Window::of([2, 2])
        };
        let [mean, inverse, running_mean, running_var] = &scratch[..] else {
            unreachable!()
        };
        let other = match dtype {
            DType::Float32 => DType::BFloat16,
            _ => DType::Float32,
        };
        let cast = card.empty(other, &shape);
        let mask = card.empty(DType::Bool, &shape);
        let heads = strided(&x, 0, &[3_750, 256, 16, 64], &[262_144, 64, 16_384, 1]);
        let turned = view_of(&y, &[3_750, 256, 16, 64]);
        let cases: Vec<(&str, f64, f64)> = vec![
            (
                "Copy",
                time(&mut card, Kernel::Copy, &[&x], &[&y]),
                2.0 * size,
            ),
            (
                "Copy to the other",
                time(&mut card, Kernel::Copy, &[&x], &[&cast]),
                size + other.size() as f64,
            ),
            (
                "Mul by the other",
                time(&mut card, Kernel::Binary(Binary::Mul), &[&x, &cast], &[&y]),
                2.0 * size + other.size() as f64,
            ),
            (
                "Copy of heads",
                time(&mut card, Kernel::Copy, &[&heads], &[&turned]),
                2.0 * size,
            ),
            (
                "Scale",
                time(&mut card, Kernel::Scale(0.5), &[&x], &[&y]),
                2.0 * size,
            ),
            (
                "Power",
                time(&mut card, Kernel::Power(3.0), &[&x], &[&y]),
                2.0 * size,
            ),
            (
                "Tanh",
                time(&mut card, Kernel::Unary(Unary::Tanh), &[&x], &[&y]),
                2.0 * size,
            ),
            (
                "Silu",
                time(&mut card, Kernel::Unary(Unary::Silu), &[&x], &[&y]),
                2.0 * size,
            ),
            (
                "SiluGrad",
                time(&mut card, Kernel::UnaryGrad(Unary::Silu), &[&x, &y], &[&y]),
                3.0 * size,
            ),
            (
                "GeluGrad",
                time(&mut card, Kernel::UnaryGrad(Unary::Gelu), &[&x, &y], &[&y]),
                3.0 * size,
            ),
            (
                "Dropout",
                time(&mut card, Kernel::Dropout { p: 0.1 }, &[&x], &[&y, &mask]),
                2.0 * size + 1.0,
            ),
            (
                "DropoutGrad",
                time(
                    &mut card,
                    Kernel::DropoutGrad { p: 0.1 },
                    &[&x, &mask],
                    &[&y],
                ),
                2.0 * size + 1.0,
            ),
            (
                "RandomNormal",
                time(&mut card, Kernel::RandomNormal, &[], &[&x]),
                size,
            ),
            ("Fill", time(&mut card, Kernel::Fill(0.0), &[], &[&y]), size),
            (
                "Relu",
                time(&mut card, Kernel::Unary(Unary::Relu), &[&x], &[&y]),
                2.0 * size,
            ),
            (
                "Gelu",
                time(&mut card, Kernel::Unary(Unary::Gelu), &[&x], &[&y]),
                2.0 * size,
            ),
            (
                "ReluGrad",
                time(&mut card, Kernel::UnaryGrad(Unary::Relu), &[&x, &y], &[&y]),
                3.0 * size,
            ),
            (
                "Add",
                time(&mut card, Kernel::Binary(Binary::Add), &[&x, &y], &[&y]),
                3.0 * size,
            ),
            (
                "Add bias",
                time(
                    &mut card,
                    Kernel::Binary(Binary::Add),
                    &[&x, &spread],
                    &[&x],
                ),
                2.0 * size,
            ),
            (
                "Sum to channels",
                time(&mut card, Kernel::Sum { scale: 1.0 }, &[&x], &[&channels]),
                size,
            ),
            (
                "BatchNorm",
                time(
                    &mut card,
                    norm,
                    &[&x, &weight, &weight],
                    &[&y, mean, inverse, running_mean, running_var],
                ),
                3.0 * size,
            ),
            (
                "BatchNormGrad",
                time(
                    &mut card,
                    Kernel::BatchNormGrad,
                    &[&x, &x, &weight, mean, inverse],
                    &[&y, running_mean, running_var],
                ),
                5.0 * size,
            ),
            (
                "MaxPool",
                time(&mut card, Kernel::MaxPool(pool), &[&x], &[&small, &indices]),
                1.25 * size + 2.0,
            ),
            (
                "MaxPoolGrad",
                time(
                    &mut card,
                    Kernel::MaxPoolGrad(pool),
                    &[&small, &indices],
                    &[&y],
                ),
                1.25 * size + 2.0,
            ),
        ];
        let copy = cases[0].2 / cases[0].1;
        for (name, milliseconds, bytes) in cases {
            let rate = bytes * count / milliseconds / 1e6;
            let share = 100.0 * bytes / milliseconds / copy;
            eprintln!("{name:<18} {dtype:<9} {milliseconds:8.3} ms {rate:8.0} GB/s {share:6.0} %");
            assert!(rate > 50.0, "{name} is absurdly slow");
        }
        for view in [&x, &y, &small, &indices, &cast, &mask] {
            card.free(view);
        }
    }
    let rows = card.empty(DType::BFloat16, &[1 << 20, 512]);
    let columns = card.empty(DType::BFloat16, &[512]);
    let milliseconds = time(&mut card, Kernel::Sum { scale: 1.0 }, &[&rows], &[&columns]);
    eprintln!(
        "Sum of rows bfloat16 {milliseconds:8.3} ms {:8.0} GB/s",
        1.074e9 / milliseconds / 1e6
    );
    let a = card.empty(DType::BFloat16, &[8192, 8192]);
    let b = card.empty(DType::BFloat16, &[8192, 8192]);
    let milliseconds = time(&mut card, Kernel::MatMul, &[&a, &b], &[&rows_of(&rows)]);
    eprintln!(
        "MatMul bfloat16 {milliseconds:8.3} ms {:8.0} TFLOP/s",
        2.0 * 8192_f64.powi(3) / milliseconds / 1e9
    );
}

/// Attention whose mask is trained, which cuDNN does not take, and float32's.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rate_of_attention() {
    let mut card = Card::open();
    // Samples, heads, positions, features: CoAtNet's, GPT-2's and Llama's.
    let cases = [
        (DType::BFloat16, [32, 12, 196, 32], true),
        (DType::BFloat16, [32, 24, 49, 32], true),
        (DType::BFloat16, [32, 12, 512, 64], true),
        (DType::BFloat16, [8, 32, 512, 128], true),
        (DType::Float32, [32, 12, 196, 32], true),
        (DType::Float32, [32, 12, 512, 64], false),
        (DType::Float32, [8, 32, 512, 128], false),
    ];
    for (dtype, shape, is_trained) in cases {
        let [samples, heads, positions, width] = shape;
        let [q, k, v, grad] = [(); 4].map(|()| card.empty(dtype, &shape));
        for view in [&q, &k, &v, &grad] {
            card.run(Kernel::RandomNormal, &[], &[view]);
        }
        let results = [(); 4].map(|()| card.empty(dtype, &shape));
        let [out, of_query, of_key, of_value] = &results;
        let rows = card.empty(DType::Float32, &[samples, heads, positions]);
        let pitch = positions.next_multiple_of(8);
        let stored = card.empty(dtype, &[heads, positions, pitch]);
        card.run(Kernel::RandomNormal, &[], &[&stored]);
        let seen = [samples, heads, positions, positions];
        let of_head = positions * pitch;
        let bias = strided(&stored, 0, &seen, &[0, of_head, pitch, 1]);
        let of_scores = card.empty(dtype, &[samples, heads, positions, pitch]);
        let of_bias = strided(&of_scores, 0, &seen, &[heads * of_head, of_head, pitch, 1]);
        let (causal, dropout, scale) = (false, 0.0, 1.0 / (width as f64).sqrt());
        let forward = Kernel::Attention {
            causal,
            dropout,
            scale,
        };
        let backward = Kernel::AttentionGrad {
            causal,
            dropout,
            scale,
        };
        let (mut given, mut made) = (vec![&q, &k, &v], vec![of_query, of_key, of_value]);
        let mut known = vec![&grad, &q, &k, &v, out, &rows];
        if is_trained {
            given.push(&bias);
            known.push(&bias);
            made.push(&of_bias);
        }
        let forward = time(&mut card, forward, &given, &[out, &rows]);
        let backward = time(&mut card, backward, &known, &made);
        let product = 2.0 * (samples * heads * positions * positions * width) as f64;
        for (pass, milliseconds, products) in [
            ("Attention", forward, 2.0),
            ("AttentionGrad", backward, 5.0),
        ] {
            let rate = products * product / milliseconds / 1e9;
            eprintln!("{pass:<14} {dtype:<9} {shape:?} {milliseconds:8.3} ms {rate:6.1} TFLOP/s");
            assert!(rate > 0.2, "{pass} is absurdly slow");
        }
    }
}

/// Depthwise layers as PyTorch's own kernels run them: in half types by kernels of ours, in float32 by cuDNN.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rate_of_depthwise_convolutions() {
    let mut card = Card::open();
    // Channels, side, window, stride: CoAtNet's, MobileNet's, ConvNeXt's.
    let cases = [
        (384, 56, 3, 1),
        (768, 28, 3, 1),
        (96, 112, 5, 2),
        (96, 56, 7, 1),
    ];
    for (channels, side, kernel, stride) in cases {
        let window = Window {
            stride: [1, stride, stride],
            padding: [0, kernel / 2, kernel / 2],
            groups: channels,
            ..Window::of([kernel, kernel])
        };
        let out = side / stride;
        for dtype in [DType::Float32, DType::BFloat16] {
            let x = card.empty(dtype, &[32, channels, side, side]);
            let y = card.empty(dtype, &[32, channels, out, out]);
            let w = card.empty(dtype, &[channels, 1, kernel, kernel]);
            for view in [&x, &y, &w] {
                card.run(Kernel::RandomNormal, &[], &[view]);
            }
            let bytes = 32 * channels * (side * side + out * out) * dtype.size();
            for pass in ConvolutionPass::ALL {
                let shape = ConvolutionShape {
                    pass,
                    dtype,
                    samples: Extent::fixed(32),
                    layer: ConvolutionLayer {
                        in_channels: channels,
                        out_channels: channels,
                        input: [1, side, side],
                        ..ConvolutionLayer::of(&window)
                    },
                };
                let (inputs, output) = match pass {
                    ConvolutionPass::Forward => ([&x, &w], &y),
                    ConvolutionPass::GradInput => ([&y, &w], &x),
                    ConvolutionPass::GradWeight => ([&y, &x], &w),
                };
                let milliseconds = time(&mut card, Kernel::Convolution(shape), &inputs, &[output]);
                let rate = bytes as f64 / milliseconds / 1e6;
                eprintln!(
                    "{pass:<10?} {dtype:<9} {channels} x {side} x {side}, {kernel} x {kernel} by {stride} \
                     {milliseconds:8.3} ms {rate:8.0} GB/s"
                );
                assert!(
                    dtype == DType::Float32 || rate > 100.0,
                    "{pass:?} is absurdly slow"
                );
            }
        }
    }
}

/// A tensor's elements under another shape.
fn view_of(view: &View, shape: &[u64]) -> View {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    strided(view, 0, shape, &strides)
}

/// The start of a tensor as an 8192 x 8192 matrix.
fn rows_of(view: &View) -> View {
    strided(view, 0, &[8192, 8192], &[8192, 1])
}
