//! Norms of vectors, of any order.

use super::run::Kind;
use super::{ReduceDims, kernel};
use crate::ops::prelude::*;

impl Eager {
    /// The norm over some dimensions; autocast makes it in float32, without a copy of its operand.
    pub(super) fn vector_norm(
        &mut self,
        x: &Tensor,
        over: ReduceDims<'_>,
        (order, is_older): (f64, bool),
        dtype: Option<DType>,
    ) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let dtype = dtype.unwrap_or(match self.autocast {
            Some(_) if x.dtype.is_half() => DType::Float32,
            _ => x.dtype,
        });
        let kept = kept_shape(&x.shape, over.dims);
        let by = (kernel::norm(over.dims, order), Kind::Sum);
        let y = self.reduced_over(x, over, dtype, by);
        draft.save(self, "result", &y.detached())?;
        let dims = over.dims.to_vec();
        // A norm of everything has no dimensions, so that its type does not count.
        let is_scalar = !over.named && !over.keep;
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            // `norm` computes in the type of its result.
            let cast = (is_older && saved.get("self").dtype != gradient.dtype)
                .then(|| eager.copy_as(saved.get("self"), gradient.dtype));
            let x = cast.as_ref().unwrap_or_else(|| saved.get("self"));
            let mixed = if is_scalar {
                x.dtype
            } else {
                x.dtype.promote(gradient.dtype)
            };
            let gradient = eager.reshape(gradient, &kept);
            let form = Form {
                x,
                norm: &eager.reshape(saved.get("result"), &kept),
                dims: &dims,
                mixed,
            };
            let grad_x = eager.norm_gradient(order, form, &gradient);
            vec![grad_x]
        }))
    }

    /// `linalg_vector_norm`, or the older `norm`, along some dimensions.
    pub fn norm_along(
        &mut self,
        x: &Tensor,
        (dims, keep): (&[usize], bool),
        by: (f64, bool),
    ) -> Output {
        let named = true;
        self.vector_norm(x, ReduceDims { dims, keep, named }, by, None)
    }

    /// `linalg_vector_norm_backward` in `FunctionsManual.cpp`.
    #[expect(clippy::float_cmp, reason = "orders are written in the model's code")]
    fn norm_gradient(&mut self, order: f64, form: Form<'_>, gradient: &Tensor) -> Option<Tensor> {
        let (x, norm, mixed) = (form.x, form.norm, form.mixed);
        let own = x.dtype;
        let mask = |eager: &mut Eager, like: &TensorBody| eager.empty_like(like, DType::Bool);
        let mut temporaries: Vec<TensorBody> = Vec::new();
        let grad_x = if order == 0.0 {
            return None;
        } else if order == 1.0 {
            temporaries.push(self.empty_like(x, own));
            self.empty_like(x, mixed)
        } else if order == 2.0 {
            // `grad * (self / norm).masked_fill_(norm == 0, 0)`.
            temporaries.push(self.empty_like(x, mixed));
            temporaries.push(mask(self, norm));
            self.empty_like(x, mixed)
        } else if order.is_infinite() {
            // `self.sgn() * ((grad / mask.sum(dim)) * mask)`, where the mask is of those that are largest.
            temporaries.push(self.empty_like(x, own));
            let [equal, missing] = [0, 1].map(|_| mask(self, x));
            let largest = Tensor::new(mask(self, x));
            self.launch(kernel::equal_to_norm(), &[x, norm], &[&largest]);
            drop((missing, equal));
            let by = (kernel::count(form.dims), Kind::Sum);
            let count = self.reduced_by(&largest, form.dims, DType::Int64, by);
            let _share = self.empty(&count.shape, gradient.dtype);
            let _spread = self.empty_like(x, mixed);
            let _sign = self.empty_like(x, own);
            let grad_x = self.empty_like(x, mixed);
            self.launch(
                kernel::norm_grad_of_largest(),
                &[gradient, x, &largest, &count],
                &[&grad_x],
            );
            grad_x
        } else if order < 1.0 {
            // `self.sgn() * self.abs().pow_(p - 1).masked_fill_(self == 0, 0) * grad * norm.pow(1 - p)`.
            let magnitude = self.empty_like(x, own);
            let zero = mask(self, x);
            let sign = self.empty_like(x, own);
            let scaled = self.empty_like(x, own);
            drop((sign, zero));
            drop(magnitude);
            temporaries.push(scaled);
            temporaries.push(self.empty_like(norm, norm.dtype));
            temporaries.push(self.empty_like(x, mixed));
            self.empty_like(x, mixed)
        } else {
            // `self * self.abs().pow(p - 2) * (grad / norm.pow(p - 1)).masked_fill_(norm == 0, 0)`; below 2 by the
            // sign.
            let magnitude = self.empty_like(x, own);
            let sign = (order < 2.0).then(|| self.empty_like(x, own));
            let scaled = self.empty_like(x, own);
            drop((sign, magnitude));
            temporaries.push(scaled);
            let power = self.empty_like(norm, norm.dtype);
            temporaries.push(self.empty_like(norm, norm.dtype));
            drop(power);
            drop(mask(self, norm));
            self.empty_like(x, mixed)
        };
        if order.is_finite() {
            self.launch(kernel::norm_grad(order), &[gradient, x, norm], &[&grad_x]);
        }
        temporaries.drain(..).rev().for_each(drop);
        Some(Tensor::new(grad_x))
    }
}

/// What the gradient of a norm is a formula of.
#[derive(Clone, Copy)]
struct Form<'a> {
    x: &'a Tensor,
    norm: &'a Tensor,
    dims: &'a [usize],
    /// The type of what is made of both.
    mixed: DType,
}

/// The shape with a length of one in the place of these dimensions.
pub fn kept_shape(shape: &[Extent], dims: &[usize]) -> Vec<Extent> {
    crate::ops::indexed::reduced(shape, dims, true)
}
