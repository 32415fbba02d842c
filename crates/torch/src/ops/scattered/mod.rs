//! Writing elements of one tensor to places of another, other than `index_put` and `scatter`.

mod kernel;
pub mod placing;
mod reduce;
mod run;

use super::call::like_first;
use super::{View, indexed};
use crate::ops::prelude::*;
use reduce::Reduced;

/// What becomes of several elements that are written to one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Combination {
    /// Their sum.
    Sum,
    /// Their product.
    Product,
    /// Their mean.
    Mean,
    /// The largest.
    Largest,
    /// The smallest.
    Smallest,
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.index_copy.default aten.index_copy_.default", |args| {
        let operands = args.all(&["self", "index", "source"])?;
        let copy = Function {
            name: "index_copy",
            arguments: (dim(args, operands[0])?, is_in_place(args)),
            infer: like_first,
            run: |&(dim, in_place), eager, x, _| {
                let copied = eager.index_copy([&x[0], &x[1], &x[2]], dim, in_place)?;
                Ok(vec![copied])
            },
        };
        Ok(copy.on_positions(operands, |(dim, _), x| indexed::along(&x[0].1, *dim)))
    }),
    // A tensor is asked for its only element (`TensorAdvancedIndexing.cpp`).
    (
        "aten.index_fill.int_Scalar aten.index_fill_.int_Scalar aten.index_fill.int_Tensor aten.index_fill_.int_Tensor",
        |args| {
            let operands = args.all(&["self", "index"])?;
            let along = (dim(args, operands[0])?, args.number("value")?);
            let fill = Function {
                name: "index_fill",
                arguments: (along, is_in_place(args)),
                infer: like_first,
                run: |&(along, in_place), eager, x, _| {
                    Ok(vec![eager.index_fill([&x[0], &x[1]], along, in_place)?])
                },
            };
            Ok(fill.on_positions(operands, |((dim, _), _), x| indexed::along(&x[0].1, *dim)))
        },
    ),
    // Elements of the flattened tensor.
    ("aten.take.default", |args| {
        let take = Function {
            name: "take",
            arguments: (),
            infer: |(), x| Ok(vec![(x[0].0, x[1].1.clone())]),
            run: |(), eager, x, _| Ok(vec![eager.take(&x[0], &x[1])?]),
        };
        Ok(take.on_positions(args.all(&["self", "index"])?, |(), x| of_flat(x)))
    }),
    ("aten.put.default aten.put_.default", |args| {
        let put = Function {
            name: "put",
            arguments: (args.flag("accumulate", false)?, is_in_place(args)),
            infer: like_first,
            run: |&(accumulate, in_place), eager, x, _| {
                let put = eager.put([&x[0], &x[1], &x[2]], accumulate, in_place)?;
                Ok(vec![put])
            },
        };
        Ok(put.on_positions(args.all(&["self", "index", "source"])?, |_, x| of_flat(x)))
    }),
    // Without a dimension of the flattened tensors.
    ("aten.take_along_dim.default", |args| {
        let operands = args.all(&["self", "indices"])?;
        let dim = args.if_given("dim", |_| dim(args, operands[0]))?;
        let take = Function {
            name: "take_along_dim",
            arguments: dim,
            infer: |dim, x| {
                let (x, index) = (&x[0], &x[1].1);
                let shape = match dim {
                    Some(dim) => along(&x.1, index, *dim)?[1].clone(),
                    None => index.clone(),
                };
                Ok(vec![(x.0, shape)])
            },
            run: |dim, eager, x, _| Ok(vec![eager.take_along(&x[0], &x[1], *dim)?]),
        };
        Ok(take.on_positions(operands, |dim, x| match dim {
            Some(dim) => indexed::along(&x[0].1, *dim),
            None => of_flat(x),
        }))
    }),
    (
        "aten.masked_scatter.default aten.masked_scatter_.default",
        |args| {
            let scatter = Function {
                name: "masked_scatter",
                arguments: is_in_place(args),
                infer: |in_place, x| {
                    let (x, mask) = (&x[0], &x[1].1);
                    let shape = if *in_place {
                        x.1.clone()
                    } else {
                        broadcast(&x.1, mask)?
                    };
                    Ok(vec![(x.0, shape)])
                },
                run: |in_place, eager, x, _| {
                    let scattered = eager.masked_scatter([&x[0], &x[1], &x[2]], *in_place)?;
                    Ok(vec![scattered])
                },
            };
            Ok(scatter.on(args.all(&["self", "mask", "source"])?))
        },
    ),
    (
        "aten.scatter_reduce.two aten.scatter_reduce_.two aten.scatter.reduce aten.scatter_.reduce",
        scatter_reduce,
    ),
    ("aten.select_scatter.default", |args| {
        into_view(args, "select_scatter", super::view::read_select)
    }),
    ("aten.slice_scatter.default", |args| {
        into_view(args, "slice_scatter", super::view::read_slice)
    }),
    ("aten.diagonal_scatter.default", |args| {
        into_view(args, "diagonal_scatter", super::view::read_diagonal)
    }),
];

/// Whether the result replaces the first operand.
fn is_in_place(args: &Arguments<'_>) -> bool {
    args.target.contains("_.")
}

/// Along which dimension of `x` it writes or takes.
fn dim(args: &Arguments<'_>, x: ValueId) -> Result<usize, String> {
    args.dim("dim", None, args.shape(x).len())
}

/// The second operand holds positions in all of the first.
fn of_flat(operands: &[Type]) -> Vec<(usize, Extent)> {
    vec![(1, numel(&operands[0].1))]
}

fn scatter_reduce(args: &Arguments<'_>) -> Result<Read, String> {
    let reduce = match args.text("reduce", "")? {
        // `scatter(reduce=..)`, which has no gradient, knows two of them by these names.
        "sum" | "add" => Combination::Sum,
        "prod" | "multiply" => Combination::Product,
        "mean" => Combination::Mean,
        "amax" => Combination::Largest,
        "amin" => Combination::Smallest,
        other => return Err(format!("it reduces by {other:?}")),
    };
    let operands = args.all(&["self", "index", "src"])?;
    let reduced = Reduced {
        dim: dim(args, operands[0])?,
        reduce,
        include_self: args.flag("include_self", true)?,
    };
    let scatter = Function {
        name: "scatter_reduce",
        arguments: (reduced, is_in_place(args)),
        infer: like_first,
        run: |&(reduced, in_place), eager, x, _| {
            let scattered = eager.scatter_reduce([&x[0], &x[1], &x[2]], reduced, in_place)?;
            Ok(vec![scattered])
        },
    };
    Ok(scatter.on_positions(operands, |(reduced, _), x| {
        indexed::along(&x[0].1, reduced.dim)
    }))
}

/// `select_scatter`, `slice_scatter`, `diagonal_scatter`: a copy of the first operand with the second in the place of a view of it,
/// read as the view would be.
fn into_view(
    args: &Arguments<'_>,
    name: &'static str,
    read: fn(&Arguments<'_>, &[Extent]) -> Result<View, String>,
) -> Result<Read, String> {
    let operands = args.all(&["self", "src"])?;
    let scatter = Function {
        name,
        arguments: read(args, &args.shape(operands[0]))?,
        infer: |view, x| {
            let (place, source) = (view.infer(&x[..1])?.swap_remove(0).1, &x[1].1);
            if place != *source {
                return Err(format!("{source:?} does not fit in the place of {place:?}"));
            }
            Ok(x[..1].to_vec())
        },
        run: |view, eager, x, context| Ok(vec![eager.scatter_into([&x[0], &x[1]], view, context)]),
    };
    Ok(scatter.on(operands))
}

/// The shapes that `take_along_dim` expands both operands to: alike but for the dimension.
fn along(x: &[Extent], index: &[Extent], dim: usize) -> Result<[Vec<Extent>; 2], Mismatch> {
    if x.len() != index.len() || dim >= x.len() {
        return Err(format!(
            "indices {index:?} do not fit {x:?} along dimension {dim}"
        ));
    }
    let with = |shape: &[Extent], length: Extent| {
        let mut shape = shape.to_vec();
        shape[dim] = length;
        shape
    };
    let common = broadcast(&with(x, Extent::ONE), &with(index, Extent::ONE))?;
    Ok([with(&common, x[dim]), with(&common, index[dim])])
}

/// A truth value for each element.
const TRUTH: DType = DType::Bool;
