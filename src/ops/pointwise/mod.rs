//! Elementwise functions of tensors that broadcast, and the types of their results.

mod read;
mod run;

pub(super) use read::{ATEN, read};

use super::{Context, Operator};
use crate::eager::{Eager, Stop, Tensor};
use crate::shape::{DType, Mismatch, Number, Type, broadcast, result_type};
use serde::Serialize;

use crate::program::Placement;

/// An elementwise function, with what it is applied to besides tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pointwise {
    /// Which function.
    pub function: Function,
    /// Whether the result replaces the first operand.
    pub placement: Placement,
    /// The kind of number among the arguments, if there is one that counts for the result's type.
    pub number: Option<Number>,
}

/// Which elementwise function. Operands are in the order of the ATen operator's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Function {
    /// `a + b`, where a number changes the type.
    Add,
    /// `a - b`.
    Sub,
    /// `number - a`.
    SubFrom,
    /// `a * b`, where a number changes the type.
    Mul,
    /// `a / b`.
    Div,
    /// A quotient rounded to a whole number: no gradient.
    Quotient,
    /// `a % b`.
    Remainder,
    /// The smaller of two.
    Minimum,
    /// The larger of two.
    Maximum,
    /// `a ** b` of tensors.
    Pow,
    /// `number ** a`.
    PowOf,
    /// `clamp` with this many bounds.
    Clamp(u8),
    /// A comparison or anything else that answers with truth values.
    Truth,
    /// Bitwise functions, which are those of truth values too.
    Bitwise,
    /// `where(condition, a, b)`; a number stands for a missing one.
    Where,
    /// `masked_fill(a, mask[, value])`.
    MaskedFill,
    /// `fill_(a)`, `zero_(a)`.
    Fill,
    /// `copy_(a, b)`.
    CopyInto,
    /// Magnitude.
    Abs,
    /// Sign, floor, ceiling and the like: no gradient, but zeros.
    Step,
    /// Negation.
    Neg,
    /// Exponential.
    Exp,
    /// Exponential with base two.
    Exp2,
    /// `exp(a) - 1`.
    Expm1,
    /// Natural logarithm.
    Log,
    /// `log(1 + a)`.
    Log1p,
    /// Square root.
    Sqrt,
    /// `1 / a`.
    Reciprocal,
    /// The error function.
    Erf,
    /// Tangent.
    Tan,
}

impl Pointwise {
    fn aten_name(self) -> &'static str {
        match self.function {
            Function::Add => "add",
            Function::Sub => "sub",
            Function::SubFrom => "rsub",
            Function::Mul => "mul",
            Function::Div => "div",
            Function::Quotient => "floor_divide",
            Function::Remainder => "remainder",
            Function::Minimum => "minimum",
            Function::Maximum => "maximum",
            Function::Pow | Function::PowOf => "pow",
            Function::Clamp(_) => "clamp",
            Function::Truth => "comparison",
            Function::Bitwise => "bitwise operation",
            Function::Where => "where",
            Function::MaskedFill => "masked_fill",
            Function::Fill => "fill_",
            Function::CopyInto => "copy_",
            Function::Abs => "abs",
            Function::Step => "rounding",
            Function::Neg => "neg",
            Function::Exp => "exp",
            Function::Exp2 => "exp2",
            Function::Expm1 => "expm1",
            Function::Log => "log",
            Function::Log1p => "log1p",
            Function::Sqrt => "sqrt",
            Function::Reciprocal => "reciprocal",
            Function::Erf => "erf",
            Function::Tan => "tan",
        }
    }

    /// The type of the result on operands of these types; the flag says whether one has no dimensions.
    pub fn result_type(self, operands: &[(DType, bool)]) -> DType {
        if self.placement == Placement::InPlace {
            return operands[0].0;
        }
        let real = |dtype: DType| {
            if dtype.is_float() {
                dtype
            } else {
                DType::Float32
            }
        };
        match self.function {
            Function::Truth => DType::Bool,
            Function::MaskedFill | Function::Fill | Function::CopyInto => operands[0].0,
            Function::Where => result_type(&operands[1..], self.number),
            Function::Div
            | Function::Exp
            | Function::Exp2
            | Function::Expm1
            | Function::Log
            | Function::Log1p
            | Function::Sqrt
            | Function::Reciprocal
            | Function::Erf
            | Function::Tan => real(result_type(operands, self.number)),
            _ => result_type(operands, self.number),
        }
    }
}

impl Operator for Pointwise {
    fn name(&self) -> &'static str {
        self.aten_name()
    }

    fn arity(&self) -> (usize, usize) {
        (1, 3)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let shapes = operands.iter().map(|(_, shape)| shape);
        let shape = shapes.into_iter().try_fold(Vec::new(), |result, shape| broadcast(&result, shape))?;
        Ok(vec![(self.result_type(&super::scalars(operands)), shape)])
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        _: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        Ok(vec![eager.pointwise(*self, operands)?])
    }
}
