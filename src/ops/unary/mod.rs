//! Elementwise functions of one tensor.

mod read;

pub(super) use read::ATEN;

use serde::Serialize;

use super::{Context, Operator};
use crate::eager::{Draft, Eager, Stop, Tensor, TensorBody};
use crate::program::{Kernel, Placement, Unary as Function};
use crate::shape::{DType, Mismatch, Type, strides_like};

/// An elementwise function of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Unary {
    /// Which function.
    pub function: Function,
    /// Whether the result replaces the operand (`relu_`).
    pub placement: Placement,
}

impl Operator for Unary {
    fn name(&self) -> &'static str {
        self.function.name(self.placement)
    }

    fn arity(&self) -> (usize, usize) {
        (1, 1)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(operands[..1].to_vec())
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        _: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        Ok(vec![eager.unary(self.function, self.placement, &operands[0])?])
    }
}

/// What a derivative is a formula of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// The result.
    Result,
    /// The operand, which a function in place clones before it overwrites it.
    Operand,
}

/// What the derivative of a function is a formula of.
fn derivative(function: Function, placement: Placement) -> Of {
    match (function, placement) {
        (Function::Relu | Function::Tanh | Function::Sigmoid | Function::Rsqrt, _)
        | (Function::LeakyRelu | Function::Elu, Placement::InPlace) => Of::Result,
        (
            Function::Gelu
            | Function::GeluTanh
            | Function::Silu
            | Function::Relu6
            | Function::Cos
            | Function::Sin
            | Function::Hardtanh
            | Function::Hardsigmoid
            | Function::Hardswish
            | Function::Mish
            | Function::Softplus
            | Function::LogSigmoid
            | Function::Threshold,
            _,
        )
        | (Function::LeakyRelu | Function::Elu, Placement::New) => Of::Operand,
    }
}

impl Eager {
    /// A tensor like this one, under the preserve format.
    pub(crate) fn empty_like(&mut self, tensor: &TensorBody, dtype: DType) -> TensorBody {
        let strides = strides_like(&tensor.shape, &tensor.strides);
        self.empty_strided(&tensor.shape, strides, dtype)
    }

    /// An elementwise function.
    pub(crate) fn unary(
        &mut self,
        function: Function,
        placement: Placement,
        x: &Tensor,
    ) -> Result<Tensor, Stop> {
        // Autocast makes these two in float32.
        let x = &match function {
            Function::Softplus | Function::Rsqrt => self.high(x),
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
                Function::Rsqrt | Function::Cos => 2,
                Function::Sin => 1,
                _ => 0,
            };
            // Most are laid out like the gradient; relu's and leaky relu's like what was saved.
            let order = match function {
                Function::Relu | Function::LeakyRelu => saved.get("saved"),
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
}
