//! Losses.

mod read;
mod run;

pub(super) use read::ATEN;

use super::{Context, Operator};
use crate::eager::{Eager, Stop, Tensor};
use crate::shape::{DType, Extent, Mismatch, Type};
use serde::Serialize;


/// A loss of predictions and targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Which one.
    pub function: LossFunction,
    /// How the losses of all elements become one number.
    pub summary: Summary,
}

/// What a loss computes of each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum LossFunction {
    /// `cross_entropy` of class indices, smoothed or summed.
    CrossEntropy {
        /// Whether labels are smoothed.
        smoothed: bool,
    },
    /// `cross_entropy` of probabilities.
    SoftCrossEntropy {
        /// Whether labels are smoothed.
        smoothed: bool,
    },
    /// `nll_loss` of log-probabilities.
    NegativeLogLikelihood,
    /// `mse_loss`.
    Squared,
    /// `l1_loss`.
    Absolute,
    /// `smooth_l1_loss`.
    SmoothAbsolute,
    /// `huber_loss`.
    Huber,
    /// `binary_cross_entropy`.
    BinaryCrossEntropy,
    /// `binary_cross_entropy_with_logits`.
    BinaryCrossEntropyOfLogits,
}

/// How losses become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Summary {
    /// They do not.
    None,
    /// Their mean.
    Mean,
    /// Their sum.
    Sum,
}

impl LossFunction {
    /// The name a PyTorch user knows it by.
    pub fn name(self) -> &'static str {
        match self {
            LossFunction::CrossEntropy { .. } | LossFunction::SoftCrossEntropy { .. } => {
                "cross_entropy"
            }
            LossFunction::NegativeLogLikelihood => "nll_loss",
            LossFunction::Squared => "mse_loss",
            LossFunction::Absolute => "l1_loss",
            LossFunction::SmoothAbsolute => "smooth_l1_loss",
            LossFunction::Huber => "huber_loss",
            LossFunction::BinaryCrossEntropy => "binary_cross_entropy",
            LossFunction::BinaryCrossEntropyOfLogits => "binary_cross_entropy_with_logits",
        }
    }
}

impl Loss {
    /// The mean cross-entropy of class indices.
    pub const CROSS_ENTROPY: Loss = Loss {
        function: LossFunction::CrossEntropy { smoothed: false },
        summary: Summary::Mean,
    };

    /// The loss of predictions and targets of these types.
    fn result(
        self,
        x: &(DType, Vec<Extent>),
        target: &(DType, Vec<Extent>),
    ) -> Result<(DType, Vec<Extent>), String> {
        let of_classes = matches!(
            self.function,
            LossFunction::CrossEntropy { .. } | LossFunction::NegativeLogLikelihood
        );
        let mut each = x.1.clone();
        if of_classes || matches!(self.function, LossFunction::SoftCrossEntropy { .. }) {
            if each.len() < 2 {
                return Err(format!("predictions {each:?} have no classes"));
            }
            each.remove(1);
        }
        let expected = if of_classes { &each } else { &x.1 };
        if *expected != target.1 {
            return Err(format!(
                "targets {:?} do not fit predictions {:?}",
                target.1, x.1
            ));
        }
        let shape = match self.summary {
            Summary::None => each,
            Summary::Mean | Summary::Sum => Vec::new(),
        };
        let dtype = if of_classes {
            x.0
        } else {
            x.0.promote(target.0)
        };
        Ok((dtype, shape))
    }
}

impl Operator for Loss {
    fn name(&self) -> &'static str {
        self.function.name()
    }

    fn arity(&self) -> (usize, usize) {
        (2, 2)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(vec![self.result(&operands[0], &operands[1])?])
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        _: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        Ok(vec![eager.loss(*self, &operands[0], &operands[1])?])
    }
}
