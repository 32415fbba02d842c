//! Convolutions.

mod run;

use serde::Serialize;

use super::{Context, Operator, Read, Reader};
use crate::eager::{Eager, Stop, Tensor};
use crate::shape::{Extent, Mismatch, Type, Window};
use self::run::Direction;
use crate::aten::Arguments;

/// A convolution. Operands are input, weight and, where there is one, bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Convolution {
    /// `conv2d`; `conv1d` is one of planes one high.
    Plain(Window),
    /// `conv_transpose2d`; the weight is `[in, out / groups, height, width]`.
    Transposed(Window),
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.conv1d.default", |args| {
        let operands = args.all_and(&["input", "weight"], &["bias"])?;
        let window = flat_convolution(args, &args.shape(operands[1]))?;
        Ok((Convolution::Plain(window).into(), operands))
    }),
    ("aten.conv2d.default", conv2d),
    ("aten.conv2d.padding", conv2d),
    ("aten.conv_transpose2d.input", |args| {
        if args.pair("output_padding", Some([0, 0]))? != [0, 0] {
            return Err("it pads its output, which is not supported".into());
        }
        let operands = args.all_and(&["input", "weight"], &["bias"])?;
        let window = convolution(args, &args.shape(operands[1]))?;
        Ok((Convolution::Transposed(window).into(), operands))
    }),
];

fn conv2d(args: &Arguments<'_>) -> Result<Read, String> {
    let operands = args.all_and(&["input", "weight"], &["bias"])?;
    let window = convolution(args, &args.shape(operands[1]))?;
    Ok((Convolution::Plain(window).into(), operands))
}

/// A convolution of one dimension, as one of planes of height one.
fn flat_convolution(args: &Arguments<'_>, weight: &[Extent]) -> Result<Window, String> {
    let width = match weight {
        [_, _, width] => width.as_fixed(),
        _ => None,
    };
    let one = |name: &str, default: u64| -> Result<u64, String> {
        Ok(args.pair(name, Some([default; 2]))?[1])
    };
    Ok(Window {
        kernel: [1, width.ok_or_else(|| format!("its weight is {weight:?}"))?],
        stride: [1, one("stride", 1)?],
        padding: [0, one("padding", 0)?],
        dilation: [1, one("dilation", 1)?],
        groups: args.count("groups", Some(1))?,
        ceil_mode: false,
    })
}

fn convolution(args: &Arguments<'_>, weight: &[Extent]) -> Result<Window, String> {
    let kernel = match weight {
        [_, _, height, width] => height.as_fixed().zip(width.as_fixed()),
        _ => None,
    };
    let (height, width) = kernel.ok_or_else(|| format!("its weight is {weight:?}"))?;
    let dilation = args.pair("dilation", Some([1, 1]))?;
    let padding = match args.text("padding", "") {
        Ok("valid") => [0, 0],
        // Half of what the kernel spans; an even span would be padded on one side more.
        Ok("same") => {
            let spans = [height, width].map(|n| n.saturating_sub(1));
            let spans = [spans[0] * dilation[0], spans[1] * dilation[1]];
            if spans.iter().any(|span| span % 2 == 1) {
                return Err("it pads an even kernel to the same size".into());
            }
            spans.map(|span| span / 2)
        }
        _ => args.pair("padding", Some([0, 0]))?,
    };
    Ok(Window {
        kernel: [height, width],
        stride: args.pair("stride", Some([1, 1]))?,
        padding,
        dilation,
        groups: args.count("groups", Some(1))?,
        ceil_mode: false,
    })
}

impl Operator for Convolution {
    fn name(&self) -> &'static str {
        match self {
            Convolution::Plain(_) => "conv2d",
            Convolution::Transposed(_) => "conv_transpose2d",
        }
    }

    fn arity(&self) -> (usize, usize) {
        (2, 3)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (x, weight) = (&operands[0].1, &operands[1].1);
        let shape = match self {
            Convolution::Plain(window) => convolve(window, x, weight)?,
            Convolution::Transposed(window) => convolve_transposed(window, x, weight)?,
        };
        Ok(vec![(operands[0].0, shape)])
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        _: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        let (window, direction) = match self {
            Convolution::Plain(window) => (window, Direction::Plain),
            Convolution::Transposed(window) => (window, Direction::Transposed),
        };
        let input = [&operands[0], &operands[1]];
        Ok(vec![eager.convolution(window, direction, input, operands.get(2))?])
    }
}

/// A convolution of one dimension is one of planes of height one.
fn convolve(window: &Window, x: &[Extent], w: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let ([n, channels, length], [out, per_group, taps]) = (x, w) else {
        return convolve_planes(window, x, w);
    };
    let one = Extent::ONE;
    let plane = [*n, *channels, one, *length];
    let mut shape = convolve_planes(window, &plane, &[*out, *per_group, one, *taps])?;
    shape.remove(2);
    Ok(shape)
}

fn convolve_planes(window: &Window, x: &[Extent], w: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let ([n, channels, height, width], [out, per_group, kh, kw]) = (x, w) else {
        return Err(format!(
            "input {x:?} and weight {w:?} must have four dimensions"
        ));
    };
    if per_group.checked_mul(window.groups.into()) != Some(*channels) {
        return Err(format!(
            "the input has {channels} channels, the weight takes {per_group} in each of {} groups",
            window.groups
        ));
    }
    if [kh.as_fixed(), kw.as_fixed()] != window.kernel.map(Some) {
        return Err(format!(
            "the weight is {kh} x {kw}, the kernel {:?}",
            window.kernel
        ));
    }
    Ok(vec![
        *n,
        *out,
        window.side(0, *height)?.into(),
        window.side(1, *width)?.into(),
    ])
}

fn convolve_transposed(
    window: &Window,
    x: &[Extent],
    w: &[Extent],
) -> Result<Vec<Extent>, Mismatch> {
    let ([n, channels, height, width], [into, per_group, kh, kw]) = (x, w) else {
        return Err(format!(
            "input {x:?} and weight {w:?} must have four dimensions"
        ));
    };
    if channels != into {
        return Err(format!(
            "the input has {channels} channels, the weight takes {into}"
        ));
    }
    if [kh.as_fixed(), kw.as_fixed()] != window.kernel.map(Some) {
        return Err(format!(
            "the weight is {kh} x {kw}, the kernel {:?}",
            window.kernel
        ));
    }
    let side = |axis: usize, length: Extent| {
        let output = length
            .as_fixed()
            .and_then(|n| window.transposed_output(axis, n));
        output
            .map(Extent::fixed)
            .ok_or_else(|| format!("nothing is left of a side of {length}"))
    };
    let out = *per_group * Extent::fixed(window.groups);
    Ok(vec![*n, out, side(0, *height)?, side(1, *width)?])
}
