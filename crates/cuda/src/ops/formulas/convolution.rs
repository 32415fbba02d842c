//! Convolutions.

use crate::ops::prelude::*;

/// A convolution of tensors of this rank, tap by tap.
pub(super) fn convolution(of: &Convolution, rank: usize) -> Generated {
    let (inputs, output, body) = match of.pass {
        ConvolutionPass::Forward => (["x", "w"], "y", CONVOLUTION),
        ConvolutionPass::GradInput => (["y", "w"], "x", CONVOLUTION_GRAD_INPUT),
        ConvolutionPass::GradWeight => (["y", "x"], "w", CONVOLUTION_GRAD_WEIGHT),
    };
    // A transposed layer is an ordinary one run backwards.
    let (inputs, output, body) = match (of.transposed, of.pass) {
        (false, _) => (inputs, output, body),
        (true, ConvolutionPass::Forward) => (["y", "w"], "x", CONVOLUTION_GRAD_INPUT),
        (true, ConvolutionPass::GradInput) => (["x", "w"], "y", CONVOLUTION),
        (true, ConvolutionPass::GradWeight) => (["x", "y"], "w", CONVOLUTION_GRAD_WEIGHT),
    };
    // Lists begin with the depth, which tensors of four dimensions lack.
    let list = |values: [u64; 3]| {
        Number::List(
            values[5 - rank..]
                .iter()
                .map(|value| value.cast_signed())
                .collect(),
        )
    };
    Generated::each(
        "convolution",
        inputs,
        [output],
        2,
        format!("const int D = {}; {body}", rank - 2),
    )
    .with("stride", list(of.stride))
    .with("padding", list(of.padding))
    .with("dilation", list(of.dilation))
    .with("groups", Number::Whole(of.groups.cast_signed()))
}

// `x[n, c, ...]`, `w[k, c / groups, ...]`, `y[n, k, ...]`, with `D` dimensions behind the channels.

const CONVOLUTION: &str = include_str!("convolution/forward.cu");

const CONVOLUTION_GRAD_INPUT: &str = include_str!("convolution/grad_input.cu");

const CONVOLUTION_GRAD_WEIGHT: &str = include_str!("convolution/grad_weight.cu");
