//! What is left of dimensions: sums, products, norms, extremes and statistics.

mod extreme;
mod kernel;
mod read;
mod run;
mod scratch;
mod statistic;
mod vector_norm;

pub(super) use kernel::any;
pub(super) use read::ATEN;
pub use scratch::scratch_of_columns;
pub(super) use vector_norm::kept_shape;

use crate::ops::prelude::*;

/// What is left of some dimensions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reduce {
    /// What is computed.
    pub function: Reduction,
    /// Over which dimensions, ascending; none are named where all are meant.
    pub dims: Dims,
    /// Whether they stay, with a length of one.
    pub keep: bool,
    /// The type to compute in, where the model's code says.
    pub dtype: Option<DType>,
}

/// Dimensions that are reduced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Dims {
    /// All of them, unnamed.
    All,
    /// These, ascending.
    Named(Vec<usize>),
}

impl Dims {
    /// Of a tensor of this rank.
    fn of(&self, rank: usize) -> Vec<usize> {
        match self {
            Dims::All => (0..rank).collect(),
            Dims::Named(dims) => dims.clone(),
        }
    }
}

/// What a reduction computes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The mean.
    Mean,
    /// The sum of what is a number (`nansum`).
    NanSum,
    /// The product.
    Product,
    /// The norm of vectors.
    Norm {
        /// Its order; 2 is Euclidean.
        order: f64,
        /// Whether it is `norm`, which casts where `linalg_vector_norm` computes in mixed types.
        is_older: bool,
    },
    /// Variance or standard deviation.
    Spread {
        /// Whether its root is taken.
        root: bool,
        /// Whether the mean is a result of its own, after it.
        with_mean: bool,
        /// What the number of elements is lowered by; 1 is unbiased.
        correction: f64,
    },
    /// The logarithm of the sum of exponentials.
    LogSumExp,
    /// The largest or smallest element (`amax`, `max()`).
    Extreme {
        /// Which of them.
        largest: bool,
    },
    /// The smallest and the largest element (`aminmax`).
    Both,
    /// How many elements are not zero.
    CountNonzero,
}

impl Operator for Reduce {
    fn name(&self) -> &'static str {
        match self.function {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::NanSum => "nansum",
            Reduction::Product => "prod",
            Reduction::Norm { is_older: true, .. } => "norm",
            Reduction::Norm {
                is_older: false, ..
            } => "linalg_vector_norm",
            Reduction::Spread {
                root, with_mean, ..
            } => match (root, with_mean) {
                (false, false) => "var",
                (true, false) => "std",
                (false, true) => "var_mean",
                (true, true) => "std_mean",
            },
            Reduction::LogSumExp => "logsumexp",
            Reduction::Extreme { largest: true } => "amax",
            Reduction::Extreme { largest: false } => "amin",
            Reduction::Both => "aminmax",
            Reduction::CountNonzero => "count_nonzero",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        let dtype = match self.function {
            // A sum counts: of integers and truth values it is int64.
            Reduction::Sum | Reduction::Mean | Reduction::NanSum | Reduction::Product
                if !dtype.is_float() && !dtype.is_complex() =>
            {
                DType::Int64
            }
            Reduction::CountNonzero => DType::Int64,
            Reduction::LogSumExp if !dtype.is_float() => DType::Float32,
            Reduction::Sum
            | Reduction::Mean
            | Reduction::NanSum
            | Reduction::Product
            | Reduction::Norm { .. }
            | Reduction::Spread { .. }
            | Reduction::LogSumExp
            | Reduction::Extreme { .. }
            | Reduction::Both => *dtype,
        };
        let left = reduce(x, &self.dims.of(x.len()), self.keep)?;
        let result = (self.dtype.unwrap_or(dtype), left);
        let has_two = matches!(
            self.function,
            Reduction::Both
                | Reduction::Spread {
                    with_mean: true,
                    ..
                }
        );
        let count = 1 + usize::from(has_two);
        Ok(vec![result; count])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        let x = &operands[0];
        let dims = self.dims.of(x.shape.len());
        let over = ReduceDims {
            dims: &dims,
            keep: self.keep,
            named: self.dims != Dims::All,
        };
        let dtype = self.dtype;
        let y = match self.function {
            Reduction::Sum | Reduction::Mean => {
                eager.reduction_as(self.function, x, (&dims, self.keep), dtype)
            }
            Reduction::NanSum => eager.nansum(x, over, dtype)?,
            Reduction::Product => eager.prod(x, over, dtype)?,
            Reduction::Norm { order, is_older } => {
                eager.vector_norm(x, over, (order, is_older), dtype)?
            }
            Reduction::Spread {
                root,
                with_mean,
                correction,
            } => return eager.spread(x, over, (root, with_mean), correction),
            Reduction::LogSumExp => eager.logsumexp(x, over)?,
            Reduction::Extreme { largest } => eager.extreme(x, over, largest)?,
            Reduction::Both => {
                let both = [false, true].map(|largest| eager.unsaved_extreme(x, over, largest));
                return Ok(both.into());
            }
            Reduction::CountNonzero => eager.count_nonzero(x, over),
        };
        Ok(vec![y])
    }
}

/// What a reduction runs over.
#[derive(Debug, Clone, Copy)]
struct ReduceDims<'a> {
    /// Which dimensions, ascending.
    dims: &'a [usize],
    /// Whether they stay, with a length of one.
    keep: bool,
    /// Whether the model's code names them.
    named: bool,
}

fn reduce(x: &[Extent], dims: &[usize], keep: bool) -> Result<Vec<Extent>, Mismatch> {
    if let Some(dim) = dims.iter().find(|dim| **dim >= x.len()) {
        return Err(format!("no dimension {dim} in {x:?}"));
    }
    Ok(super::indexed::reduced(x, dims, keep))
}
