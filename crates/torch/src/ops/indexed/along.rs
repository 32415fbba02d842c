//! What is sorted, chosen, counted or repeated along dimensions.

use super::extremes::{self, Choice};
use super::{ordering, reduced};
use crate::ops::call::like_first;
use crate::ops::prelude::*;
use crate::ops::reduce::any;

/// Operators by their names.
pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.max.dim", |args| extreme(args, Choice::Largest)),
    ("aten.min.dim", |args| extreme(args, Choice::Smallest)),
    ("aten.median.dim", |args| extreme(args, Choice::Median)),
    ("aten.nanmedian.dim", |args| {
        extreme(args, Choice::NanMedian)
    }),
    ("aten.mode.default", |args| extreme(args, Choice::Mode)),
    ("aten.kthvalue.default", |args| {
        extreme(args, Choice::Kth(args.count("k", None)?))
    }),
    ("aten.argmax.default", |args| arg_extreme(args, "argmax")),
    ("aten.argmin.default", |args| arg_extreme(args, "argmin")),
    ("aten.any.default aten.any.dim", |args| truth(args, "any")),
    (
        "aten.all.default aten.all.dim aten._is_all_true.default",
        |args| truth(args, "all"),
    ),
    // Values and positions.
    ("aten.topk.default", |args| {
        let x = args.tensor("self")?;
        let count = args.count("k", None)?;
        let dim = dim(args, x, Some(-1))?;
        let top = Function {
            name: "topk",
            arguments: (count, dim, args.flag("largest", true)?),
            infer: |&(count, dim, _), x| {
                let shape = with(&x[0].1, dim, |_| Extent::fixed(count))?;
                Ok(vec![(x[0].0, shape.clone()), (DType::Int64, shape)])
            },
            run: |&(_, dim, largest), eager, x, context| {
                let kernel = ordering::top(dim, x[0].shape.len(), largest);
                eager.choose(kernel, &x[0], &context.results[0], (dim, true))
            },
        };
        Ok(top.on(vec![x]))
    }),
    ("aten.sort.default", |args| {
        let x = args.tensor("self")?;
        let sort = Function {
            name: "sort",
            arguments: (dim(args, x, Some(-1))?, args.flag("descending", false)?),
            infer: |&(dim, _), x| {
                with(&x[0].1, dim, |length| length)?;
                Ok(vec![x[0].clone(), (DType::Int64, x[0].1.clone())])
            },
            run: |&by, eager, x, _| eager.sort(&x[0], by),
        };
        Ok(sort.on(vec![x]))
    }),
    ("aten.argsort.default", |args| {
        let x = args.tensor("self")?;
        let sort = Function {
            name: "argsort",
            arguments: (dim(args, x, Some(-1))?, args.flag("descending", false)?),
            infer: |_, x| Ok(vec![(DType::Int64, x[0].1.clone())]),
            run: |&by, eager, x, _| Ok(eager.sort(&x[0], by)?.split_off(1)),
        };
        Ok(sort.on(vec![x]))
    }),
    ("aten.histc.default", |args| {
        let bins = args.count("bins", Some(100))?;
        // The smallest and the largest element if equal.
        let range = [args.number_or("min", 0.0)?, args.number_or("max", 0.0)?];
        let count = Function {
            name: "histc",
            arguments: (bins, range),
            infer: |(bins, _), x| Ok(vec![(x[0].0, vec![Extent::fixed(*bins)])]),
            run: |&(_, range), eager, x, context| {
                let y = eager.empty(&context.results[0], x[0].dtype);
                Ok(vec![eager.computed(
                    y,
                    ordering::histogram(range),
                    &[&x[0]],
                )])
            },
        };
        Ok(count.on(args.all(&["self"])?))
    }),
    ("aten.one_hot.default", |args| {
        let one_hot = Function {
            name: "one_hot",
            arguments: args.count("num_classes", None)?,
            infer: |classes, x| {
                let shape = [&x[0].1[..], &[Extent::fixed(*classes)]].concat();
                Ok(vec![(DType::Int64, shape)])
            },
            run: |_, eager, x, context| {
                let y = eager.empty(&context.results[0], DType::Int64);
                Ok(vec![eager.computed(
                    y,
                    ordering::one_hot(x[0].shape.len()),
                    &[&x[0]],
                )])
            },
        };
        let operands = args.all(&["self"])?;
        Ok(one_hot.on_positions(operands, |classes, _| vec![(0, Extent::fixed(*classes))]))
    }),
    ("aten.repeat_interleave.self_int", |args| {
        let x = args.tensor("self")?;
        let times = args.count("repeats", None)?;
        // Without a dimension it repeats the elements of the flattened tensor.
        let dim = match (args.has("dim"), args.shape(x).len()) {
            (false, 1) => 0,
            (false, rank) => return Err(format!("it flattens {rank} dimensions")),
            (true, _) => dim(args, x, None)?,
        };
        let repeat = Function {
            name: "repeat_interleave",
            arguments: (times, dim),
            infer: |&(times, dim), x| {
                let shape = with(&x[0].1, dim, |length| length * Extent::fixed(times))?;
                Ok(vec![(x[0].0, shape)])
            },
            run: |&(times, dim), eager, x, _| Ok(vec![eager.repeat_interleave(&x[0], times, dim)]),
        };
        Ok(repeat.on(vec![x]))
    }),
    ("aten.cumsum.default", |args| {
        let x = args.tensor("self")?;
        let is_number = args.shape(x).is_empty();
        let sum = Function {
            name: "cumsum",
            arguments: (
                if is_number { 0 } else { dim(args, x, None)? },
                args.dtype("dtype")?,
            ),
            infer: |(dim, dtype), x| {
                let (own, shape) = &x[0];
                if !shape.is_empty() {
                    with(shape, *dim, |length| length)?;
                }
                let own = if own.is_float() { *own } else { DType::Int64 };
                Ok(vec![(dtype.unwrap_or(own), shape.clone())])
            },
            run: |&(dim, dtype), eager, x, _| Ok(vec![eager.cumulative_sum(&x[0], dim, dtype)]),
        };
        Ok(sum.on(vec![x]))
    }),
    ("aten.tril.default", |args| triangle(args, false)),
    ("aten.triu.default", |args| triangle(args, true)),
];

fn dim(args: &Arguments<'_>, x: ValueId, default: Option<i64>) -> Result<usize, String> {
    args.dim("dim", default, args.shape(x).len())
}

/// A shape with another length of a dimension.
pub(super) fn with(
    x: &[Extent],
    dim: usize,
    length: impl Fn(Extent) -> Extent,
) -> Result<Vec<Extent>, Mismatch> {
    let mut shape = x.to_vec();
    let place = shape.get_mut(dim);
    let place = place.ok_or_else(|| format!("no dimension {dim} in {x:?}"))?;
    *place = length(*place);
    Ok(shape)
}

/// One element along a dimension, such as the largest, and where it is.
fn extreme(args: &Arguments<'_>, choice: Choice) -> Result<Read, String> {
    let x = args.tensor("self")?;
    let dim = dim(args, x, Some(-1))?;
    let extreme = Function {
        name: choice.name(),
        arguments: (choice, dim, args.flag("keepdim", false)?),
        infer: |&(_, dim, keep), x| {
            let (dtype, x) = &x[0];
            with(x, dim, |length| length)?;
            let shape = reduced(x, &[dim], keep);
            Ok(vec![(*dtype, shape.clone()), (DType::Int64, shape)])
        },
        run: |&(choice, dim, keep), eager, x, context| {
            let kernel = extremes::choose(choice, dim);
            eager.choose(kernel, &x[0], &context.results[0], (dim, keep))
        },
    };
    Ok(extreme.on(vec![x]))
}

/// Where the largest or smallest element along a dimension is, or along all together.
fn arg_extreme(args: &Arguments<'_>, name: &'static str) -> Result<Read, String> {
    let x = args.tensor("self")?;
    let dims = if args.has("dim") {
        vec![dim(args, x, None)?]
    } else {
        (0..args.shape(x).len()).collect()
    };
    let place = Function {
        name,
        arguments: (name == "argmax", dims, args.flag("keepdim", false)?),
        infer: |(_, dims, keep), x| Ok(vec![(DType::Int64, reduced(&x[0].1, dims, *keep))]),
        run: |(largest, dims, _), eager, x, context| {
            let kernel = extremes::place(dims, *largest);
            let over = (&*context.results[0], &**dims);
            Ok(vec![eager.plain(kernel, &x[0], over, DType::Int64)])
        },
    };
    Ok(place.on(vec![x]))
}

/// Whether any or all elements along a dimension are true, or along all of them.
fn truth(args: &Arguments<'_>, name: &'static str) -> Result<Read, String> {
    let x = args.tensor("self")?;
    let (dims, keep) = if args.target.contains(".dim") {
        (vec![dim(args, x, None)?], args.flag("keepdim", false)?)
    } else {
        ((0..args.shape(x).len()).collect(), false)
    };
    let truth = Function {
        name,
        arguments: (name == "all", dims, keep),
        infer: |(_, dims, keep), x| Ok(vec![(DType::Bool, reduced(&x[0].1, dims, *keep))]),
        run: |(all, dims, _), eager, x, context| {
            let kernel = if *all { extremes::all(dims) } else { any(dims) };
            let over = (&*context.results[0], &**dims);
            Ok(vec![eager.plain(kernel, &x[0], over, DType::Bool)])
        },
    };
    Ok(truth.on(vec![x]))
}

/// `tril` or `triu` of each matrix: what is below a diagonal, or above it.
fn triangle(args: &Arguments<'_>, upper: bool) -> Result<Read, String> {
    let triangle = Function {
        name: "tril",
        arguments: (upper, args.int("diagonal", Some(0))?),
        infer: like_first,
        run: |&(upper, diagonal), eager, x, _| {
            let kernel = ordering::triangle(upper, diagonal, x[0].shape.len());
            Ok(vec![eager.triangle(&x[0], kernel)])
        },
    };
    Ok(triangle.on(args.all(&["self"])?))
}
