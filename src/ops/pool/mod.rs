//! Pools.

mod run;

use serde::Serialize;

use super::{Context, Operator, Reader};
use crate::eager::{Eager, Stop, Tensor};
use crate::shape::{Extent, Mismatch, Type, Window};
use crate::aten::Arguments;

/// A pool of each plane, or along the last of three dimensions: that of planes one high.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Pool {
    /// `max_pool2d(input)`.
    Max(Window),
    /// `adaptive_avg_pool2d` to this height and width.
    AdaptiveAverage([u64; 2]),
    /// `adaptive_avg_pool1d` to this length.
    AdaptiveAverage1d(u64),
    /// `avg_pool1d`, with a window one high.
    Average1d(Window),
    /// `max_pool1d`, with a window one high.
    Max1d(Window),
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.max_pool2d.default", |args| {
        Ok((Pool::Max(window(args)?).into(), args.all(&["self"])?))
    }),
    ("aten.adaptive_avg_pool2d.default", |args| {
        let output = args.pair("output_size", None)?;
        Ok((Pool::AdaptiveAverage(output).into(), args.all(&["self"])?))
    }),
    ("aten.adaptive_avg_pool1d.default", |args| {
        let [width, _] = args.pair("output_size", None)?;
        Ok((Pool::AdaptiveAverage1d(width).into(), args.all(&["self"])?))
    }),
    ("aten.avg_pool1d.default", |args| {
        Ok((Pool::Average1d(row(window(args)?)).into(), args.all(&["self"])?))
    }),
    ("aten.max_pool1d.default", |args| {
        Ok((Pool::Max1d(row(window(args)?)).into(), args.all(&["self"])?))
    }),
];

pub(super) fn window(args: &Arguments<'_>) -> Result<Window, String> {
    let kernel = args.pair("kernel_size", None)?;
    Ok(Window {
        kernel,
        stride: args.pair("stride", Some(kernel))?,
        padding: args.pair("padding", Some([0, 0]))?,
        dilation: args.pair("dilation", Some([1, 1]))?,
        groups: 1,
        ceil_mode: args.flag("ceil_mode", false)?,
    })
}

/// A window along one dimension, read for two, of planes one high.
fn row(window: Window) -> Window {
    Window {
        kernel: [1, window.kernel[1]],
        stride: [1, window.stride[1]],
        padding: [0, window.padding[1]],
        dilation: [1, window.dilation[1]],
        ..window
    }
}

impl Operator for Pool {
    fn name(&self) -> &'static str {
        match self {
            Pool::Max(_) => "max_pool2d",
            Pool::AdaptiveAverage(_) => "adaptive_avg_pool2d",
            Pool::AdaptiveAverage1d(_) => "adaptive_avg_pool1d",
            Pool::Average1d(_) => "avg_pool1d",
            Pool::Max1d(_) => "max_pool1d",
        }
    }

    fn arity(&self) -> (usize, usize) {
        (1, 1)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        let shape = match self {
            Pool::Max(window) => pool(window, x)?,
            Pool::AdaptiveAverage([height, width]) => {
                let [n, c, _, _] = x.as_slice() else {
                    return Err(format!(
                        "the input {x:?} is not [batch, channels, height, width]"
                    ));
                };
                vec![*n, *c, (*height).into(), (*width).into()]
            }
            Pool::AdaptiveAverage1d(_) | Pool::Average1d(_) | Pool::Max1d(_) => {
                let [n, c, length] = x.as_slice() else {
                    return Err(format!("the input {x:?} is not [batch, channels, length]"));
                };
                let length = match self {
                    Pool::Average1d(window) | Pool::Max1d(window) | Pool::Max(window) => {
                        window.side(1, *length)?
                    }
                    Pool::AdaptiveAverage1d(output) | Pool::AdaptiveAverage([_, output]) => *output,
                };
                vec![*n, *c, length.into()]
            }
        };
        Ok(vec![(*dtype, shape)])
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        context: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        let x = &operands[0];
        Ok(vec![match *self {
            Pool::Max(window) => eager.max_pool2d(window, x)?,
            Pool::AdaptiveAverage(output) => eager.adaptive_avg_pool2d(output, x)?,
            Pool::AdaptiveAverage1d(_) | Pool::Average1d(_) | Pool::Max1d(_) => {
                eager.pool1d(*self, x, &context.results[0])?
            }
        }])
    }
}

fn pool(window: &Window, x: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let [n, channels, height, width] = x else {
        return Err(format!(
            "the input {x:?} is not [batch, channels, height, width]"
        ));
    };
    Ok(vec![
        *n,
        *channels,
        window.side(0, *height)?.into(),
        window.side(1, *width)?.into(),
    ])
}
