//! Losses of pairs of elements, and of margins between classes.

use super::{Loss, LossFunction, Summary};
use crate::eager::{Draft, Eager, Saved, Stop, Tensor, TensorBody};
use crate::program::Kernel;

impl Eager {
    /// A loss of pairs of elements. The result of some starts as large as the operands and only shows one
    /// number in the end; its memory stays as it was (`Loss.cpp`, `TensorIterator`s whose output is resized).
    pub(super) fn paired_loss(&mut self, loss: Loss, operands: &[Tensor]) -> Result<Tensor, Stop> {
        // Autocast makes all of them float32.
        let mut operands = operands.to_vec();
        for operand in operands.iter_mut().rev() {
            *operand = self.high(operand);
        }
        let (x, target) = (&operands[0], &operands[1]);
        let (weight, positive) =
            if let LossFunction::BinaryCrossEntropyOfLogits { weight, positive } = loss.function {
                let weights = &operands[2..];
                (
                    weight.then(|| &weights[0]),
                    weights.last().filter(|_| positive),
                )
            } else {
                (operands.get(2), None)
            };
        let mut draft = Draft::new(self, &[Some(x), Some(target)]);
        for (name, saved) in [
            ("pos_weight", positive),
            ("self", Some(x)),
            ("target", Some(target)),
            ("weight", weight),
        ] {
            if let Some(saved) = saved {
                draft.save(self, name, saved)?;
            }
        }
        let y = self.paired_result(loss, (x, target), positive);
        let inputs: Vec<&TensorBody> = operands.iter().map(|operand| &**operand).collect();
        let kernel = Kernel::MemoryOnly(loss.function.name());
        self.launch(kernel, &inputs, &[&y]);
        let wants = [x.requires_grad(), target.requires_grad()];
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None];
            };
            let of_self = wants[0].then(|| eager.paired_gradient(loss.function, gradient, saved));
            let of_target = wants[1].then(|| {
                let like = saved.get("target");
                let takes_more = matches!(
                    loss.function,
                    LossFunction::BinaryCrossEntropyOfLogits { .. }
                );
                let temporary = takes_more.then(|| eager.empty_like(like, gradient.dtype));
                let result = eager.empty_like(like, gradient.dtype);
                let kernel = Kernel::MemoryOnly(loss.function.name());
                eager.launch(kernel, &[gradient], &[&result]);
                drop(temporary);
                Tensor::new(result)
            });
            vec![of_self, of_target]
        });
        Ok(y)
    }

    fn paired_result(
        &mut self,
        loss: Loss,
        (x, target): (&Tensor, &Tensor),
        positive: Option<&Tensor>,
    ) -> TensorBody {
        let dtype = x.dtype.promote(target.dtype);
        let number = |whole: &TensorBody| whole.alias(Vec::new(), Vec::new());
        match (loss.function, loss.summary) {
            (LossFunction::BinaryCrossEntropyOfLogits { .. }, summary) => {
                let likelihood = self.empty_like(x, dtype);
                if let Some(positive) = positive {
                    // `(pos_weight - 1).mul(target).add_(1)`.
                    let lowered = self.empty_like(positive, dtype);
                    let weight = self.broadcast_like(&[&lowered, target], dtype);
                    drop(lowered);
                    drop(weight);
                }
                let each = self.empty_like(x, dtype);
                let result = match summary {
                    Summary::None => each,
                    Summary::Mean | Summary::Sum => self.total(&Tensor::new(each)),
                };
                drop(likelihood);
                result
            }
            (_, Summary::None) => self.empty_like(x, dtype),
            (LossFunction::Squared | LossFunction::SmoothAbsolute { .. }, _) => {
                let result = self.empty_like(x, dtype);
                let each = Tensor::new(self.empty_like(x, dtype));
                let shown = number(&result);
                self.total_into(&each, &shown);
                drop(each);
                shown
            }
            (LossFunction::BinaryCrossEntropy | LossFunction::SoftMargin, _) => {
                let result = Tensor::new(self.empty_like(x, dtype));
                drop(self.total(&result));
                number(&result)
            }
            (
                LossFunction::Huber { .. }
                | LossFunction::CrossEntropy { .. }
                | LossFunction::SoftCrossEntropy { .. }
                | LossFunction::NegativeLogLikelihood { .. }
                | LossFunction::Absolute
                | LossFunction::MultiMargin { .. }
                | LossFunction::MultilabelMargin
                | LossFunction::Ctc { .. },
                _,
            ) => {
                let each = Tensor::new(self.empty_like(x, dtype));
                self.total(&each)
            }
        }
    }

    fn paired_gradient(
        &mut self,
        function: LossFunction,
        gradient: &Tensor,
        saved: &Saved,
    ) -> Tensor {
        let x = saved.get("self");
        let like = |eager: &mut Eager| eager.empty_like(x, gradient.dtype);
        // `pos_weight * target`, and the sigmoid once the result is there.
        let is_weighted = matches!(
            function,
            LossFunction::BinaryCrossEntropyOfLogits { positive: true, .. }
        );
        let before = if function == LossFunction::SoftMargin {
            // `-target * grad`, and `z / (z + 1)` of `z = exp(-target * self)`.
            let [first, second, third] = [0; 3].map(|_| like(self));
            drop(second);
            drop(first);
            Some(third)
        } else {
            is_weighted.then(|| like(self))
        };
        let result = like(self);
        let after = is_weighted.then(|| like(self));
        let kernel = Kernel::MemoryOnly(function.name());
        self.launch(kernel, &[gradient, x], &[&result]);
        drop(after);
        drop(before);
        Tensor::new(result)
    }

    /// `multi_margin_loss` and `multilabel_margin_loss`: a loss for each example, summed without scratch memory
    /// (`MultiMarginLoss.cu`, `MultiLabelMarginCriterion.cu`).
    pub(super) fn margin_loss(&mut self, loss: Loss, operands: &[Tensor]) -> Result<Tensor, Stop> {
        let mut operands = operands.to_vec();
        for operand in operands.iter_mut().rev() {
            *operand = self.high(operand);
        }
        let (x, target) = (&operands[0], &operands[1]);
        let mut draft = Draft::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        draft.save(self, "target", target)?;
        if let Some(weight) = operands.get(2) {
            draft.save(self, "weight", weight)?;
        }
        let examples = &x.shape[..x.shape.len() - 1];
        let kernel = Kernel::MemoryOnly(loss.function.name());
        let labelled = matches!(loss.function, LossFunction::MultilabelMargin);
        let is_target = labelled.then(|| Tensor::new(self.empty(&target.shape, x.dtype)));
        let y = match loss.summary {
            Summary::None => self.empty(examples, x.dtype),
            Summary::Mean | Summary::Sum if labelled => {
                let each = self.empty(examples, x.dtype);
                let y = self.empty(&[], x.dtype);
                drop(each);
                y
            }
            Summary::Mean | Summary::Sum => {
                let y = self.empty(&[], x.dtype);
                drop(self.empty(examples, x.dtype));
                y
            }
        };
        self.launch(kernel.clone(), &[x, target], &[&y]);
        if let Some(is_target) = &is_target {
            draft.save(self, "is_target", is_target)?;
        }
        drop(is_target);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let grad_x = eager.empty_like(saved.get("self"), gradient.dtype);
            eager.launch(kernel, &[gradient, saved.get("self")], &[&grad_x]);
            vec![Some(Tensor::new(grad_x))]
        });
        Ok(y)
    }
}
