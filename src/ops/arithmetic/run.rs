//! Sums, products and powers.

use crate::eager::{Draft, Eager, Stop, Tensor, TensorBody};
use crate::program::{Binary, Kernel, Placement};
use crate::shape::{DType, Extent, result_type, strides_like};

impl Eager {

    /// `a + b`: both gradients are the incoming one, passed through without a copy.
    pub(crate) fn add(&mut self, a: &Tensor, b: &Tensor) -> Tensor {
        let draft = Draft::new(self, &[Some(a), Some(b)]);
        let y = self.broadcast_result(a, b);
        self.binary(Binary::Add, a, b, &y);
        let [y] = draft.finish(self, [y], pass_through_both(a, b));
        y
    }

    /// `a += b`.
    pub(crate) fn add_in_place(&mut self, a: &Tensor, b: &Tensor) -> Tensor {
        let draft = Draft::new(self, &[Some(a), Some(b)]);
        let y = a.alias(a.shape.clone(), a.strides.clone());
        self.binary(Binary::Add, a, b, &y);
        let [y] = draft.finish(self, [y], pass_through_both(a, b));
        y
    }

    /// `a * b`: each operand is saved only for the gradient of the other.
    pub(crate) fn mul(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(a), Some(b)]);
        let (wants_a, wants_b) = (a.requires_grad(), b.requires_grad());
        if wants_a {
            draft.save(self, "other", b)?;
        }
        if wants_b {
            draft.save(self, "self", a)?;
        }
        let y = self.broadcast_result(a, b);
        self.binary(Binary::Mul, a, b, &y);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None];
            };
            let product = |eager: &mut Eager, with: &Tensor| {
                let result = eager.broadcast_result(gradient, with);
                eager.binary(Binary::Mul, gradient, with, &result);
                Tensor::new(result)
            };
            // Alphabetically: `other`, then `self`. Both are full size; broadcast ones are summed later.
            let grad_b = wants_b.then(|| product(eager, saved.get("self")));
            let grad_a = wants_a.then(|| product(eager, saved.get("other")));
            vec![grad_a, grad_b]
        });
        Ok(y)
    }

    /// `a + scalar`.
    pub(crate) fn add_scalar(&mut self, a: &Tensor, scalar: f64, placement: Placement) -> Tensor {
        let draft = Draft::new(self, &[Some(a)]);
        let y = match placement {
            Placement::New => self.empty_like(a, a.dtype),
            Placement::InPlace => a.alias(a.shape.clone(), a.strides.clone()),
        };
        self.launch(Kernel::Shift(scalar), &[a], &[&y]);
        let [y] = draft.finish(self, [y], |_, gradients, _| vec![gradients[0].clone()]);
        y
    }

    /// `a * scalar`.
    pub(crate) fn mul_scalar(&mut self, a: &Tensor, scalar: f64) -> Tensor {
        let draft = Draft::new(self, &[Some(a)]);
        let y = self.empty_like(a, a.dtype);
        self.launch(Kernel::Scale(scalar), &[a], &[&y]);
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let grad = eager.empty_like(gradient, gradient.dtype);
            eager.launch(Kernel::Scale(scalar), &[gradient], &[&grad]);
            vec![Some(Tensor::new(grad))]
        });
        y
    }

    /// `a ** exponent`; autocast runs it in float32. Its gradient takes two temporaries.
    pub(crate) fn pow_scalar(&mut self, a: &Tensor, exponent: f64) -> Result<Tensor, Stop> {
        let a = self.high(a);
        let mut draft = Draft::new(self, &[Some(&a)]);
        draft.save(self, "self", &a)?;
        let y = self.empty_like(&a, a.dtype);
        self.launch(Kernel::Power(exponent), &[&a], &[&y]);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            // `grad * (exponent * self ** (exponent - 1))`.
            let first = eager.empty_like(saved.get("self"), gradient.dtype);
            let second = eager.empty_like(saved.get("self"), gradient.dtype);
            let grad = eager.empty_like(gradient, gradient.dtype);
            let inputs = [&**gradient, saved.get("self")];
            eager.launch(Kernel::PowerGrad(exponent), &inputs, &[&grad]);
            drop(second);
            drop(first);
            vec![Some(Tensor::new(grad))]
        });
        Ok(y)
    }

    /// `a *= b` for a factor without a gradient.
    pub(crate) fn mul_in_place(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(a)]);
        draft.save(self, "other", b)?;
        let y = a.alias(a.shape.clone(), a.strides.clone());
        self.binary(Binary::Mul, a, b, &y);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let other = saved.get("other");
            let result = eager.broadcast_result(gradient, other);
            eager.binary(Binary::Mul, gradient, other, &result);
            vec![Some(Tensor::new(result))]
        });
        Ok(y)
    }

    fn broadcast_result(&mut self, a: &TensorBody, b: &TensorBody) -> TensorBody {
        let types = [a, b].map(|operand| (operand.dtype, operand.shape.is_empty()));
        self.broadcast_like(&[a, b], result_type(&types, None))
    }

    fn binary(&mut self, function: Binary, a: &TensorBody, b: &TensorBody, y: &TensorBody) {
        let (a, b) = (expanded(a, &y.shape), expanded(b, &y.shape));
        self.launch(Kernel::Binary(function), &[&a, &b], &[y]);
    }

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
}

/// The incoming gradient for each operand that needs one.
fn pass_through_both(
    a: &Tensor,
    b: &Tensor,
) -> impl FnOnce(&mut Eager, &[Option<Tensor>], &crate::eager::Saved) -> Vec<Option<Tensor>> + use<>
{
    let wants = [a.requires_grad(), b.requires_grad()];
    move |_, gradients, _| {
        wants
            .map(|wanted| gradients[0].clone().filter(|_| wanted))
            .into()
    }
}

/// The tensor seen under a shape it broadcasts to.
pub(crate) fn expanded(tensor: &TensorBody, shape: &[Extent]) -> TensorBody {
    let missing = shape.len() - tensor.shape.len();
    let stride = |i: usize| match i.checked_sub(missing) {
        Some(own) if tensor.shape[own] == shape[i] => tensor.strides[own],
        Some(_) | None => Extent::ZERO,
    };
    let mut view = tensor.alias(shape.to_vec(), (0..shape.len()).map(stride).collect());
    view.offset = tensor.offset;
    view
}
