//! Losses of pairs of elements, and of margins between classes.

use super::pairs::{Memory, Paired};
use super::{Loss, LossFunction, Summary, margin};
use crate::ops::prelude::*;

impl Eager {
    /// A loss of pairs of elements.
    pub(super) fn paired_loss(
        &mut self,
        loss: Paired,
        summary: Summary,
        operands: &[Tensor],
    ) -> Output {
        // Autocast makes all of them float32.
        let operands = self.all_high(operands);
        let (x, target) = (&operands[0], &operands[1]);
        let weight = operands.get(2).filter(|_| loss.weight);
        let positive = operands.last().filter(|_| loss.positive);
        let mut draft = OpRecord::new(self, &[Some(x), Some(target)]);
        draft.save(self, "pos_weight", positive)?;
        draft.save(self, "self", x)?;
        draft.save(self, "target", target)?;
        draft.save(self, "weight", weight)?;
        let mut inputs: Vec<&TensorBody> = vec![x, target];
        inputs.extend(weight.map(|weight| &**weight));
        inputs.extend(positive.map(|positive| &**positive));
        let y = self.paired_result(loss, summary, &inputs);
        let wants = [x.requires_grad(), target.requires_grad()];
        let by = (summary, x.numel());
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let mut inputs: Vec<&TensorBody> =
                vec![gradient, saved.get("self"), saved.get("target")];
            inputs.extend(saved.find("weight").map(|weight| &**weight));
            inputs.extend(saved.find("pos_weight").map(|weight| &**weight));
            let of_self =
                wants[0].then(|| eager.paired_gradient(loss, &inputs, loss.gradient(false, by)));
            let of_target = wants[1].then(|| {
                let like = saved.get("target");
                let takes_more = loss.pairs.memory == Memory::Likelihoods;
                let _temporary = takes_more.then(|| eager.empty_like(like, gradient.dtype));
                let result = eager.empty_like(like, gradient.dtype);
                eager.computed(result, loss.gradient(true, by), &inputs)
            });
            vec![of_self, of_target]
        }))
    }

    /// The losses of all pairs of `inputs` (predictions, targets, weights), as one number where they become one.
    fn paired_result(
        &mut self,
        loss: Paired,
        summary: Summary,
        inputs: &[&TensorBody],
    ) -> TensorBody {
        let (x, target) = (inputs[0], inputs[1]);
        let dtype = x.dtype.promote(target.dtype);
        let number = |whole: &TensorBody| whole.alias(Vec::new(), Vec::new());
        let is_mean = summary == Summary::Mean;
        let fill = |eager: &mut Eager, each: &TensorBody| {
            eager.launch(loss.loss(), inputs, &[each]);
        };
        match (loss.pairs.memory, summary) {
            (Memory::Likelihoods, summary) => {
                let _likelihood = self.empty_like(x, dtype);
                if let Some(positive) = inputs.last().filter(|_| loss.positive) {
                    // `(pos_weight - 1).mul(target).add_(1)`.
                    let lowered = self.empty_like(positive, dtype);
                    let weight = self.broadcast_like(&[&lowered, target], dtype);
                    drop((lowered, weight));
                }
                let each = self.empty_like(x, dtype);
                fill(self, &each);
                match summary {
                    Summary::None => each,
                    Summary::Mean | Summary::Sum => self.total(&Tensor::new(each), is_mean),
                }
            }
            (_, Summary::None) => {
                let each = self.empty_like(x, dtype);
                fill(self, &each);
                each
            }
            (Memory::ShownNumber, _) => {
                let result = self.empty_like(x, dtype);
                let each = Tensor::new(self.empty_like(x, dtype));
                fill(self, &each);
                let shown = number(&result);
                self.total_into(&each, &shown, is_mean);
                shown
            }
            (Memory::OwnNumber | Memory::Statements, _) => {
                let result = Tensor::new(self.empty_like(x, dtype));
                fill(self, &result);
                let total = self.total(&result, is_mean);
                let shown = number(&result);
                self.launch(Kernel::Copy, &[&total], &[&shown]);
                shown
            }
            (Memory::Plain, _) => {
                let each = Tensor::new(self.empty_like(x, dtype));
                fill(self, &each);
                self.total(&each, is_mean)
            }
        }
    }

    fn paired_gradient(
        &mut self,
        loss: Paired,
        inputs: &[&TensorBody],
        kernel: Generated,
    ) -> Tensor {
        let (gradient, x) = (inputs[0], inputs[1]);
        let like = |eager: &mut Eager| eager.empty_like(x, gradient.dtype);
        // `pos_weight * target`, and the sigmoid once the result is there.
        let is_weighted = loss.positive;
        let _before = if loss.pairs.memory == Memory::Statements {
            // `-target * grad`, and `z / (z + 1)` of `z = exp(-target * self)`.
            let [_first, _second, third] = [0; 3].map(|_| like(self));
            Some(third)
        } else {
            is_weighted.then(|| like(self))
        };
        let result = like(self);
        let _after = is_weighted.then(|| like(self));
        self.computed(result, kernel, inputs)
    }

    /// `multi_margin_loss` and `multilabel_margin_loss`: a loss for each example, summed without scratch memory
    /// (`MultiMarginLoss.cu`, `MultiLabelMarginCriterion.cu`).
    pub(super) fn margin_loss(&mut self, loss: Loss, operands: &[Tensor]) -> Output {
        let operands = self.all_high(operands);
        let (x, target) = (&operands[0], &operands[1]);
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        draft.save(self, "target", target)?;
        draft.save(self, "weight", operands.get(2))?;
        let examples = &x.shape[..x.shape.len() - 1];
        let by = (loss.function, loss.summary);
        let labelled = matches!(loss.function, LossFunction::MultilabelMargin);
        let is_target = labelled.then(|| Tensor::new(self.empty(&target.shape, x.dtype)));
        let mut inputs: Vec<&TensorBody> = vec![x, target];
        inputs.extend(operands.get(2).map(|weight| &**weight));
        let losses = |eager: &mut Eager, each: &TensorBody| {
            let mut outputs = vec![each];
            outputs.extend(is_target.as_deref());
            let kernel = margin::losses(loss.function, examples.len(), inputs.len() > 2);
            eager.launch(kernel, &inputs, &outputs);
        };
        let is_mean = loss.summary == Summary::Mean;
        let y = match loss.summary {
            Summary::None => {
                let y = self.empty(examples, x.dtype);
                losses(self, &y);
                y
            }
            Summary::Mean | Summary::Sum if labelled => {
                let each = self.empty(examples, x.dtype);
                losses(self, &each);
                let y = self.empty(&[], x.dtype);
                self.launch(margin::total(examples.len(), is_mean), &[&each], &[&y]);
                y
            }
            Summary::Mean | Summary::Sum => {
                let y = self.empty(&[], x.dtype);
                let each = self.empty(examples, x.dtype);
                losses(self, &each);
                self.launch(margin::total(examples.len(), is_mean), &[&each], &[&y]);
                y
            }
        };
        draft.save(self, "is_target", is_target.as_ref())?;
        drop(is_target);
        let count = numel(examples);
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let x = saved.get("self");
            let grad_x = eager.empty_like(x, gradient.dtype);
            let mut inputs: Vec<&TensorBody> = vec![gradient, x, saved.get("target")];
            inputs.extend(saved.find("weight").map(|weight| &**weight));
            inputs.extend(saved.find("is_target").map(|is_target| &**is_target));
            let kernel = margin::gradient(by, x.shape.len() - 1, inputs.len() > 3, count);
            vec![Some(eager.computed(grad_x, kernel, &inputs))]
        }))
    }
}
