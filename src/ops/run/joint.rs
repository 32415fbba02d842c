//! Formulas of several operands: `addcmul`, `prelu`, `einsum` and the norm of vectors.

use crate::eager::Draft;
use crate::eager::{Eager, Stop};
use crate::eager::{Tensor, TensorBody};
use crate::ops::Einsum;
use crate::program::Kernel;
use crate::shape::strides_like;
use crate::shape::{DType, Extent, numel};

impl Eager {
    /// `addcmul(summand, a, b)`: autocast promotes all to the widest. Each factor's gradient goes through
    /// a copy of the other factor.
    pub(crate) fn addcmul(&mut self, [summand, a, b]: [&Tensor; 3]) -> Result<Tensor, Stop> {
        let widest = [summand, a, b].map(|tensor| tensor.dtype);
        let widest = widest.into_iter().reduce(DType::promote);
        let dtype = widest.expect("three operands");
        let [summand, a, b] = if self.autocast.is_some() {
            [summand, a, b].map(|tensor| self.cast(tensor, dtype))
        } else {
            [summand, a, b].map(Tensor::clone)
        };
        let mut draft = Draft::new(self, &[Some(&summand), Some(&a), Some(&b)]);
        let wants = [&summand, &a, &b].map(|tensor| tensor.requires_grad());
        if wants[2] {
            draft.save(self, "tensor1", &a)?;
        }
        if wants[1] {
            draft.save(self, "tensor2", &b)?;
        }
        let y = self.broadcast_like(&[&summand, &a, &b], dtype);
        self.launch(Kernel::MemoryOnly("addcmul"), &[&summand, &a, &b], &[&y]);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None, None];
            };
            let product = |eager: &mut Eager, with: &Tensor| {
                let strides = strides_like(&with.shape, &with.strides);
                let scaled = eager.empty_strided(&with.shape, strides, with.dtype);
                let result = eager.broadcast_like(&[&**gradient, &scaled], gradient.dtype);
                let inputs = [&**gradient, &**with];
                eager.launch(Kernel::MemoryOnly("addcmul"), &inputs, &[&result]);
                drop(scaled);
                Tensor::new(result)
            };
            vec![
                wants[0].then(|| Tensor::clone(gradient)),
                wants[1].then(|| product(eager, saved.get("tensor2"))),
                wants[2].then(|| product(eager, saved.get("tensor1"))),
            ]
        });
        Ok(y)
    }

    /// `prelu(x, weight)`: one slope, or one for each channel. Autocast runs it in low precision.
    pub(crate) fn prelu(&mut self, x: &Tensor, weight: &Tensor) -> Result<Tensor, Stop> {
        let weight = self.low(weight);
        let x = self.low(x);
        let mut seen = vec![Extent::ONE; x.shape.len()];
        if seen.len() > 1 {
            seen[1] = weight.numel();
        }
        let weight = self.reshape(&weight, &seen);
        let mut draft = Draft::new(self, &[Some(&x), Some(&weight)]);
        draft.save(self, "self", &x)?;
        draft.save(self, "weight", &weight)?;
        let y = self.broadcast_like(&[&x, &weight], x.dtype);
        self.launch(Kernel::MemoryOnly("prelu"), &[&x, &weight], &[&y]);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None];
            };
            let x = saved.get("self");
            let grad_x = eager.broadcast_like(&[&**x], gradient.dtype);
            let grad_weight = eager.broadcast_like(&[&**x], gradient.dtype);
            let outputs = [&grad_x, &grad_weight];
            eager.launch(Kernel::MemoryOnly("prelu"), &[gradient, x], &outputs);
            [grad_x, grad_weight]
                .map(|gradient| Some(Tensor::new(gradient)))
                .into()
        });
        Ok(y)
    }

    /// `einsum` of two tensors: both are arranged for `bmm`, whose result is arranged back.
    pub(crate) fn einsum(
        &mut self,
        einsum: &Einsum,
        [left, right]: [&Tensor; 2],
    ) -> Result<Tensor, Stop> {
        let [both, first, second, summed] = einsum.roles();
        let length = |c: &char| {
            let in_left = einsum.left.iter().position(|label| label == c);
            let in_right = einsum.right.iter().position(|label| label == c);
            match (in_left, in_right) {
                (Some(i), _) => left.shape[i],
                (None, Some(i)) => right.shape[i],
                (None, None) => Extent::ONE,
            }
        };
        let lengths = |labels: &[char]| labels.iter().map(length).collect::<Vec<_>>();
        let size = |labels: &[char]| numel(&lengths(labels));
        let order = |labels: &[char], wanted: &[&[char]]| -> Vec<usize> {
            let place = |c: &char| labels.iter().position(|label| label == c);
            wanted.concat().iter().filter_map(place).collect()
        };
        let a = self.permute(left, &order(&einsum.left, &[&both, &first, &summed]));
        let a = self.reshape(&a, &[size(&both), size(&first), size(&summed)]);
        let b = self.permute(right, &order(&einsum.right, &[&both, &summed, &second]));
        let b = self.reshape(&b, &[size(&both), size(&summed), size(&second)]);
        let product = self.bmm(&a, &b)?;
        drop((a, b));
        let made = [&both[..], &first, &second].concat();
        let product = self.reshape(&product, &lengths(&made));
        Ok(self.permute(&product, &order(&made, &[&einsum.result])))
    }

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
