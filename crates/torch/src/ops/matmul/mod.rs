//! Products of stacks of matrices.

mod kernel;
mod run;

pub(in crate::ops) use run::turned;

use crate::ops::prelude::*;

/// A product of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Matmul {
    /// `matmul(a, b)` of vectors, matrices or stacks of them, which broadcast.
    Matmul,
    /// `bmm(a, b)` of equally many matrices.
    Bmm,
    /// `baddbmm(c, a, b)`.
    Baddbmm {
        /// What `c` and the product are multiplied by.
        factors: [f64; 2],
    },
    /// `grouped_mm(input, weights, offsets)`: rows of the input times one matrix each; `weights` is
    /// `[groups, in, out]`.
    Grouped,
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.matmul.default", |args| {
        Ok((Matmul::Matmul.into(), args.all(&["self", "other"])?))
    }),
    ("aten.mm.default", |args| {
        Ok((Matmul::Matmul.into(), args.all(&["self", "mat2"])?))
    }),
    ("aten.bmm.default", |args| {
        Ok((Matmul::Bmm.into(), args.all(&["self", "mat2"])?))
    }),
    ("aten.baddbmm.default", |args| {
        let factors = [args.number_or("beta", 1.0)?, args.number_or("alpha", 1.0)?];
        let operands = args.all(&["self", "batch1", "batch2"])?;
        Ok((Matmul::Baddbmm { factors }.into(), operands))
    }),
    ("aten._grouped_mm.default", |args| {
        Ok((Matmul::Grouped.into(), args.all(&["self", "mat2", "offs"])?))
    }),
    ("transformers.grouped_mm_fallback.default", |args| {
        let operands = args.all(&["input", "weight", "offs"])?;
        Ok((Matmul::Grouped.into(), operands))
    }),
];

impl Operator for Matmul {
    fn name(&self) -> &'static str {
        match self {
            Matmul::Matmul => "matmul",
            Matmul::Bmm => "bmm",
            Matmul::Baddbmm { .. } => "baddbmm",
            Matmul::Grouped => "grouped_mm",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(vec![match self {
            Matmul::Matmul | Matmul::Bmm => {
                (operands[0].0, matrices(&operands[0].1, &operands[1].1)?)
            }
            Matmul::Baddbmm { .. } => (operands[0].0, matrices(&operands[1].1, &operands[2].1)?),
            Matmul::Grouped => grouped(operands)?,
        }])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        Ok(vec![match self {
            Matmul::Matmul => eager.matmul(&operands[0], &operands[1])?,
            Matmul::Bmm => eager.bmm(&operands[0], &operands[1])?,
            Matmul::Baddbmm { factors } => {
                eager.baddbmm([&operands[0], &operands[1], &operands[2]], *factors)?
            }
            Matmul::Grouped => eager.grouped_matmul([&operands[0], &operands[1], &operands[2]])?,
        }])
    }
}

pub(super) fn product(left: &[Extent], right: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let ([rows, inner], [inner_too, columns]) = (left, right) else {
        return Err("both factors must be matrices".into());
    };
    if inner != inner_too {
        return Err(format!("inner sizes {inner} and {inner_too} differ"));
    }
    Ok(vec![*rows, *columns])
}

/// The shape of `matmul(left, right)`: a vector stands for a matrix of one row or column, and stacks
/// broadcast.
fn matrices(left: &[Extent], right: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    match (left.len(), right.len()) {
        (0, _) | (_, 0) => Err("a factor is a scalar".into()),
        (1, _) => {
            let mut shape = matrices(&[&[Extent::ONE], left].concat(), right)?;
            let row = shape.len() - if right.len() == 1 { 1 } else { 2 };
            shape.remove(row);
            Ok(shape)
        }
        (_, 1) => {
            let mut shape = matrices(left, &[right, &[Extent::ONE]].concat())?;
            shape.pop();
            Ok(shape)
        }
        (a, b) => {
            let stack = broadcast(&left[..a - 2], &right[..b - 2])?;
            let last = product(&left[a - 2..], &right[b - 2..])?;
            Ok([stack, last].concat())
        }
    }
}

fn grouped(operands: &[Type]) -> Result<Type, Mismatch> {
    let ([rows, inner], [_, inner_too, columns]) = (&*operands[0].1, &*operands[1].1) else {
        return Err("it multiplies a matrix by a stack of matrices".into());
    };
    if inner != inner_too {
        return Err(format!("inner sizes {inner} and {inner_too} differ"));
    }
    Ok((operands[1].0, vec![*rows, *columns]))
}
