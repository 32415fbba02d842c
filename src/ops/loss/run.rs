//! `cross_entropy` and the other losses.

use crate::eager::{Draft, Eager, Stop, Tensor, TensorBody};
use crate::aten::Constant;
use crate::ops::{Elementwise, Loss, LossFunction, Reduction, Summary};
use crate::program::{Kernel, Placement};
use crate::shape::{Extent, strides_like};

impl Eager {

    /// Any other loss of predictions and targets.
    pub(crate) fn loss(&mut self, loss: Loss, x: &Tensor, target: &Tensor) -> Result<Tensor, Stop> {
        match loss.function {
            LossFunction::CrossEntropy { smoothed } => {
                let scores = self.log_softmax(x)?;
                let high = self.high(&scores);
                let plain = self.nll_loss(&high, target, loss.summary)?;
                if smoothed {
                    self.smoothed(&scores, target, &plain, loss.summary)
                } else {
                    Ok(plain)
                }
            }
            LossFunction::SoftCrossEntropy { smoothed } => {
                self.soft_cross_entropy(x, target, smoothed, loss.summary)
            }
            LossFunction::NegativeLogLikelihood => {
                let x = self.high(x);
                self.nll_loss(&x, target, loss.summary)
            }
            LossFunction::Absolute => {
                let target = self.high(target);
                let x = self.high(x);
                let difference = self.apply("aten.sub.Tensor", &[&x, &target])?;
                let magnitude = self.apply("aten.abs.default", &[&difference])?;
                drop(difference);
                Ok(self.summarized(&magnitude, loss.summary))
            }
            function => self.paired_loss(function, x, target, loss.summary),
        }
    }

    /// The uniform part of smoothed labels, added to the loss of the labels.
    fn smoothed(
        &mut self,
        scores: &Tensor,
        target: &Tensor,
        plain: &Tensor,
        summary: Summary,
    ) -> Result<Tensor, Stop> {
        let sums = self.reduction(Reduction::Sum, scores, &[1], false);
        let negative = self.apply("aten.neg.default", &[&sums])?;
        drop(sums);
        let ignored = self.with_number("aten.eq.Scalar", target, "other", 0.0)?;
        let fill = Elementwise::of("aten.masked_fill_.Scalar").with("value", Constant::Real(0.0));
        let uniform = self.elementwise(&fill, &[negative, Tensor::clone(&ignored)])?;
        let uniform = match summary {
            Summary::None => uniform,
            Summary::Sum => self.summarized(&uniform, summary),
            Summary::Mean => {
                let counted = self.apply("aten.logical_not.default", &[&ignored])?;
                let count = self.summarized(&counted, Summary::Sum);
                let total = self.summarized(&uniform, Summary::Sum);
                self.apply("aten.div.Tensor", &[&total, &count])?
            }
        };
        drop(ignored);
        let kept = self.mul_scalar(plain, 1.0);
        let share = self.mul_scalar(&uniform, 1.0);
        Ok(self.add(&kept, &share))
    }

    fn soft_cross_entropy(
        &mut self,
        x: &Tensor,
        target: &Tensor,
        smoothed: bool,
        summary: Summary,
    ) -> Result<Tensor, Stop> {
        let scores = self.log_softmax(x)?;
        let target = if smoothed {
            let scaled = self.mul_scalar(target, 1.0);
            self.add_scalar(&scaled, 0.0, Placement::New)
        } else {
            Tensor::clone(target)
        };
        let product = self.mul(&scores, &target)?;
        drop(target);
        let dims: Vec<usize> = match summary {
            Summary::None => vec![1],
            Summary::Mean | Summary::Sum => (0..x.shape.len()).collect(),
        };
        let sum = self.reduction(Reduction::Sum, &product, &dims, false);
        let negative = self.apply("aten.neg.default", &[&sum])?;
        drop(sum);
        Ok(match summary {
            Summary::Mean => self.mul_scalar(&negative, 1.0),
            Summary::None | Summary::Sum => negative,
        })
    }

    /// A loss of pairs of elements. The result of some starts as large as the operands and only shows one
    /// number in the end; its memory stays as it was.
    fn paired_loss(
        &mut self,
        function: LossFunction,
        x: &Tensor,
        target: &Tensor,
        summary: Summary,
    ) -> Result<Tensor, Stop> {
        let target = self.high(target);
        let x = self.high(x);
        let mut draft = Draft::new(self, &[Some(&x), Some(&target)]);
        draft.save(self, "self", &x)?;
        draft.save(self, "target", &target)?;
        let dtype = x.dtype.promote(target.dtype);
        let strides = strides_like(&x.shape, &x.strides);
        let whole = |eager: &mut Eager| eager.empty_strided(&x.shape, strides.clone(), dtype);
        let number = |whole: &TensorBody| whole.alias(Vec::new(), Vec::new());
        let y = match (function, summary) {
            (_, Summary::None) => whole(self),
            (LossFunction::Squared | LossFunction::SmoothAbsolute, _) => {
                let result = whole(self);
                drop(whole(self));
                number(&result)
            }
            (LossFunction::BinaryCrossEntropy, _) => {
                let result = whole(self);
                drop(self.empty(&[], dtype));
                number(&result)
            }
            (LossFunction::BinaryCrossEntropyOfLogits, _) => {
                let first = whole(self);
                let second = whole(self);
                let result = self.empty(&[], dtype);
                drop((second, first));
                result
            }
            _ => {
                let each = whole(self);
                let result = self.empty(&[], dtype);
                drop(each);
                result
            }
        };
        self.launch(Kernel::MemoryOnly(function.name()), &[&x, &target], &[&y]);
        let wants = [x.requires_grad(), target.requires_grad()];
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None];
            };
            let name = function.name();
            let grad = |eager: &mut Eager, of: &str| {
                let like = saved.get(of);
                let strides = strides_like(&like.shape, &like.strides);
                let result = eager.empty_strided(&like.shape, strides, gradient.dtype);
                eager.launch(Kernel::MemoryOnly(name), &[gradient], &[&result]);
                Tensor::new(result)
            };
            let of_target = wants[1].then(|| grad(eager, "target"));
            vec![wants[0].then(|| grad(eager, "self")), of_target]
        });
        Ok(y)
    }

    /// The mean or the sum of all elements.
    fn summarized(&mut self, x: &Tensor, summary: Summary) -> Tensor {
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
        summary: Summary,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(log_probabilities)]);
        draft.save(self, "self", log_probabilities)?;
        draft.save(self, "target", target)?;
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
            Summary::Mean => [Kernel::NllLoss, Kernel::NllLossGrad],
            Summary::None | Summary::Sum => {
                let name = "nll_loss that is no mean";
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
