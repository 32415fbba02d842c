//! `softmax` and `log_softmax`.

use crate::ops::prelude::*;

impl Eager {
    /// `softmax(x, dim, dtype)`, or its logarithm. Autocast asks for float32 where no type is written; the
    /// conversion of anything but float16 is an operation of its own, whose result nothing saves.
    pub fn softmax(
        &mut self,
        x: &Tensor,
        (dim, log): (usize, bool),
        dtype: Option<DType>,
    ) -> Output {
        let wanted = dtype.or(self.autocast.map(|_| DType::Float32));
        let wanted = wanted.filter(|_| x.dtype.is_float()).unwrap_or(x.dtype);
        // A kernel of its own reads float16 and writes float32.
        let is_read_as_it_is = x.dtype == DType::Float16 && wanted == DType::Float32;
        let x = if is_read_as_it_is {
            Tensor::clone(x)
        } else {
            self.cast(x, wanted)
        };
        let own = x.dtype;
        let mut draft = OpRecord::new(self, &[Some(&x)]);
        let y = self.empty(&x.shape, wanted);
        let dense = self.dense_copy(&x);
        self.launch(Kernel::Softmax { dim, log }, &[&dense], &[&y]);
        drop(dense);
        draft.save(self, "result", &y.detached())?;
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let grad_x = eager.empty(&gradient.shape, own);
            // The plain one multiplies gradient and result first, in the gradient's order of dimensions;
            // whichever is read must be contiguous.
            let product = (!log).then(|| eager.empty_like(gradient, gradient.dtype));
            let is_copied = match &product {
                Some(product) => !product.is_contiguous(),
                None => !gradient.is_contiguous(),
            };
            let dense = is_copied.then(|| eager.dense_copy(gradient));
            eager.computed(
                grad_x,
                Kernel::SoftmaxGrad { dim, log },
                &[dense.as_ref().unwrap_or(gradient), saved.get("result")],
            )
        }))
    }
}
