//! Distances and similarities of vectors.

mod run;

use serde::Serialize;

use super::{Context, Operator, Reader};
use crate::eager::{Eager, Outputs, Tensor};
use crate::shape::{DType, Mismatch, Type, broadcast};

/// A measure of two tensors of vectors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Distance {
    /// `cosine_similarity(x1, x2)`.
    Cosine {
        /// Along which dimension vectors lie.
        dim: usize,
        /// The least length that is divided by.
        eps: f64,
    },
    /// `pairwise_distance(x1, x2)`, of vectors in the last dimension.
    Pairwise {
        /// The order of the norm.
        order: f64,
        /// What keeps differences from zero.
        eps: f64,
        /// Whether the last dimension stays.
        keep: bool,
    },
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.cosine_similarity.default", |args| {
        let operands = args.all(&["x1", "x2"])?;
        let rank = operands.iter().map(|id| args.shape(*id).len()).max();
        let distance = Distance::Cosine {
            dim: args.dim("dim", Some(1), rank.unwrap_or(0))?,
            eps: args.number_or("eps", 1e-8)?,
        };
        Ok((distance.into(), operands))
    }),
    ("aten.pairwise_distance.default", |args| {
        let distance = Distance::Pairwise {
            order: args.number_or("p", 2.0)?,
            eps: args.number_or("eps", 1e-6)?,
            keep: args.flag("keepdim", false)?,
        };
        Ok((distance.into(), args.all(&["x1", "x2"])?))
    }),
];

impl Operator for Distance {
    fn name(&self) -> &'static str {
        match self {
            Distance::Cosine { .. } => "cosine_similarity",
            Distance::Pairwise { .. } => "pairwise_distance",
        }
    }

    fn arity(&self) -> (usize, usize) {
        (2, 2)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let mut shape = broadcast(&operands[0].1, &operands[1].1)?;
        let dtype = DType::promote(operands[0].0, operands[1].0);
        match *self {
            Distance::Cosine { dim, .. } if dim < shape.len() => {
                shape.remove(dim);
            }
            Distance::Cosine { dim, .. } => return Err(format!("no dimension {dim} in {shape:?}")),
            Distance::Pairwise { keep, .. } => {
                let last = shape.last_mut().ok_or("its operands are no vectors")?;
                *last = crate::shape::Extent::ONE;
                if !keep {
                    shape.pop();
                }
            }
        }
        Ok(vec![(dtype, shape)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        let (a, b) = (&operands[0], &operands[1]);
        Ok(vec![match *self {
            Distance::Cosine { dim, .. } => eager.cosine_similarity(a, b, dim)?,
            Distance::Pairwise { order, eps, keep } => {
                eager.pairwise_distance(a, b, (order, eps), keep)?
            }
        }])
    }
}
