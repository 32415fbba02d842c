//! `ctc_loss`, as PyTorch's own kernels run it (`LossCTC.cu`).

use super::Summary;
use crate::eager::{Draft, Eager, Stop, Tensor};
use crate::ops::Reduction;
use crate::program::Kernel;
use crate::shape::{DType, Extent};

const NAME: Kernel = Kernel::MemoryOnly("ctc_loss");

impl Eager {
    /// The loss of labels of up to the length that `targets` has room for: how long the longest really is, which the
    /// table of partial sums depends on, is known only with data.
    pub(super) fn ctc_loss(
        &mut self,
        log_probabilities: &Tensor,
        targets: &Tensor,
        zero_infinity: bool,
        summary: Summary,
    ) -> Result<Tensor, Stop> {
        let x = log_probabilities;
        let (time, batch) = match x.shape[..] {
            [time, batch, _] => (time, batch),
            _ => (x.shape[0], Extent::ONE),
        };
        let labels = match targets.shape[..] {
            [_, labels] => labels,
            _ => targets
                .numel()
                .checked_div(batch)
                .unwrap_or(targets.numel()),
        };
        // A blank before, between and behind labels.
        let states = labels + labels + Extent::ONE;
        let mut draft = Draft::new(self, &[Some(x)]);
        draft.save(self, "log_probs", x)?;
        draft.save(self, "targets", targets)?;
        let lengths = [0; 3].map(|_| self.empty(&[batch], DType::Int64));
        let forward = Tensor::new(self.empty(&[batch, time, states], x.dtype));
        let losses = self.empty(&[batch], x.dtype);
        self.launch(NAME, &[x, targets], &[&losses]);
        let [offsets, inputs, labelled] = lengths;
        drop(inputs);
        drop(offsets);
        drop(labelled);
        let kept = Tensor::new(losses.alias(losses.shape.clone(), losses.strides.clone()));
        draft.save(self, "result0", &kept)?;
        draft.save(self, "result1", &forward)?;
        drop((kept, forward));
        let [losses] = draft.finish(self, [losses], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let x = saved.get("log_probs");
            let [offsets, inputs, labelled] = [0; 3].map(|_| eager.empty(&[batch], DType::Int64));
            let backward = eager.empty(&[batch, time, states], x.dtype);
            let grad_x = eager.empty(&x.shape, x.dtype);
            eager.launch(NAME, &[gradient, x], &[&grad_x]);
            drop(backward);
            drop(inputs);
            drop(offsets);
            drop(labelled);
            vec![Some(Tensor::new(grad_x))]
        });
        let losses = if zero_infinity {
            let zero = Tensor::new(self.empty(&[], x.dtype));
            let infinite = self.with_number("aten.eq.Scalar", &losses, "other", f64::INFINITY)?;
            let finite = self.apply("aten.where.self", &[&infinite, &zero, &losses])?;
            drop(infinite);
            drop(zero);
            finite
        } else {
            losses
        };
        Ok(match summary {
            Summary::None => losses,
            Summary::Sum => self.reduction(Reduction::Sum, &losses, &[0], false),
            Summary::Mean => {
                let lengths = Tensor::new(self.empty(&[batch], x.dtype));
                let least = self.with_number("aten.clamp_min.default", &lengths, "min", 1.0)?;
                drop(lengths);
                let shares = self.apply("aten.div.Tensor", &[&losses, &least])?;
                let mean = self.reduction(Reduction::Mean, &shares, &[0], false);
                drop(shares);
                drop(least);
                mean
            }
        })
    }
}
