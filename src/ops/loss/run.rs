//! `cross_entropy` and the other losses.

use crate::aten::Constant;
use crate::eager::{Draft, Eager, Stop, Tensor};
use crate::ops::{Elementwise, Loss, LossFunction, Reduction, Summary};
use crate::program::{Kernel, Placement};
use crate::shape::Extent;

impl Eager {
    /// A loss of predictions, targets and weights.
    pub(crate) fn loss(&mut self, loss: Loss, operands: &[Tensor]) -> Result<Tensor, Stop> {
        let (x, target) = (&operands[0], &operands[1]);
        let weight = operands.get(2);
        match loss.function {
            LossFunction::CrossEntropy { smoothing, .. } => {
                let scores = self.log_softmax(x)?;
                let high_weight = weight.map(|weight| self.high(weight));
                let high = self.high(&scores);
                let plain = self.nll_loss(&high, target, high_weight.as_ref(), loss.summary)?;
                drop(high_weight);
                if smoothing > 0.0 {
                    self.smoothed((&scores, target, weight), &plain, smoothing, loss.summary)
                } else {
                    Ok(plain)
                }
            }
            LossFunction::SoftCrossEntropy { smoothing } => {
                self.soft_cross_entropy((x, target, weight), smoothing, loss.summary)
            }
            LossFunction::NegativeLogLikelihood { .. } => {
                let weight = weight.map(|weight| self.high(weight));
                let x = self.high(x);
                self.nll_loss(&x, target, weight.as_ref(), loss.summary)
            }
            LossFunction::Absolute => {
                let target = self.high(target);
                let x = self.high(x);
                let difference = self.apply("aten.sub.Tensor", &[&x, &target])?;
                let magnitude = self.apply("aten.abs.default", &[&difference])?;
                drop(difference);
                let loss = self.summarized(&magnitude, loss.summary);
                drop((magnitude, x, target));
                Ok(loss)
            }
            LossFunction::Ctc { zero_infinity, .. } => {
                self.ctc_loss(x, target, zero_infinity, loss.summary)
            }
            LossFunction::MultiMargin { .. } | LossFunction::MultilabelMargin => {
                self.margin_loss(loss, operands)
            }
            LossFunction::Squared
            | LossFunction::SmoothAbsolute { .. }
            | LossFunction::Huber { .. }
            | LossFunction::BinaryCrossEntropy
            | LossFunction::BinaryCrossEntropyOfLogits { .. }
            | LossFunction::SoftMargin => self.paired_loss(loss, operands),
        }
    }

    /// The uniform part of smoothed labels, added to the loss of the labels.
    fn smoothed(
        &mut self,
        (scores, target, weight): (&Tensor, &Tensor, Option<&Tensor>),
        plain: &Tensor,
        smoothing: f64,
        summary: Summary,
    ) -> Result<Tensor, Stop> {
        let weighted = weight
            .map(|weight| self.by_class(scores, weight))
            .transpose()?;
        let sums = weighted.as_ref().unwrap_or(scores);
        let sums = self.reduction(Reduction::Sum, sums, &[1], false);
        let negative = self.apply("aten.neg.default", &[&sums])?;
        drop(sums);
        drop(weighted);
        let ignored = self.with_number("aten.eq.Scalar", target, "other", 0.0)?;
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
        let share = self.mul_scalar(&uniform, smoothing);
        Ok(self.add(&kept, &share))
    }

    fn soft_cross_entropy(
        &mut self,
        (x, target, weight): (&Tensor, &Tensor, Option<&Tensor>),
        smoothing: f64,
        summary: Summary,
    ) -> Result<Tensor, Stop> {
        let scores = self.log_softmax(x)?;
        let target = if smoothing > 0.0 {
            let scaled = self.mul_scalar(target, 1.0 - smoothing);
            self.add_scalar(&scaled, smoothing, Placement::New)
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
            Summary::Mean => self.mul_scalar(&negative, 1.0),
            Summary::None | Summary::Sum => Tensor::clone(&negative),
        };
        drop(negative);
        drop(sum);
        drop(product);
        drop(plain);
        Ok(loss)
    }

    /// Scores times the weights of their classes, seen under their shape.
    fn by_class(&mut self, scores: &Tensor, weight: &Tensor) -> Result<Tensor, Stop> {
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
    fn log_softmax(&mut self, x: &Tensor) -> Result<Tensor, Stop> {
        self.softmax(x, (1, true), Some(x.dtype))
    }

    fn nll_loss(
        &mut self,
        log_probabilities: &Tensor,
        target: &Tensor,
        weight: Option<&Tensor>,
        summary: Summary,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(log_probabilities)]);
        draft.save(self, "self", log_probabilities)?;
        draft.save(self, "target", target)?;
        if let Some(weight) = weight {
            draft.save(self, "weight", weight)?;
        }
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
        let kernels = match summary {
            Summary::Mean if weight.is_none() => [Kernel::NllLoss, Kernel::NllLossGrad],
            Summary::None | Summary::Mean | Summary::Sum => {
                let name = "nll_loss that is no plain mean";
                [Kernel::MemoryOnly(name), Kernel::MemoryOnly(name)]
            }
        };
        let total_weight = Tensor::new(total_weight);
        let inputs = [&**log_probabilities, &**target];
        self.launch(kernels[0].clone(), &inputs, &[&loss, &total_weight]);
        draft.save(self, "total_weight", &total_weight)?;
        drop(total_weight);
        let shape = log_probabilities.shape.clone();
        let [loss] = draft.finish(self, [loss], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let grad_x = eager.empty(&shape, gradient.dtype);
            let inputs = [&**gradient, saved.get("target"), saved.get("total_weight")];
            eager.launch(kernels[1].clone(), &inputs, &[&grad_x]);
            vec![Some(Tensor::new(grad_x))]
        });
        Ok(loss)
    }
}
