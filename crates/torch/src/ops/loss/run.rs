//! `cross_entropy` and the other losses.

use crate::ops::prelude::*;
use crate::ops::{Elementwise, Loss, LossFunction, Reduction, Summary};

use super::ctc::Ctc;
use super::kernel::{self, Likelihood};

impl Eager {
    /// A loss of predictions, targets and weights.
    pub fn loss(&mut self, loss: Loss, operands: &[Tensor]) -> Output {
        let (x, target) = (&operands[0], &operands[1]);
        let weight = operands.get(2);
        match loss.function {
            LossFunction::CrossEntropy { smoothing, ignored } => {
                let scores = self.log_softmax(x)?;
                let high_weight = weight.map(|weight| self.high(weight));
                let high = self.high(&scores);
                let by = (ignored, loss.summary);
                let plain = self.nll_loss(&high, target, high_weight.as_ref(), by)?;
                drop(high_weight);
                if smoothing > 0.0 {
                    let labels = (smoothing, ignored);
                    self.smoothed((&scores, target, weight), &plain, labels, loss.summary)
                } else {
                    Ok(plain)
                }
            }
            LossFunction::SoftCrossEntropy { smoothing } => {
                self.soft_cross_entropy((x, target, weight), smoothing, loss.summary)
            }
            LossFunction::NegativeLogLikelihood { ignored } => {
                let weight = weight.map(|weight| self.high(weight));
                let x = self.high(x);
                self.nll_loss(&x, target, weight.as_ref(), (ignored, loss.summary))
            }
            LossFunction::Absolute => {
                let target = self.high(target);
                let x = self.high(x);
                let difference = self.apply("aten.sub.Tensor", &[&x, &target])?;
                let magnitude = self.apply("aten.abs.default", &[&difference])?;
                drop(difference);
                let loss = self.summarized(&magnitude, loss.summary);
                Ok(loss)
            }
            LossFunction::Ctc {
                blank,
                zero_infinity,
                lengths,
            } => {
                let of = Ctc {
                    blank,
                    zero_infinity,
                    lengths,
                };
                self.ctc_loss(operands, of, loss.summary)
            }
            LossFunction::MultiMargin { .. } | LossFunction::MultilabelMargin => {
                self.margin_loss(loss, operands)
            }
            LossFunction::Paired(paired) => self.paired_loss(paired, loss.summary, operands),
        }
    }

    /// The uniform part of smoothed labels, added to the loss of the labels.
    fn smoothed(
        &mut self,
        (scores, target, weight): (&Tensor, &Tensor, Option<&Tensor>),
        plain: &Tensor,
        (smoothing, ignored_label): (f64, i64),
        summary: Summary,
    ) -> Output {
        let weighted = weight
            .map(|weight| self.by_class(scores, weight))
            .transpose()?;
        let sums = weighted.as_ref().unwrap_or(scores);
        let sums = self.reduction(Reduction::Sum, sums, &[1], false);
        let negative = self.apply("aten.neg.default", &[&sums])?;
        drop((sums, weighted));
        let label = ignored_label as f64;
        let ignored = self.with_number("aten.eq.Scalar", target, "other", label)?;
        let fill = Elementwise::of("aten.masked_fill_.Scalar").with("value", Constant::Real(0.0));
        let uniform = self.elementwise(&fill, &[negative, Tensor::clone(&ignored)])?;
        let uniform = match summary {
            Summary::None => uniform,
            Summary::Sum => self.summarized(&uniform, summary),
            Summary::Mean if weight.is_some() => {
                let total = self.summarized(&uniform, Summary::Sum);
                // The weights of the labels that count, and their sum.
                let labels = self.empty(&target.shape, target.dtype);
                let weights = Tensor::new(self.empty(&target.shape, scores.dtype));
                if let Some(weight) = weight {
                    let kernel = kernel::label_weights(ignored_label, scores.shape[1]);
                    self.launch(kernel, &[target, weight], &[&weights]);
                }
                let count = self.summarized(&weights, Summary::Sum);
                drop((weights, labels));
                self.apply("aten.div.Tensor", &[&total, &count])?
            }
            Summary::Mean => {
                let counted = self.apply("aten.logical_not.default", &[&ignored])?;
                let count = self.summarized(&counted, Summary::Sum);
                let total = self.summarized(&uniform, Summary::Sum);
                self.apply("aten.div.Tensor", &[&total, &count])?
            }
        };
        drop(ignored);
        let kept = self.mul_scalar(plain, 1.0 - smoothing);
        let share = self.mul_scalar(&uniform, smoothing / classes(scores));
        Ok(self.add(&kept, &share))
    }

    fn soft_cross_entropy(
        &mut self,
        (x, target, weight): (&Tensor, &Tensor, Option<&Tensor>),
        smoothing: f64,
        summary: Summary,
    ) -> Output {
        let scores = self.log_softmax(x)?;
        let target = if smoothing > 0.0 {
            let scaled = self.mul_scalar(target, 1.0 - smoothing);
            self.add_scalar(&scaled, smoothing / classes(x), Placement::New)
        } else {
            Tensor::clone(target)
        };
        let plain = self.mul(&scores, &target)?;
        drop(target);
        let product = match weight {
            Some(weight) => self.by_class(&plain, weight)?,
            None => Tensor::clone(&plain),
        };
        let dims: Vec<usize> = match summary {
            Summary::None => vec![1],
            Summary::Mean | Summary::Sum => (0..x.shape.len()).collect(),
        };
        let sum = self.reduction(Reduction::Sum, &product, &dims, false);
        let negative = self.apply("aten.neg.default", &[&sum])?;
        let loss = match summary {
            Summary::Mean => {
                let examples: Vec<Extent> = [&x.shape[..1], &x.shape[2..]].concat();
                self.divided(&negative, numel(&examples))
            }
            Summary::None | Summary::Sum => Tensor::clone(&negative),
        };
        Ok(loss)
    }

    /// A number by a length.
    fn divided(&mut self, x: &Tensor, by: Extent) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let y = self.empty(&x.shape, x.dtype);
        self.launch(kernel::quotient(by), &[x], &[&y]);
        draft.finish_one(self, y, move |eager, gradient, _| {
            let grad_x = eager.empty(&gradient.shape, gradient.dtype);
            eager.computed(grad_x, kernel::quotient(by), &[gradient])
        })
    }

    /// Scores times the weights of their classes, seen under their shape.
    fn by_class(&mut self, scores: &Tensor, weight: &Tensor) -> Output {
        let mut seen = vec![Extent::ONE; scores.shape.len()];
        seen[1] = weight.numel();
        let weight = self.reshape(weight, &seen);
        self.mul(scores, &weight)
    }

    /// The mean or the sum of all elements.
    pub(in crate::ops) fn summarized(&mut self, x: &Tensor, summary: Summary) -> Tensor {
        let dims: Vec<usize> = (0..x.shape.len()).collect();
        match summary {
            Summary::None => Tensor::clone(x),
            Summary::Mean => self.reduction(Reduction::Mean, x, &dims, false),
            Summary::Sum => self.reduction(Reduction::Sum, x, &dims, false),
        }
    }

    /// `log_softmax` in the type of the predictions, which may lie in any order.
    fn log_softmax(&mut self, x: &Tensor) -> Output {
        self.softmax(x, (1, true), Some(x.dtype))
    }

    fn nll_loss(
        &mut self,
        log_probabilities: &Tensor,
        target: &Tensor,
        weight: Option<&Tensor>,
        (ignored, summary): (i64, Summary),
    ) -> Output {
        let mut draft = OpRecord::new(self, &[Some(log_probabilities)]);
        draft.save(self, "self", log_probabilities)?;
        draft.save(self, "target", target)?;
        draft.save(self, "weight", weight)?;
        let dtype = log_probabilities.dtype;
        // The 2-D variant, for images and sequences, makes its weight before its loss.
        let each: &[Extent] = match summary {
            Summary::None => &target.shape,
            Summary::Mean | Summary::Sum => &[],
        };
        let (loss, total_weight) = if log_probabilities.shape.len() > 2 {
            let total_weight = self.empty(&[], dtype);
            (self.empty(each, dtype), total_weight)
        } else {
            let loss = self.empty(each, dtype);
            (loss, self.empty(&[], dtype))
        };
        let total_weight = Tensor::new(total_weight);
        let rank = log_probabilities.shape.len();
        let likelihood = Likelihood {
            weighted: weight.is_some(),
            ignored,
            classes: log_probabilities.shape[1],
            summary,
        };
        // What the tuned kernels compute.
        let is_plain =
            summary == Summary::Mean && weight.is_none() && ignored == Loss::IGNORED_BY_DEFAULT;
        let weight = weight.map(|weight| &**weight);
        match summary {
            Summary::Mean if is_plain => {
                let inputs = [&**log_probabilities, &**target];
                self.launch(Kernel::NllLoss, &inputs, &[&loss, &total_weight]);
            }
            Summary::Mean | Summary::Sum => {
                let without = |list: &[Extent]| [&list[..1], &list[2..]].concat();
                let (shape, strides) = (&log_probabilities.shape, &log_probabilities.strides);
                let scores = log_probabilities.alias(without(shape), without(strides));
                let of_class = weight.map(|weight| weight.alias(Vec::new(), Vec::new()));
                let step = weight.map_or(Extent::ONE, |weight| weight.strides[0]);
                let mut inputs = vec![&**target, &scores];
                inputs.extend(&of_class);
                let kernel = likelihood.reduced(rank, [strides[1], step]);
                self.launch(kernel, &inputs, &[&loss, &total_weight]);
            }
            Summary::None => {
                let mut inputs = vec![&**target, &**log_probabilities];
                inputs.extend(weight);
                self.launch(likelihood.each(rank), &inputs, &[&loss]);
            }
        }
        draft.save(self, "total_weight", &total_weight)?;
        drop(total_weight);
        let shape = log_probabilities.shape.clone();
        Ok(
            draft.finish_single(self, loss, move |eager, gradient, saved| {
                let grad_x = eager.empty(&shape, gradient.dtype);
                let mut inputs = vec![&**gradient, &**saved.get("target")];
                if summary == Summary::Mean {
                    inputs.push(saved.get("total_weight"));
                }
                inputs.extend(saved.find("weight").map(|weight| &**weight));
                let kernel = if is_plain {
                    Kernel::NllLossGrad
                } else {
                    likelihood.gradient(rank).into()
                };
                vec![Some(eager.computed(grad_x, kernel, &inputs))]
            }),
        )
    }
}

/// How many classes there are.
fn classes(scores: &Tensor) -> f64 {
    scores.shape[1].at(1) as f64
}
