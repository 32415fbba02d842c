//! Sums, means and norms over dimensions.

mod run;
mod vector_norm;

use serde::Serialize;

use super::{Context, Operator, Read, Reader};
use crate::eager::{Eager, Stop, Tensor};
use crate::shape::{DType, Extent, Mismatch, Type};
use crate::aten::Arguments;

/// What is left of some dimensions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Reduce {
    /// What is computed.
    pub function: Reduction,
    /// Over which dimensions, ascending.
    pub dims: Vec<usize>,
    /// Whether they stay, with a length of one.
    pub keep: bool,
}

/// What a reduction computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The mean.
    Mean,
    /// `linalg_vector_norm`, Euclidean.
    Norm,
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.mean.default", read),
    ("aten.mean.dim", read),
    ("aten.sum.default", read),
    ("aten.sum.dim_IntList", read),
    ("aten.linalg_vector_norm.default", |args| {
        args.always("ord", 2.0)?;
        let input = args.tensor("self")?;
        let reduce = Reduce {
            function: Reduction::Norm,
            dims: args.dims_or_all("dim", args.shape(input).len())?,
            keep: args.flag("keepdim", false)?,
        };
        Ok((reduce.into(), vec![input]))
    }),
];

fn read(args: &Arguments<'_>) -> Result<Read, String> {
    let input = args.tensor("self")?;
    let rank = args.shape(input).len();
    let mut dims: Vec<usize> = if args.target.ends_with(".default") {
        (0..rank).collect()
    } else {
        args.dims_or_all("dim", rank)?
    };
    dims.sort_unstable();
    let reduce = Reduce {
        function: if args.target.starts_with("aten.mean") {
            Reduction::Mean
        } else {
            Reduction::Sum
        },
        dims,
        keep: args.flag("keepdim", false)?,
    };
    Ok((reduce.into(), vec![input]))
}

impl Operator for Reduce {
    fn name(&self) -> &'static str {
        match self.function {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Norm => "linalg_vector_norm",
        }
    }

    fn arity(&self) -> (usize, usize) {
        (1, 1)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        // A sum counts: of integers and truth values it is int64.
        let dtype = match self.function {
            Reduction::Sum | Reduction::Mean if !dtype.is_float() && !dtype.is_complex() => {
                DType::Int64
            },
            Reduction::Sum | Reduction::Mean | Reduction::Norm => *dtype,
        };
        Ok(vec![(dtype, reduce(x, &self.dims, self.keep)?)])
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        _: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        let x = &operands[0];
        Ok(vec![match self.function {
            Reduction::Sum | Reduction::Mean => {
                eager.reduction(self.function, x, &self.dims, self.keep)
            }
            Reduction::Norm => eager.vector_norm(x, &self.dims, self.keep)?,
        }])
    }
}

fn reduce(x: &[Extent], dims: &[usize], keep: bool) -> Result<Vec<Extent>, Mismatch> {
    if let Some(dim) = dims.iter().find(|dim| **dim >= x.len()) {
        return Err(format!("no dimension {dim} in {x:?}"));
    }
    let lengths = x.iter().enumerate();
    Ok(if keep {
        lengths
            .map(|(i, n)| if dims.contains(&i) { Extent::ONE } else { *n })
            .collect()
    } else {
        lengths
            .filter(|(i, _)| !dims.contains(i))
            .map(|(_, n)| *n)
            .collect()
    })
}
