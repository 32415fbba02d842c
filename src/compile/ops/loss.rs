//! `cross_entropy`.

use super::super::autograd::Draft;
use super::super::eager::{Eager, Stop};
use super::super::tensor::Tensor;
use crate::program::Kernel;

impl Eager {
    /// `cross_entropy(x, target)`: `log_softmax`, then `nll_loss`.
    ///
    /// On half predictions `log_softmax` runs in half, and autocast casts its result to float32 for
    /// `nll_loss`; both are kept for the backward pass.
    pub(in super::super) fn cross_entropy(
        &mut self,
        x: &Tensor,
        target: &Tensor,
    ) -> Result<Tensor, Stop> {
        let log_probabilities = self.log_softmax(x)?;
        let log_probabilities = self.high(&log_probabilities);
        self.nll_loss(&log_probabilities, target)
    }

    fn log_softmax(&mut self, x: &Tensor) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        let y = self.empty(&x.shape, x.dtype);
        self.launch(Kernel::LogSoftmax, &[x], &[&y]);
        // The saved result shares the result's memory and none of its history.
        let kept = Tensor::new(y.alias(y.shape.clone(), y.strides.clone()));
        draft.save(self, "result", &kept)?;
        drop(kept);
        let [y] = draft.finish(self, [y], |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let grad_x = eager.empty(&gradient.shape, gradient.dtype);
            eager.launch(
                Kernel::LogSoftmaxGrad,
                &[gradient, saved.get("result")],
                &[&grad_x],
            );
            vec![Some(Tensor::new(grad_x))]
        });
        Ok(y)
    }

    fn nll_loss(&mut self, log_probabilities: &Tensor, target: &Tensor) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(log_probabilities)]);
        draft.save(self, "self", log_probabilities)?;
        draft.save(self, "target", target)?;
        let dtype = log_probabilities.dtype;
        // The 2-D variant, for images, makes its weight before its loss.
        let (loss, total_weight) = if log_probabilities.shape.len() == 4 {
            let total_weight = self.empty(&[], dtype);
            (self.empty(&[], dtype), total_weight)
        } else {
            let loss = self.empty(&[], dtype);
            (loss, self.empty(&[], dtype))
        };
        let total_weight = Tensor::new(total_weight);
        let inputs = [&**log_probabilities, &**target];
        self.launch(Kernel::NllLoss, &inputs, &[&loss, &total_weight]);
        draft.save(self, "total_weight", &total_weight)?;
        drop(total_weight);
        let shape = log_probabilities.shape.clone();
        let [loss] = draft.finish(self, [loss], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let grad_x = eager.empty(&shape, gradient.dtype);
            let inputs = [&**gradient, saved.get("target"), saved.get("total_weight")];
            eager.launch(Kernel::NllLossGrad, &inputs, &[&grad_x]);
            vec![Some(Tensor::new(grad_x))]
        });
        Ok(loss)
    }
}
