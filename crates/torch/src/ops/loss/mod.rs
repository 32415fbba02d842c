//! Losses of predictions and targets.

pub(in crate::ops) mod composed;
mod ctc;
pub(in crate::ops) mod kernel;
mod margin;
mod paired;
mod pairs;
mod paths;
mod read;
mod run;

use crate::ops::prelude::*;
use pairs::Paired;
pub(super) use read::{ATEN, summary};

/// A loss of predictions and targets. Weights follow as operands, where there are any.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Loss {
    /// Which one.
    pub function: LossFunction,
    /// How the losses of all elements become one number.
    pub summary: Summary,
}

/// What a loss computes of each element.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum LossFunction {
    /// `cross_entropy` of class indices.
    CrossEntropy {
        /// How much of each label is spread over all classes.
        smoothing: f64,
        /// The target that does not count.
        ignored: i64,
    },
    /// `cross_entropy` of probabilities.
    SoftCrossEntropy {
        /// How much of each label is spread over all classes.
        smoothing: f64,
    },
    /// `nll_loss` of log-probabilities.
    NegativeLogLikelihood {
        /// The target that does not count.
        ignored: i64,
    },
    /// `l1_loss`.
    Absolute,
    /// One of pairs of elements, such as `mse_loss`.
    Paired(Paired),
    /// `multi_margin_loss`, with a weight for each class if there is a third operand.
    MultiMargin {
        /// The power of distances.
        power: f64,
        /// How far apart scores should be.
        margin: f64,
    },
    /// `multilabel_margin_loss`.
    MultilabelMargin,
    /// `ctc_loss`. Lengths of inputs and labels follow as operands, unless the model's code says how long all are.
    Ctc {
        /// How long all inputs and all labels are.
        lengths: Option<[u64; 2]>,
        /// The class of no label.
        blank: u64,
        /// Whether infinite losses become zero.
        zero_infinity: bool,
    },
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
    fn name(self) -> &'static str {
        match self {
            LossFunction::CrossEntropy { .. } | LossFunction::SoftCrossEntropy { .. } => {
                "cross_entropy"
            }
            LossFunction::NegativeLogLikelihood { .. } => "nll_loss",
            LossFunction::Absolute => "l1_loss",
            LossFunction::Paired(paired) => paired.pairs.name,
            LossFunction::MultiMargin { .. } => "multi_margin_loss",
            LossFunction::MultilabelMargin => "multilabel_margin_loss",
            LossFunction::Ctc { .. } => "ctc_loss",
        }
    }
}

impl Loss {
    /// The target that does not count unless another is named.
    pub const IGNORED_BY_DEFAULT: i64 = -100;

    /// The mean cross-entropy of class indices.
    pub const CROSS_ENTROPY: Loss = Loss {
        function: LossFunction::CrossEntropy {
            smoothing: 0.0,
            ignored: Loss::IGNORED_BY_DEFAULT,
        },
        summary: Summary::Mean,
    };

    /// The loss of predictions and targets of these types.
    fn result(self, x: &Type, target: &Type) -> Result<Type, Mismatch> {
        let unfit = || format!("targets {:?} do not fit predictions {:?}", target.1, x.1);
        let without_classes = || {
            let mut each = x.1.clone();
            if each.len() < 2 {
                return Err(format!("predictions {each:?} have no classes"));
            }
            each.remove(1);
            Ok(each)
        };
        // Losses that are not reduced.
        let (each, dtype): (Vec<Extent>, DType) = match self.function {
            LossFunction::CrossEntropy { .. } | LossFunction::NegativeLogLikelihood { .. } => {
                let each = without_classes()?;
                if each != target.1 {
                    return Err(unfit());
                }
                (each, x.0)
            }
            LossFunction::SoftCrossEntropy { .. } => {
                if x.1 != target.1 {
                    return Err(unfit());
                }
                (without_classes()?, x.0.promote(target.0))
            }
            LossFunction::Absolute => (broadcast(&x.1, &target.1)?, x.0.promote(target.0)),
            LossFunction::Paired(_) => {
                if x.1 != target.1 {
                    return Err(unfit());
                }
                (x.1.clone(), x.0.promote(target.0))
            }
            LossFunction::MultiMargin { .. } | LossFunction::MultilabelMargin => {
                let classes = x.1.len().checked_sub(1);
                let classes = classes.ok_or("predictions have no classes")?;
                (x.1[..classes].to_vec(), x.0)
            }
            LossFunction::Ctc { .. } => match x.1[..] {
                [_, _] => (Vec::new(), x.0),
                [_, batch, _] => (vec![batch], x.0),
                _ => return Err(format!("predictions {:?} are no sequences of classes", x.1)),
            },
        };
        let shape = match self.summary {
            Summary::None => each,
            Summary::Mean | Summary::Sum => Vec::new(),
        };
        Ok((dtype, shape))
    }
}

impl Operator for Loss {
    fn name(&self) -> &'static str {
        self.function.name()
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(vec![self.result(&operands[0], &operands[1])?])
    }

    /// The classes.
    fn positions(&self, operands: &[Type]) -> Vec<(usize, Extent)> {
        let classes = operands[0].1.get(1);
        classes.map(|classes| (1, *classes)).into_iter().collect()
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        Ok(vec![eager.loss(*self, operands)?])
    }
}
