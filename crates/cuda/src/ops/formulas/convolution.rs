//! Convolutions.

use crate::program::{Convolution, ConvolutionPass, Generated, Number};

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

const CONVOLUTION: &str = "
    const I per_group = (I)w.size(1), first = i[1] / (I)(w.size(0) / groups) * per_group;
    I taps = 1, at_x[D + 2], at_w[D + 2];
    for (int d = 0; d < D; ++d) taps *= (I)w.size(2 + d);
    T s = 0;
    at_x[0] = i[0]; at_w[0] = i[1];
    for (I tap = 0; tap < taps; ++tap) {
        I rest = tap; bool is_inside = true;
        for (int d = D - 1; d >= 0; --d) {
            at_w[2 + d] = rest % (I)w.size(2 + d); rest /= (I)w.size(2 + d);
            at_x[2 + d] = i[2 + d] * (I)stride[d] - (I)padding[d] + at_w[2 + d] * (I)dilation[d];
            is_inside = is_inside && at_x[2 + d] >= 0 && at_x[2 + d] < (I)x.size(2 + d);
        }
        for (I c = 0; is_inside && c < per_group; ++c) {
            at_x[1] = first + c; at_w[1] = c;
            s += (T)x.at(at_x) * (T)w.at(at_w);
        }
    }
    y.set_at(s, i);";

const CONVOLUTION_GRAD_INPUT: &str = "
    const I per_group = (I)w.size(1), outputs = (I)(w.size(0) / groups), first = i[1] / per_group * outputs;
    I taps = 1, at_y[D + 2], at_w[D + 2];
    for (int d = 0; d < D; ++d) taps *= (I)w.size(2 + d);
    T s = 0;
    at_y[0] = i[0]; at_w[1] = i[1] % per_group;
    for (I tap = 0; tap < taps; ++tap) {
        I rest = tap; bool is_inside = true;
        for (int d = D - 1; d >= 0; --d) {
            at_w[2 + d] = rest % (I)w.size(2 + d); rest /= (I)w.size(2 + d);
            const I from = i[2 + d] + (I)padding[d] - at_w[2 + d] * (I)dilation[d];
            at_y[2 + d] = from / (I)stride[d];
            is_inside = is_inside && from >= 0 && from % (I)stride[d] == 0 && at_y[2 + d] < (I)y.size(2 + d);
        }
        for (I k = 0; is_inside && k < outputs; ++k) {
            at_y[1] = at_w[0] = first + k;
            s += (T)y.at(at_y) * (T)w.at(at_w);
        }
    }
    x.set_at(s, i);";

const CONVOLUTION_GRAD_WEIGHT: &str = "
    const I per_group = (I)w.size(1), channel = i[0] / (I)(w.size(0) / groups) * per_group + i[1];
    I places = 1, at_x[D + 2], at_y[D + 2];
    for (int d = 0; d < D; ++d) places *= (I)y.size(2 + d);
    T s = 0;
    at_x[1] = channel; at_y[1] = i[0];
    for (I n = 0; n < (I)x.size(0); ++n)
        for (I place = 0; place < places; ++place) {
            I rest = place; bool is_inside = true;
            at_x[0] = at_y[0] = n;
            for (int d = D - 1; d >= 0; --d) {
                at_y[2 + d] = rest % (I)y.size(2 + d); rest /= (I)y.size(2 + d);
                at_x[2 + d] = at_y[2 + d] * (I)stride[d] - (I)padding[d] + i[2 + d] * (I)dilation[d];
                is_inside = is_inside && at_x[2 + d] >= 0 && at_x[2 + d] < (I)x.size(2 + d);
            }
            if (is_inside) s += (T)x.at(at_x) * (T)y.at(at_y);
        }
    w.set_at(s, i);";
