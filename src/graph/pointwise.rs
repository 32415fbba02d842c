//! Elementwise functions of tensors that broadcast, and the types of their results.

use serde::Serialize;

use super::dtype::DType;
use super::op::Placement;

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

/// A number that stands beside tensors: it raises the type of a result to its kind, not to its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Number {
    /// `True`.
    Truth,
    /// `2`.
    Whole,
    /// `2.0`.
    Real,
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
    /// The name a PyTorch user knows it by.
    pub fn name(self) -> &'static str {
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

/// PyTorch's type promotion: tensors with dimensions come first, then those without, then numbers; a
/// later kind counts only where it is of a higher class (truth, whole, real).
pub(crate) fn result_type(operands: &[(DType, bool)], number: Option<Number>) -> DType {
    let of = |scalar: bool| {
        let these = operands
            .iter()
            .filter(move |(_, is_scalar)| *is_scalar == scalar);
        these.map(|(dtype, _)| *dtype).reduce(DType::promote)
    };
    let number = number.map(|number| match number {
        Number::Truth => DType::Bool,
        Number::Whole => DType::Int64,
        Number::Real => DType::Float32,
    });
    let class = |dtype: DType| (dtype != DType::Bool, dtype.is_float());
    [of(false), of(true), number]
        .into_iter()
        .flatten()
        .reduce(|higher, lower| {
            if class(lower) > class(higher) {
                lower
            } else {
                higher
            }
        })
        .unwrap_or(DType::Float32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_raise_the_class_of_a_type_and_not_its_size() {
        let of = |dtype, number| result_type(&[(dtype, false)], Some(number));

        assert_eq!(of(DType::BFloat16, Number::Real), DType::BFloat16);
        assert_eq!(of(DType::Int64, Number::Real), DType::Float32);
        assert_eq!(of(DType::Bool, Number::Whole), DType::Int64);
        assert_eq!(of(DType::Int32, Number::Whole), DType::Int32);
    }

    #[test]
    fn tensors_without_dimensions_count_like_numbers() {
        let half = (DType::Float16, false);

        assert_eq!(
            result_type(&[half, (DType::Float32, true)], None),
            DType::Float16
        );
        assert_eq!(
            result_type(&[(DType::Int64, false), (DType::Float64, true)], None),
            DType::Float64
        );
    }
}
