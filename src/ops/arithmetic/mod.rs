//! Sums, products and powers of tensors and numbers.

mod run;

pub(crate) use run::expanded;

use serde::Serialize;

use super::{Context, Operator, Read, Reader, pointwise};
use crate::eager::{Eager, Stop, Tensor};
use crate::shape::{DType, Mismatch, Type, broadcast, result_type};
use crate::aten::{Arguments, Operand};
use crate::program::Placement;

/// An elementwise function with a kernel of its own. Operands are in the order of the ATen operator's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Arithmetic {
    /// `self + other`, broadcast.
    Add(Placement),
    /// `self * other`, broadcast.
    Mul,
    /// `self + scalar`, or `self += scalar`.
    AddScalar(f64, Placement),
    /// `self * scalar`.
    MulScalar(f64),
    /// `self ** exponent`.
    PowScalar(f64),
    /// `addcmul(self, tensor1, tensor2)`.
    Addcmul,
    /// `prelu(input, weight)`.
    Prelu,
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.add.Tensor", add),
    ("aten.add_.Tensor", add),
    ("aten.mul.Tensor", |args| {
        if raises_type(args) {
            return pointwise::read(args);
        }
        with_other(args, Arithmetic::Mul, Arithmetic::MulScalar)
    }),
    ("aten.neg.default", |args| {
        Ok((Arithmetic::MulScalar(-1.0).into(), args.all(&["self"])?))
    }),
    ("aten.square.default", |args| {
        Ok((Arithmetic::PowScalar(2.0).into(), args.all(&["self"])?))
    }),
    ("aten.pow.Tensor_Scalar", |args| {
        let power = Arithmetic::PowScalar(args.number("exponent")?);
        Ok((power.into(), args.all(&["self"])?))
    }),
    ("aten.addcmul.default", |args| {
        let operands = args.all(&["self", "tensor1", "tensor2"])?;
        Ok((Arithmetic::Addcmul.into(), operands))
    }),
    ("aten.prelu.default", |args| {
        Ok((Arithmetic::Prelu.into(), args.all(&["self", "weight"])?))
    }),
];

fn add(args: &Arguments<'_>) -> Result<Read, String> {
    let placement = args.placement();
    if placement == Placement::New && raises_type(args) {
        return pointwise::read(args);
    }
    args.always("alpha", 1.0)?;
    with_other(args, Arithmetic::Add(placement), |number| {
        Arithmetic::AddScalar(number, placement)
    })
}

/// Whether `other` is a number of a higher kind than the elements of `self`, which makes another kind of
/// result.
fn raises_type(args: &Arguments<'_>) -> bool {
    let dtype = args.tensor("self").map(|input| args.typed(input).0);
    match (dtype, args.number_kind("other")) {
        (Ok(dtype), Some(number)) => result_type(&[(dtype, false)], Some(number)) != dtype,
        _ => false,
    }
}

fn with_other(
    args: &Arguments<'_>,
    tensors: Arithmetic,
    scalar: impl Fn(f64) -> Arithmetic,
) -> Result<Read, String> {
    let input = args.tensor("self")?;
    Ok(match args.operand("other")? {
        Operand::Tensor(other) => (tensors.into(), vec![input, other]),
        Operand::Number(number) => (scalar(number).into(), vec![input]),
    })
}

impl Operator for Arithmetic {
    fn name(&self) -> &'static str {
        match self {
            Arithmetic::Add(Placement::New) | Arithmetic::AddScalar(_, Placement::New) => "add",
            Arithmetic::Add(Placement::InPlace) | Arithmetic::AddScalar(_, Placement::InPlace) => {
                "add_"
            }
            Arithmetic::Mul | Arithmetic::MulScalar(_) => "mul",
            Arithmetic::PowScalar(_) => "pow",
            Arithmetic::Addcmul => "addcmul",
            Arithmetic::Prelu => "prelu",
        }
    }

    fn arity(&self) -> (usize, usize) {
        match self {
            Arithmetic::Add(_) | Arithmetic::Mul | Arithmetic::Prelu => (2, 2),
            Arithmetic::Addcmul => (3, 3),
            Arithmetic::AddScalar(..) | Arithmetic::MulScalar(_) | Arithmetic::PowScalar(_) => {
                (1, 1)
            }
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(vec![match self {
            Arithmetic::Add(_) | Arithmetic::Mul => {
                let shape = broadcast(&operands[0].1, &operands[1].1)?;
                (result_type(&super::scalars(operands), None), shape)
            }
            Arithmetic::Addcmul => {
                let factors = broadcast(&operands[1].1, &operands[2].1)?;
                let types = operands.iter().map(|(dtype, _)| *dtype);
                let dtype = types.reduce(DType::promote).unwrap_or(DType::Float32);
                (dtype, broadcast(&operands[0].1, &factors)?)
            }
            Arithmetic::AddScalar(..)
            | Arithmetic::MulScalar(_)
            | Arithmetic::PowScalar(_)
            | Arithmetic::Prelu => operands[0].clone(),
        }])
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        context: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        let a = &operands[0];
        Ok(vec![match *self {
            Arithmetic::Add(Placement::New) => eager.add(a, &operands[1]),
            Arithmetic::Add(Placement::InPlace) => eager.add_in_place(a, &operands[1]),
            Arithmetic::Mul => eager.mul(a, &operands[1])?,
            // Batch norms count their batches only in training.
            Arithmetic::AddScalar(_, Placement::InPlace)
                if context.inference && context.of_buffer =>
            {
                Tensor::clone(a)
            }
            Arithmetic::AddScalar(number, placement) => eager.add_scalar(a, number, placement),
            Arithmetic::MulScalar(number) => eager.mul_scalar(a, number),
            Arithmetic::PowScalar(exponent) => eager.pow_scalar(a, exponent)?,
            Arithmetic::Addcmul => eager.addcmul([a, &operands[1], &operands[2]])?,
            Arithmetic::Prelu => eager.prelu(a, &operands[1])?,
        }])
    }
}
