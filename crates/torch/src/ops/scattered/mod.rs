//! Writing elements of one tensor to places of another, other than `index_put` and `scatter`.

mod kernel;
pub mod placing;
mod reduce;
mod run;

use serde::Serialize;

use super::{Context, Operator, Read, Reader, View, indexed};
use crate::aten::Arguments;
use crate::eager::{Eager, Outputs, Tensor};
use crate::shape::{DType, Extent, Mismatch, Type, broadcast, numel};

/// Which operator, and where it writes. `in_place` is whether the result replaces the first operand.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Scattered {
    /// `index_copy(self, dim, index, source)`.
    IndexCopy {
        /// Which dimension.
        dim: usize,
        /// Whether it replaces.
        in_place: bool,
    },
    /// `index_fill(self, dim, index, value)`.
    IndexFill {
        /// Which dimension.
        dim: usize,
        /// With what.
        value: f64,
        /// Whether it replaces.
        in_place: bool,
    },
    /// `take(self, index)`: elements of the flattened tensor.
    Take,
    /// `put(self, index, source)`: elements of the flattened tensor.
    Put {
        /// Whether equal places add up.
        accumulate: bool,
        /// Whether it replaces.
        in_place: bool,
    },
    /// `take_along_dim(self, indices, dim)`; of the flattened tensors without a dimension.
    TakeAlong {
        /// Which dimension.
        dim: Option<usize>,
    },
    /// `scatter_reduce(self, dim, index, src)`.
    ScatterReduce {
        /// Which dimension.
        dim: usize,
        /// What becomes of several elements at one place.
        reduce: Combination,
        /// Whether the element that is there counts too.
        include_self: bool,
        /// Whether it replaces.
        in_place: bool,
    },
    /// `select_scatter`, `slice_scatter`, `diagonal_scatter`: a copy of the first operand with the second in the
    /// place of this view of it.
    View(View),
    /// `masked_scatter(self, mask, source)`.
    Masked {
        /// Whether it replaces.
        in_place: bool,
    },
}

/// What becomes of several elements that are written to one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Combination {
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
    (
        "aten.index_copy.default aten.index_copy_.default aten.index_fill.int_Scalar aten.index_fill_.int_Scalar \
         aten.index_fill.int_Tensor aten.index_fill_.int_Tensor aten.take.default aten.put.default aten.put_.default \
         aten.take_along_dim.default aten.scatter_reduce.two aten.scatter_reduce_.two aten.scatter.reduce aten.scatter_.reduce \
         aten.masked_scatter.default aten.masked_scatter_.default",
        read,
    ),
    ("aten.select_scatter.default", into_view),
    ("aten.slice_scatter.default", into_view),
    ("aten.diagonal_scatter.default", into_view),
];

fn read(args: &Arguments<'_>) -> Result<Read, String> {
    let target = args.target;
    let in_place = target.contains("_.");
    let (op, operands) = match target {
        "aten.index_copy.default" | "aten.index_copy_.default" => {
            let operands = args.all(&["self", "index", "source"])?;
            let dim = args.dim("dim", None, args.shape(operands[0]).len())?;
            (Scattered::IndexCopy { dim, in_place }, operands)
        }
        // A tensor is asked for its only element (`TensorAdvancedIndexing.cpp`).
        "aten.index_fill.int_Scalar"
        | "aten.index_fill_.int_Scalar"
        | "aten.index_fill.int_Tensor"
        | "aten.index_fill_.int_Tensor" => {
            let operands = args.all(&["self", "index"])?;
            let fill = Scattered::IndexFill {
                dim: args.dim("dim", None, args.shape(operands[0]).len())?,
                value: args.number("value")?,
                in_place,
            };
            (fill, operands)
        }
        "aten.take.default" => (Scattered::Take, args.all(&["self", "index"])?),
        "aten.put.default" | "aten.put_.default" => {
            let accumulate = args.flag("accumulate", false)?;
            let operands = args.all(&["self", "index", "source"])?;
            (
                Scattered::Put {
                    accumulate,
                    in_place,
                },
                operands,
            )
        }
        "aten.take_along_dim.default" => {
            let operands = args.all(&["self", "indices"])?;
            let rank = args.shape(operands[0]).len();
            let dim = args
                .has("dim")
                .then(|| args.dim("dim", None, rank))
                .transpose()?;
            (Scattered::TakeAlong { dim }, operands)
        }
        "aten.masked_scatter.default" | "aten.masked_scatter_.default" => {
            let operands = args.all(&["self", "mask", "source"])?;
            (Scattered::Masked { in_place }, operands)
        }
        _ => {
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
            let op = Scattered::ScatterReduce {
                dim: args.dim("dim", None, args.shape(operands[0]).len())?,
                reduce,
                include_self: args.flag("include_self", true)?,
                in_place,
            };
            (op, operands)
        }
    };
    Ok((op.into(), operands))
}

/// What writes into a view, read as the view would be.
fn into_view(args: &Arguments<'_>) -> Result<Read, String> {
    let operands = args.all(&["self", "src"])?;
    let from = args.shape(operands[0]);
    let view = match args.target {
        "aten.select_scatter.default" => super::view::read_select(args, &from)?,
        "aten.slice_scatter.default" => super::view::read_slice(args, &from)?,
        _ => super::view::read_diagonal(args, &from)?,
    };
    Ok((Scattered::View(view).into(), operands))
}

impl Operator for Scattered {
    fn name(&self) -> &'static str {
        match self {
            Scattered::IndexCopy { .. } => "index_copy",
            Scattered::IndexFill { .. } => "index_fill",
            Scattered::Take => "take",
            Scattered::Put { .. } => "put",
            Scattered::TakeAlong { .. } => "take_along_dim",
            Scattered::ScatterReduce { .. } => "scatter_reduce",
            Scattered::View(View::Select { .. }) => "select_scatter",
            Scattered::View(View::Slice { .. }) => "slice_scatter",
            Scattered::View(_) => "diagonal_scatter",
            Scattered::Masked { .. } => "masked_scatter",
        }
    }

    fn arity(&self) -> (usize, usize) {
        match self {
            Scattered::IndexCopy { .. }
            | Scattered::Put { .. }
            | Scattered::ScatterReduce { .. }
            | Scattered::Masked { .. } => (3, 3),
            Scattered::IndexFill { .. }
            | Scattered::Take
            | Scattered::TakeAlong { .. }
            | Scattered::View(_) => (2, 2),
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let ((dtype, x), index) = (&operands[0], &operands[1].1);
        let shape = match self {
            Scattered::IndexCopy { .. }
            | Scattered::IndexFill { .. }
            | Scattered::Put { .. }
            | Scattered::ScatterReduce { .. }
            | Scattered::Masked { in_place: true } => x.clone(),
            Scattered::Masked { in_place: false } => broadcast(x, index)?,
            Scattered::Take | Scattered::TakeAlong { dim: None } => index.clone(),
            Scattered::TakeAlong { dim: Some(dim) } => along(x, index, *dim)?[1].clone(),
            Scattered::View(view) => {
                let place = view.infer(&operands[..1])?;
                if place[0].1 != *index {
                    return Err(format!(
                        "{index:?} does not fit in the place of {:?}",
                        place[0].1
                    ));
                }
                x.clone()
            }
        };
        Ok(vec![(*dtype, shape)])
    }

    fn positions(&self, operands: &[Type]) -> Vec<(usize, Extent)> {
        let shape = &operands[0].1;
        match self {
            Scattered::IndexCopy { dim, .. }
            | Scattered::IndexFill { dim, .. }
            | Scattered::TakeAlong { dim: Some(dim) }
            | Scattered::ScatterReduce { dim, .. } => indexed::along(shape, *dim),
            Scattered::Take | Scattered::Put { .. } | Scattered::TakeAlong { dim: None } => {
                vec![(1, numel(shape))]
            }
            Scattered::View(_) | Scattered::Masked { .. } => Vec::new(),
        }
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        let (x, index) = (&operands[0], &operands[1]);
        Ok(vec![match self {
            Scattered::IndexCopy { dim, in_place } => {
                eager.index_copy([x, index, &operands[2]], *dim, *in_place)?
            }
            Scattered::IndexFill {
                dim,
                value,
                in_place,
            } => eager.index_fill([x, index], (*dim, *value), *in_place)?,
            Scattered::Take => eager.take(x, index)?,
            Scattered::Put {
                accumulate,
                in_place,
            } => eager.put([x, index, &operands[2]], *accumulate, *in_place)?,
            Scattered::TakeAlong { dim: Some(dim) } => {
                let shapes = along(&x.shape, &index.shape, *dim).expect("checked when built");
                let (x, index) = (
                    eager.expand_to(x, &shapes[0]),
                    eager.expand_to(index, &shapes[1]),
                );
                eager.gather(&x, &index, *dim)?
            }
            Scattered::TakeAlong { dim: None } => {
                let flat = eager.reshape(x, &[x.numel()]);
                let places = eager.reshape(index, &[index.numel()]);
                eager.gather(&flat, &places, 0)?
            }
            Scattered::ScatterReduce {
                dim,
                reduce,
                include_self,
                in_place,
            } => eager.scatter_reduce(
                [x, index, &operands[2]],
                (*dim, *reduce, *include_self),
                *in_place,
            )?,
            Scattered::View(view) => eager.scatter_into([x, index], view, context),
            Scattered::Masked { in_place } => {
                eager.masked_scatter([x, index, &operands[2]], *in_place)?
            }
        }])
    }
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
