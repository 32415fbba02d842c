//! Depthwise convolutions of pictures: each channel with windows of its own.
//!
//! A warp has a plane, its windows in registers. A thread computes four results below one another, so that what it reads
//! serves several of them and neighbouring threads read neighbours. PyTorch has kernels of its own for these layers too
//! (`DepthwiseConv2d.cu`), which want no workspace.

use super::{Written, sum};
use crate::generate::{self, Resources, divider_of};
use crate::ops::prelude::*;

/// Windows of more taps do not fit in registers.
const MOST_TAPS: u64 = 121;
/// Results that a thread computes at a time.
const ROWS: u64 = 4;
/// What a window's dilation and stride are at most: the loops over them are unrolled.
const MOST: u64 = 4;

/// Whether these kernels take it. They expect contiguous operands.
pub(crate) fn takes(of: &Convolution) -> bool {
    let [_, height, width] = of.kernel;
    of.groups > 1
        && of.groups == of.in_channels
        && of.out_channels.is_multiple_of(of.in_channels)
        && !(of.transposed || of.volumes || of.channels_last)
        && (1..=MOST_TAPS).contains(&height.saturating_mul(width))
        && [of.stride, of.dilation]
            .iter()
            .all(|each| each[1..].iter().all(|n| (1..=MOST).contains(n)))
        && of.padding[1..].iter().all(|padding| *padding <= 64)
}

/// The kernels of one pass.
pub(super) fn formulas_of(
    of: &Convolution,
    operands: &Operands<'_>,
    resources: Resources,
) -> Result<Option<Vec<Written>>, LaunchError> {
    let all = [operands.input(0)?, operands.input(1)?, operands.output(0)?];
    if !takes(of) || all.iter().any(|operand| !operand.is_contiguous()) {
        return Ok(None);
    }
    let all = all.map(as_pictures);
    // What is divided by a factor and a shift has 31 bits.
    if all
        .iter()
        .any(|operand| operand.shape.len() != 4 || operand.count() >= 1 << 31)
    {
        return Ok(None);
    }
    let (inputs, output, body) = match of.pass {
        ConvolutionPass::Forward => (["x", "w"], "y", FORWARD),
        ConvolutionPass::GradInput => (["y", "w"], "x", GRAD_INPUT),
        ConvolutionPass::GradWeight => return Ok(Some(grad_weight(of, all, resources))),
    };
    let [first, second, result] = all;
    let generated = formula(
        of,
        (inputs, output),
        (2, vec![2, 3]),
        body,
        [result.shape[2], result.shape[3]],
    );
    Ok(Some(vec![Written {
        generated,
        inputs: vec![first, second],
        outputs: vec![result],
    }]))
}

/// Sequences as pictures one element high.
fn as_pictures(operand: &Operand) -> Operand {
    let mut seen = operand.clone();
    if let [_, _, length] = operand.shape[..] {
        seen.shape.insert(2, 1);
        seen.strides.insert(2, length);
    }
    seen
}

/// The weight's gradient: parts of it, each by a warp, then their sum.
fn grad_weight(of: &Convolution, [y, x, w]: [Operand; 3], resources: Resources) -> Vec<Written> {
    let (channels, taps) = (of.out_channels, of.kernel[1] * of.kernel[2]);
    let seen = |operand: &Operand, parts: u64| Operand {
        shape: vec![parts, channels, taps],
        strides: vec![channels * taps, taps, 1],
        ..operand.clone()
    };
    let parts = generate::parts(resources, channels);
    let partial = Operand {
        address: resources.scratch.0,
        dtype: if w.dtype == DType::Float64 {
            DType::Float64
        } else {
            DType::Float32
        },
        ..seen(&w, parts)
    };
    let is_whole = parts == 1 || partial.count() * partial.dtype.size() > resources.scratch.1;
    let (body, into) = if is_whole {
        (GRAD_WEIGHT.replace("PARTS", "1"), seen(&w, 1))
    } else {
        (GRAD_WEIGHT.replace("PARTS", "parts"), partial.clone())
    };
    let generated = formula(
        of,
        (["y", "x"], "w"),
        (0, vec![0, 2, 3]),
        &body,
        [y.shape[2], y.shape[3]],
    );
    let mut written = vec![Written {
        generated,
        inputs: vec![y, x],
        outputs: vec![into],
    }];
    if !is_whole {
        written.push(Written {
            generated: sum(vec![0]).with("scale", Number::Real(1.0)),
            inputs: vec![partial],
            outputs: vec![seen(&w, 1)],
        });
    }
    written
}

/// Rows of a plane that a thread computes, or reads gradients of: those of an input's gradient begin where a window may.
fn rows(of: &Convolution) -> u64 {
    let rows = if of.input[1] == 1 { 1 } else { ROWS };
    match of.pass {
        ConvolutionPass::GradInput => of.stride[1] * rows.div_ceil(of.stride[1]),
        ConvolutionPass::Forward | ConvolutionPass::GradWeight => rows,
    }
}

/// A formula with the window in its text, for planes of so many rows and columns.
fn formula(
    of: &Convolution,
    (inputs, output): ([&'static str; 2], &'static str),
    (over, without): (usize, Vec<usize>),
    body: &str,
    [height, width]: [u64; 2],
) -> Generated {
    let [_, kh, kw] = of.kernel;
    let [_, sh, sw] = of.stride;
    let [_, ph, pw] = of.padding;
    let [_, dh, dw] = of.dilation;
    let (rows, multiplier) = (rows(of), of.out_channels / of.in_channels);
    // For an input's gradient: the first and the last row of results that a piece of work reads, from that of its start.
    let first = (ph.cast_signed() - ((kh - 1) * dh).cast_signed()).div_euclid(sh.cast_signed());
    let last = (rows - 1 + ph) / sh;
    let element = generate::element(of.dtype);
    let body = format!(
        "typedef {element} E;
    const int KH = {kh}, KW = {kw}, TAPS = KH * KW, SH = {sh}, SW = {sw}, PH = {ph}, PW = {pw}, DH = {dh}, DW = {dw};
    const int R = {rows}, MULTIPLIER = {multiplier}, FIRST = {first}, LAST = {last};
    {body}"
    );
    let form = Form::Groups {
        over,
        without,
        body: body.into(),
    };
    let whole = |number: u64| Number::Whole(number.cast_signed());
    let pieces = height.div_ceil(rows) * width;
    Generated::of("depthwise_convolution", inputs, [output], form)
        .with("pieces", whole(pieces))
        .with("by_pieces", whole(divider_of(pieces)))
        .with("by_width", whole(divider_of(width)))
}

// `x[n, c, h, w]`, `w[k, 1, kh, kw]`, `y[n, k, h, w]`. A piece of work is a column's next `R` rows.

const FORWARD: &str = include_str!("depthwise/forward.cu");

const GRAD_INPUT: &str = include_str!("depthwise/grad_input.cu");

const GRAD_WEIGHT: &str = include_str!("depthwise/grad_weight.cu");
