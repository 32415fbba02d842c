//! Joining tensors.

mod run;

use crate::ops::prelude::*;

pub use run::{element, part};

/// Several tensors as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Join {
    /// `cat(tensors, dim)`.
    Cat {
        /// Which dimension.
        dim: usize,
    },
    /// `block_diag(tensors)`: matrices along a diagonal, and zeros.
    BlockDiagonal,
    /// `stack(tensors, dim)`: joined along a new dimension.
    Stack {
        /// Which dimension of the result.
        dim: usize,
    },
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.cat.default aten.concat.default", |args| {
        let mut tensors = args.tensors("tensors")?;
        // PyTorch skips empty lists, with which Hugging Face's caches begin.
        if tensors.len() > 1 {
            tensors.retain(|id| args.shape(*id) != [Extent::ZERO]);
        }
        let first = tensors.first().ok_or("it joins no tensors")?;
        let dim = args.dim("dim", Some(0), args.shape(*first).len())?;
        Ok((Join::Cat { dim }.into(), tensors))
    }),
    ("aten.block_diag.default", |args| {
        let tensors = args.tensors("tensors")?;
        tensors.first().ok_or("it joins no tensors")?;
        Ok((Join::BlockDiagonal.into(), tensors))
    }),
    ("aten.stack.default", |args| {
        let tensors = args.tensors("tensors")?;
        let first = tensors.first().ok_or("it joins no tensors")?;
        let dim = args.dim("dim", Some(0), args.shape(*first).len() + 1)?;
        Ok((Join::Stack { dim }.into(), tensors))
    }),
    ("aten.hstack.default", |args| {
        stacked(args, [Along::Old(0), Along::Old(1), Along::Old(1)])
    }),
    ("aten.vstack.default aten.row_stack.default", |args| {
        stacked(args, [Along::New(0), Along::Old(0), Along::Old(0)])
    }),
    ("aten.column_stack.default", |args| {
        stacked(args, [Along::New(1), Along::Old(1), Along::Old(1)])
    }),
    ("aten.dstack.default", |args| {
        let rank = args
            .tensors("tensors")?
            .first()
            .map(|id| args.shape(*id).len());
        if rank == Some(1) {
            return Err("it stacks tensors of one dimension along a third".into());
        }
        stacked(args, [Along::Old(0), Along::New(2), Along::Old(2)])
    }),
];

/// A dimension that tensors are joined along.
#[derive(Clone, Copy)]
enum Along {
    /// One that they have.
    Old(usize),
    /// One that they get.
    New(usize),
}

/// `hstack` and its like, which first give tensors of few dimensions more: by that number, from one.
fn stacked(args: &Arguments<'_>, along: [Along; 3]) -> Result<Read, String> {
    let tensors = args.tensors("tensors")?;
    let first = tensors.first().ok_or("it joins no tensors")?;
    let rank = args.shape(*first).len();
    if tensors.iter().any(|id| args.shape(*id).len() != rank) {
        return Err("it stacks tensors of different numbers of dimensions".into());
    }
    let join = match rank.checked_sub(1).map(|rank| along[rank.min(2)]) {
        Some(Along::Old(dim)) => Join::Cat { dim },
        Some(Along::New(dim)) => Join::Stack { dim },
        None => Join::Stack { dim: 0 },
    };
    Ok((join.into(), tensors))
}

impl Operator for Join {
    fn name(&self) -> &'static str {
        match self {
            Join::Cat { .. } => "cat",
            Join::BlockDiagonal => "block_diag",
            Join::Stack { .. } => "stack",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let shapes: Vec<&[Extent]> = operands.iter().map(|(_, shape)| shape.as_slice()).collect();
        let shape = match self {
            Join::Cat { dim } => join(&shapes, *dim)?,
            Join::BlockDiagonal => block_diagonal(&shapes)?,
            Join::Stack { dim } => stack(&shapes, *dim)?,
        };
        Ok(vec![(operands[0].0, shape)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        Ok(vec![match self {
            Join::Cat { dim } => eager.cat(operands, *dim),
            Join::BlockDiagonal => eager.block_diagonal(operands),
            Join::Stack { dim } => eager.stack(operands, *dim),
        }])
    }
}

fn join(operands: &[&[Extent]], dim: usize) -> Result<Vec<Extent>, Mismatch> {
    let mut result = operands[0].to_vec();
    if dim >= result.len() {
        return Err(format!("no dimension {dim} in {result:?}"));
    }
    for (index, other) in operands.iter().enumerate().skip(1) {
        let mut sides = other.iter().zip(&result).enumerate();
        if other.len() != result.len() || !sides.all(|(i, (a, b))| i == dim || a == b) {
            return Err(format!(
                "operand {index} is {other:?}, which does not join {result:?}"
            ));
        }
        result[dim] = result[dim] + other[dim];
    }
    Ok(result)
}

/// Rows and columns of a matrix, a row for a vector, and one for a number.
pub(super) fn sides(shape: &[Extent]) -> Option<[Extent; 2]> {
    match *shape {
        [] => Some([Extent::ONE; 2]),
        [columns] => Some([Extent::ONE, columns]),
        [rows, columns] => Some([rows, columns]),
        _ => None,
    }
}

fn block_diagonal(operands: &[&[Extent]]) -> Result<Vec<Extent>, Mismatch> {
    let mut result = vec![Extent::ZERO; 2];
    for shape in operands {
        let sides = sides(shape).ok_or_else(|| format!("{shape:?} is no matrix"))?;
        for (sum, side) in result.iter_mut().zip(sides) {
            *sum = *sum + side;
        }
    }
    Ok(result)
}

fn stack(operands: &[&[Extent]], dim: usize) -> Result<Vec<Extent>, Mismatch> {
    let mut result = operands[0].to_vec();
    if let Some(other) = operands.iter().find(|other| **other != result) {
        return Err(format!("{other:?} does not stack on {result:?}"));
    }
    if dim > result.len() {
        return Err(format!("no place {dim} in {result:?}"));
    }
    result.insert(dim, Extent::fixed(operands.len() as u64));
    Ok(result)
}
