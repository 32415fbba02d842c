//! Pools.

pub mod kernel;
mod run;

use crate::ops::prelude::*;
use crate::shape::Window;

/// A pool along the one to three dimensions that its operand has beside batch and channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Pool {
    /// `max_pool1d(input)`, `max_pool2d`, `max_pool3d`.
    Max(Window),
    /// `max_pool2d_with_indices(input)` and the like: a second result says where each maximum was.
    MaxWithIndices(Window),
    /// `avg_pool1d(input)`, `avg_pool2d`, `avg_pool3d`.
    Average {
        /// The window.
        window: Window,
        /// Whether zeros of the padding count as elements.
        count_include_pad: bool,
        /// What sums are divided by, where that is not the number of elements.
        divisor: Option<i64>,
    },
    /// `adaptive_avg_pool2d(input)` and the like, to this depth, height and width.
    AdaptiveAverage([u64; 3]),
    /// `adaptive_max_pool2d(input)` and the like, with places, to this depth, height and width.
    AdaptiveMax([u64; 3]),
    /// `fractional_max_pool2d(input, random_samples)` or `3d`, with places.
    FractionalMax {
        /// Size of a region.
        kernel: [u64; 3],
        /// Depth, height and width of the result.
        output: [u64; 3],
    },
    /// `max_unpool2d(input, indices)` or `3d`, to this depth, height and width.
    MaxUnpool([u64; 3]),
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    (
        "aten.max_pool1d.default aten.max_pool2d.default aten.max_pool3d.default",
        |args| of(args, &["self"], |rank| Ok(Pool::Max(window(args, rank)?))),
    ),
    (
        "aten.max_pool1d_with_indices.default aten.max_pool2d_with_indices.default aten.max_pool3d_with_indices.default",
        |args| {
            of(args, &["self"], |rank| {
                Ok(Pool::MaxWithIndices(window(args, rank)?))
            })
        },
    ),
    (
        "aten.avg_pool1d.default aten.avg_pool2d.default aten.avg_pool3d.default",
        |args| {
            of(args, &["self"], |rank| {
                Ok(Pool::Average {
                    window: window(args, rank)?,
                    count_include_pad: args.flag("count_include_pad", true)?,
                    divisor: args.if_given("divisor_override", |name| args.int(name, None))?,
                })
            })
        },
    ),
    (
        "aten.adaptive_avg_pool1d.default aten.adaptive_avg_pool2d.default aten.adaptive_avg_pool3d.default",
        |args| {
            of(args, &["self"], |rank| {
                Ok(Pool::AdaptiveAverage(output(args, rank)?))
            })
        },
    ),
    (
        "aten.adaptive_max_pool1d.default aten.adaptive_max_pool2d.default aten.adaptive_max_pool3d.default",
        |args| {
            of(args, &["self"], |rank| {
                Ok(Pool::AdaptiveMax(output(args, rank)?))
            })
        },
    ),
    (
        "aten.fractional_max_pool2d.default aten.fractional_max_pool3d.default",
        |args| {
            of(args, &["self", "random_samples"], |rank| {
                let kernel = args.sides("kernel_size", rank, 1, None)?;
                Ok(Pool::FractionalMax {
                    kernel,
                    output: output(args, rank)?,
                })
            })
        },
    ),
    (
        "aten.max_unpool2d.default aten.max_unpool3d.default",
        |args| {
            of(args, &["self", "indices"], |rank| {
                Ok(Pool::MaxUnpool(output(args, rank)?))
            })
        },
    ),
];

/// The window of a pool along `rank` dimensions, or of `unfold`.
pub(super) fn window(args: &Arguments<'_>, rank: usize) -> Result<Window, String> {
    let kernel = args.sides("kernel_size", rank, 1, None)?;
    Ok(Window {
        stride: args.sides("stride", rank, 1, Some(kernel))?,
        padding: args.sides("padding", rank, 0, Some([0; 3]))?,
        dilation: args.sides("dilation", rank, 1, Some([1; 3]))?,
        ceil_mode: args.flag("ceil_mode", false)?,
        ..Window::of_volumes(kernel)
    })
}

/// The lengths that a pool makes.
fn output(args: &Arguments<'_>, rank: usize) -> Result<[u64; 3], String> {
    args.sides("output_size", rank, 1, None)
}

/// The pool of an operand that has as many dimensions beside batch and channels as the operator's name says.
fn of(
    args: &Arguments<'_>,
    names: &[&str],
    pool: impl Fn(usize) -> Result<Pool, String>,
) -> Result<Read, String> {
    let rank = (1..=3).find(|rank| args.target.contains(&format!("pool{rank}d")));
    let rank = rank.ok_or("its name says no number of dimensions")?;
    let pool = pool(rank)?;
    let operands = args.all(names)?;
    let shape = args.shape(operands[0]);
    if shape.len() != rank + 2 {
        return Err(format!(
            "its input {shape:?} is not batch, channels and {rank} more"
        ));
    }
    Ok((pool.into(), operands))
}

impl Operator for Pool {
    fn name(&self) -> &'static str {
        match self {
            Pool::Max(_) | Pool::MaxWithIndices(_) => "max_pool2d",
            Pool::Average { .. } => "avg_pool2d",
            Pool::AdaptiveAverage(_) => "adaptive_avg_pool2d",
            Pool::AdaptiveMax(_) => "adaptive_max_pool2d",
            Pool::FractionalMax { .. } => "fractional_max_pool2d",
            Pool::MaxUnpool(_) => "max_unpool2d",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        let [n, channels, sides @ ..] = x.as_slice() else {
            return Err(format!("the input {x:?} has no channels"));
        };
        if !(1..=3).contains(&sides.len()) {
            return Err(format!(
                "the input {x:?} must have one to three dimensions beside batch and channels"
            ));
        }
        let first = 3 - sides.len();
        let to = |output: &[u64; 3]| output[first..].iter().copied().map(Extent::fixed).collect();
        let (sides, with_indices): (Vec<Extent>, bool) = match self {
            Pool::Max(window) | Pool::Average { window, .. } => (window.sides(sides)?, false),
            Pool::MaxWithIndices(window) => (window.sides(sides)?, true),
            Pool::AdaptiveAverage(output) | Pool::MaxUnpool(output) => (to(output), false),
            Pool::AdaptiveMax(output) | Pool::FractionalMax { output, .. } => (to(output), true),
        };
        let shape = [&[*n, *channels], sides.as_slice()].concat();
        let mut results = vec![(*dtype, shape.clone())];
        results.extend(with_indices.then_some((DType::Int64, shape)));
        Ok(results)
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        eager.pool(*self, &operands[0], operands.get(1), &context.results[0])
    }
}
