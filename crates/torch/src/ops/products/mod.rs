//! Products of vectors, and of tensors over some of their dimensions; distances between vectors.

mod distance;
mod kernel;
mod run;

use serde::Serialize;

use super::{Context, Operator, Reader};
use crate::aten::Arguments;
use crate::eager::{Eager, Outputs, Tensor};
use crate::shape::{Extent, Mismatch, Type, broadcast};

/// Which product.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Product {
    /// `outer(a, b)`, `ger`: every element of one vector times every element of another.
    Outer,
    /// `dot(a, b)`, `vdot`: the sum of products of two vectors.
    Dot,
    /// `mv(matrix, vector)`.
    MatrixVector,
    /// `addmv(c, matrix, vector)`.
    AddMatrixVector {
        /// What `c` is multiplied by.
        beta: f64,
    },
    /// `tensordot(a, b)`, and `inner` of more than vectors: a sum over dimensions of each.
    Tensordot {
        /// Of the first.
        left: Vec<usize>,
        /// Of the second, in the same order.
        right: Vec<usize>,
    },
    /// `cross(a, b)` along a dimension of three.
    Cross {
        /// Which.
        dim: usize,
    },
    /// `cdist(a, b)`: distances between every two rows.
    Distances {
        /// Which norm: two for the Euclidean.
        norm: f64,
    },
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.outer.default aten.ger.default", |args| {
        Ok((Product::Outer.into(), args.all(&["self", "vec2"])?))
    }),
    ("aten.dot.default", |args| {
        Ok((Product::Dot.into(), args.all(&["self", "tensor"])?))
    }),
    ("aten.vdot.default", |args| {
        Ok((Product::Dot.into(), args.all(&["self", "other"])?))
    }),
    ("aten.mv.default", |args| {
        Ok((Product::MatrixVector.into(), args.all(&["self", "vec"])?))
    }),
    ("aten.addmv.default", |args| {
        if args.always("alpha", 1.0).is_err() {
            return super::scripted::read_as("scaled.addmv", args);
        }
        let beta = args.number_or("beta", 1.0)?;
        let operands = args.all(&["self", "mat", "vec"])?;
        Ok((Product::AddMatrixVector { beta }.into(), operands))
    }),
    ("aten.tensordot.default", |args| {
        let operands = args.all(&["self", "other"])?;
        let rank = |at: usize| args.shape(operands[at]).len();
        let op = Product::Tensordot {
            left: args.dims("dims_self", rank(0))?,
            right: args.dims("dims_other", rank(1))?,
        };
        Ok((op.into(), operands))
    }),
    ("aten.inner.default", |args| {
        let operands = args.all(&["self", "other"])?;
        let last = |at: usize| args.shape(operands[at]).len().checked_sub(1);
        let (Some(left), Some(right)) = (last(0), last(1)) else {
            return Err("a factor is a scalar".into());
        };
        if (left, right) == (0, 0) {
            return Ok((Product::Dot.into(), operands));
        }
        let (left, right) = (vec![left], vec![right]);
        Ok((Product::Tensordot { left, right }.into(), operands))
    }),
    ("aten.linalg_cross.default", |args| cross(args, Some(-1))),
    ("aten.cross.default", |args| cross(args, None)),
    ("aten.cdist.default", |args| {
        let mode = args.int("compute_mode", Some(0))?;
        if mode != 0 {
            return Err(format!(
                "its compute mode is {mode}; only the usual is supported"
            ));
        }
        let op = Product::Distances {
            norm: args.number_or("p", 2.0)?,
        };
        Ok((op.into(), args.all(&["x1", "x2"])?))
    }),
];

fn cross(args: &Arguments<'_>, default: Option<i64>) -> Result<super::Read, String> {
    let operands = args.all(&["self", "other"])?;
    let shape = args.shape(operands[0]);
    let dim = match args.dim("dim", default, shape.len()) {
        Ok(dim) => dim,
        // Without one, the first that has three elements.
        Err(problem) => {
            let three = shape.iter().position(|length| *length == Extent::fixed(3));
            three.filter(|_| !args.has("dim")).ok_or(problem)?
        }
    };
    Ok((Product::Cross { dim }.into(), operands))
}

impl Operator for Product {
    fn name(&self) -> &'static str {
        match self {
            Product::Outer => "outer",
            Product::Dot => "dot",
            Product::MatrixVector => "mv",
            Product::AddMatrixVector { .. } => "addmv",
            Product::Tensordot { .. } => "tensordot",
            Product::Cross { .. } => "cross",
            Product::Distances { .. } => "cdist",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, a) = &operands[0];
        let b = &operands[1].1;
        let problem = || format!("{a:?} and {b:?} do not fit together");
        let shape = match self {
            Product::Outer => match (&a[..], &b[..]) {
                ([rows], [columns]) => vec![*rows, *columns],
                _ => return Err(problem()),
            },
            Product::Dot if a == b && a.len() == 1 => Vec::new(),
            Product::Dot => return Err(problem()),
            Product::MatrixVector => product(a, b).ok_or_else(problem)?,
            Product::AddMatrixVector { .. } => product(b, &operands[2].1).ok_or_else(problem)?,
            Product::Tensordot { left, right } => {
                let alike = left.len() == right.len()
                    && left.iter().zip(right).all(|(i, j)| a[*i] == b[*j]);
                if !alike {
                    return Err(problem());
                }
                let kept = |shape: &[Extent], dims: &[usize]| -> Vec<Extent> {
                    let all = shape.iter().enumerate();
                    all.filter(|(i, _)| !dims.contains(i))
                        .map(|(_, n)| *n)
                        .collect()
                };
                [kept(a, left), kept(b, right)].concat()
            }
            Product::Cross { .. } => broadcast(a, b)?,
            Product::Distances { .. } => {
                let (Some([rows, width]), Some([others, other_width])) =
                    (a.last_chunk::<2>(), b.last_chunk::<2>())
                else {
                    return Err(problem());
                };
                if width != other_width {
                    return Err(problem());
                }
                let stack = broadcast(&a[..a.len() - 2], &b[..b.len() - 2])?;
                [&stack[..], &[*rows, *others]].concat()
            }
        };
        // An outer product is an elementwise one, which promotes types; the others take two of one type.
        let dtype = match self {
            Product::Outer => dtype.promote(operands[1].0),
            Product::Dot
            | Product::MatrixVector
            | Product::AddMatrixVector { .. }
            | Product::Tensordot { .. }
            | Product::Cross { .. }
            | Product::Distances { .. } => *dtype,
        };
        Ok(vec![(dtype, shape)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        let (a, b) = (&operands[0], &operands[1]);
        Ok(vec![match self {
            Product::Outer => {
                let column = eager.unsqueeze(a, 1);
                eager.mul(&column, b)?
            }
            Product::Dot => eager.dot(a, b)?,
            Product::MatrixVector => eager.matrix_vector(None, [a, b])?,
            Product::AddMatrixVector { beta } => {
                eager.matrix_vector(Some((a, *beta)), [b, &operands[2]])?
            }
            Product::Tensordot { left, right } => eager.tensordot([a, b], [left, right])?,
            Product::Cross { dim } => eager.cross(a, b, *dim)?,
            Product::Distances { norm } => eager.distances([a, b], *norm)?,
        }])
    }
}

/// The shape of a matrix times a vector.
fn product(matrix: &[Extent], vector: &[Extent]) -> Option<Vec<Extent>> {
    match (matrix, vector) {
        ([rows, inner], [length]) if inner == length => Some(vec![*rows]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::DType;

    #[test]
    fn an_outer_product_promotes_types() {
        let vector = |dtype, length| (dtype, vec![Extent::fixed(length)]);
        let operands = [vector(DType::Float32, 80), vector(DType::Float64, 2)];

        let results = Product::Outer.infer(&operands).unwrap();

        let shape = vec![Extent::fixed(80), Extent::fixed(2)];
        assert_eq!(results, [(DType::Float64, shape)]);
    }
}
