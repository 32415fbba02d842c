//! Elementwise operations.

use crate::eager::Draft;
use crate::eager::{Eager, Stop};
use crate::eager::{Tensor, TensorBody};
use crate::program::{Binary, Kernel};
use crate::program::{Placement, Unary};
use crate::shape::strides_like;
use crate::shape::{DType, Extent, result_type};

/// What a derivative is a formula of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// The result.
    Result,
    /// The operand, which a function in place clones before it overwrites it.
    Operand,
}

/// What the derivative of a function is a formula of.
fn derivative(function: Unary, placement: Placement) -> Of {
    match (function, placement) {
        (Unary::Relu | Unary::Tanh | Unary::Sigmoid | Unary::Rsqrt, _)
        | (Unary::LeakyRelu | Unary::Elu, Placement::InPlace) => Of::Result,
        (
            Unary::Gelu
            | Unary::GeluTanh
            | Unary::Silu
            | Unary::Relu6
            | Unary::Cos
            | Unary::Sin
            | Unary::Hardtanh
            | Unary::Hardsigmoid
            | Unary::Hardswish
            | Unary::Mish
            | Unary::Softplus
            | Unary::LogSigmoid
            | Unary::Threshold,
            _,
        )
        | (Unary::LeakyRelu | Unary::Elu, Placement::New) => Of::Operand,
    }
}

impl Eager {
    /// A tensor like this one, under the preserve format.
    fn empty_like(&mut self, tensor: &TensorBody, dtype: DType) -> TensorBody {
        let strides = strides_like(&tensor.shape, &tensor.strides);
        self.empty_strided(&tensor.shape, strides, dtype)
    }

    /// An elementwise function.
    pub(crate) fn unary(
        &mut self,
        function: Unary,
        placement: Placement,
        x: &Tensor,
    ) -> Result<Tensor, Stop> {
        // Autocast makes these two in float32.
        let x = &match function {
            Unary::Softplus | Unary::Rsqrt => self.high(x),
            _ => Tensor::clone(x),
        };
        let mut draft = Draft::new(self, &[Some(x)]);
        let of = derivative(function, placement);
        if of == Of::Operand {
            match placement {
                Placement::New => draft.save(self, "saved", x)?,
                Placement::InPlace if draft.is_recorded() => {
                    let copy = Tensor::new(self.empty_like(x, x.dtype));
                    self.launch(Kernel::Copy, &[x], &[&copy]);
                    draft.save(self, "saved", &copy)?;
                }
                Placement::InPlace => {}
            }
        }
        let y = match placement {
            Placement::New => self.empty_like(x, x.dtype),
            Placement::InPlace => x.alias(x.shape.clone(), x.strides.clone()),
        };
        self.launch(Kernel::Unary(function), &[x], &[&y]);
        if of == Of::Result {
            let kept = Tensor::new(y.alias(y.shape.clone(), y.strides.clone()));
            draft.save(self, "saved", &kept)?;
        }
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            // Formulas of several operations: rsqrt's is `-0.5 * grad * result ** 3`, cos's `grad * -sin(self)`
            // and sin's `grad * cos(self)`. The others are kernels of their own.
            let temporaries = match function {
                Unary::Rsqrt | Unary::Cos => 2,
                Unary::Sin => 1,
                _ => 0,
            };
            // Most are laid out like the gradient; relu's and leaky relu's like what was saved.
            let order = match function {
                Unary::Relu | Unary::LeakyRelu => saved.get("saved"),
                _ => gradient,
            };
            let like = |eager: &mut Eager| eager.empty_like(order, gradient.dtype);
            let mut temporaries: Vec<TensorBody> = (0..temporaries).map(|_| like(eager)).collect();
            let grad_x = like(eager);
            let inputs = [&**gradient, saved.get("saved")];
            eager.launch(Kernel::UnaryGrad(function), &inputs, &[&grad_x]);
            while let Some(temporary) = temporaries.pop() {
                drop(temporary);
            }
            vec![Some(Tensor::new(grad_x))]
        });
        Ok(y)
    }

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

    /// `dropout` in training: the mask first, then the result.
    pub(crate) fn dropout(&mut self, x: &Tensor, p: f64) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        let mask = Tensor::new(self.empty(&x.shape, DType::Bool));
        let y = self.empty_like(x, x.dtype);
        self.launch(Kernel::Dropout { p }, &[x], &[&y, &mask]);
        draft.save(self, "mask", &mask)?;
        drop(mask);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            // Row-major or channels-last, whatever the gradient's own order.
            let strides = gradient.suggested_format().strides(&gradient.shape);
            let grad = eager.empty_strided(&gradient.shape, strides, gradient.dtype);
            let inputs = [&**gradient, saved.get("mask")];
            eager.launch(Kernel::DropoutGrad { p }, &inputs, &[&grad]);
            vec![Some(Tensor::new(grad))]
        });
        Ok(y)
    }

    /// Dropout by a product with noise, of elements or of whole channels.
    pub(crate) fn noise_dropout(
        &mut self,
        x: &Tensor,
        placement: Placement,
        features: bool,
    ) -> Result<Tensor, Stop> {
        let noise = if features {
            let mut shape = x.shape.clone();
            shape[2..].fill(Extent::ONE);
            self.empty(&shape, x.dtype)
        } else {
            self.empty_like(x, x.dtype)
        };
        self.launch(Kernel::MemoryOnly("bernoulli_"), &[], &[&noise]);
        let noise = Tensor::new(noise);
        match placement {
            Placement::New => self.mul(x, &noise),
            Placement::InPlace => self.mul_in_place(x, &noise),
        }
    }

    /// `a *= b` for a factor without a gradient.
    fn mul_in_place(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor, Stop> {
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
