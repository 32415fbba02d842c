//! The norm of vectors.

use crate::eager::{Draft, Eager, Stop, Tensor, TensorBody};
use crate::program::Kernel;
use crate::shape::{DType, Extent};

impl Eager {

    /// The Euclidean norm over some dimensions; autocast makes it in float32, without a copy of its
    /// operand.
    pub(crate) fn vector_norm(
        &mut self,
        x: &Tensor,
        dims: &[usize],
        keep: bool,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let dtype = match self.autocast {
            Some(_) if x.dtype.is_half() => DType::Float32,
            _ => x.dtype,
        };
        let kept = kept_shape(&x.shape, dims);
        let whole = self.reduced(x, dims, dtype, Kernel::MemoryOnly("linalg_vector_norm"));
        let lengths = whole.shape.iter().zip(&whole.strides).enumerate();
        let (shape, strides) = lengths
            .filter(|(i, _)| keep || !dims.contains(i))
            .map(|(_, (length, stride))| (*length, *stride))
            .unzip();
        let y = whole.alias(shape, strides);
        let result = Tensor::new(whole);
        draft.save(self, "result", &result)?;
        drop(result);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let x = saved.get("self");
            let gradient = eager.reshape(gradient, &kept);
            // `gradient * (x / norm).masked_fill_(norm == 0, 0)`.
            let norm = saved.get("result");
            let quotient = eager.broadcast_like(&[&**x], x.dtype.promote(norm.dtype));
            let zero = eager.broadcast_like(&[&**norm], DType::Bool);
            let grad_x = eager.broadcast_like(&[&quotient], quotient.dtype);
            let inputs: [&TensorBody; 3] = [&gradient, x, norm];
            eager.launch(
                Kernel::MemoryOnly("linalg_vector_norm"),
                &inputs,
                &[&grad_x],
            );
            drop(zero);
            drop(quotient);
            vec![Some(Tensor::new(grad_x))]
        });
        Ok(y)
    }
}

/// The shape with a length of one in the place of these dimensions.
pub(crate) fn kept_shape(shape: &[Extent], dims: &[usize]) -> Vec<Extent> {
    let lengths = shape.iter().enumerate();
    lengths
        .map(|(i, length)| {
            if dims.contains(&i) {
                Extent::ONE
            } else {
                *length
            }
        })
        .collect()
}
