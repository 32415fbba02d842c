//! `softmax` and `log_softmax`.

use super::super::autograd::Draft;
use super::super::eager::{Eager, Stop};
use super::super::tensor::{Tensor, TensorBody};
use crate::graph::DType;
use crate::program::Kernel;

impl Eager {
    /// `softmax(x, dim, dtype)`, or its logarithm. Autocast asks for float32 where no type is written;
    /// the conversion is an operation of its own, whose result nothing saves.
    pub(in super::super) fn softmax(
        &mut self,
        x: &Tensor,
        (dim, log): (usize, bool),
        dtype: Option<DType>,
    ) -> Result<Tensor, Stop> {
        let x = match dtype {
            Some(dtype) => self.cast(x, dtype),
            None => self.high(x),
        };
        let mut draft = Draft::new(self, &[Some(&x)]);
        let y = self.empty(&x.shape, x.dtype);
        let dense = self.dense_copy(&x);
        self.launch(Kernel::Softmax { dim, log }, &[&dense], &[&y]);
        drop(dense);
        let kept = Tensor::new(y.alias(y.shape.clone(), y.strides.clone()));
        draft.save(self, "result", &kept)?;
        drop(kept);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            // The plain one multiplies gradient and result first.
            let product: Option<TensorBody> =
                (!log).then(|| eager.empty(&gradient.shape, gradient.dtype));
            let grad_x = eager.empty(&gradient.shape, gradient.dtype);
            let dense = log.then(|| eager.dense_copy(gradient));
            eager.launch(
                Kernel::SoftmaxGrad { dim, log },
                &[dense.as_ref().unwrap_or(gradient), saved.get("result")],
                &[&grad_x],
            );
            drop(dense);
            drop(product);
            vec![Some(Tensor::new(grad_x))]
        });
        Ok(y)
    }
}
