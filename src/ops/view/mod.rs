//! The same memory under another shape, and the copies that stand where no view is possible.

mod read;
mod run;

pub(super) use read::ATEN;

use serde::Serialize;

use super::{Context, Operator};
use crate::eager::{Eager, Stop, Tensor};
use crate::shape::{Extent, Mismatch, Type, broadcast, numel};

pub(crate) use run::gradient_view;

/// A view of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub enum View {
    /// `view`, `reshape`, `flatten`: the same elements under another shape, copied where they must be.
    Reshape(Vec<Extent>),
    /// `permute(order)`, and the other names of exchanged dimensions: which of the operand's dimensions
    /// each of the result's is.
    Permute(Vec<usize>),
    /// `unsqueeze(dim)`.
    Unsqueeze(usize),
    /// `expand(shape)`.
    Expand(Vec<Extent>),
    /// `slice(dim, start, end, step)`.
    Slice {
        /// Which dimension.
        dim: usize,
        /// First index.
        start: u64,
        /// Past the last index; already clamped to the length.
        end: Extent,
        /// Distance between the elements taken. Not one only where the length is fixed.
        step: u64,
    },
    /// `select(dim, index)`: one slice, without its dimension.
    Select {
        /// Which dimension.
        dim: usize,
        /// Which element of it.
        index: u64,
    },
    /// `unfold(dim, size, step)`: windows along a dimension, as a new last one.
    Windows {
        /// Which dimension.
        dim: usize,
        /// Length of a window.
        size: u64,
        /// Distance between windows.
        step: u64,
    },
    /// `split(lengths, dim)`: several results.
    Split {
        /// Length of each part.
        lengths: Vec<u64>,
        /// Which dimension.
        dim: usize,
    },
    /// `unbind(dim)`: every element along a dimension, without it.
    Unbind {
        /// Which dimension.
        dim: usize,
    },
    /// `alias`: the same tensor under another name.
    Alias,
    /// `detach()`: the same memory, without history.
    Detach,
}

impl Operator for View {
    fn name(&self) -> &'static str {
        match self {
            View::Reshape(_) => "reshape",
            View::Permute(_) => "permute",
            View::Unsqueeze(_) => "unsqueeze",
            View::Expand(_) => "expand",
            View::Slice { .. } => "slice",
            View::Select { .. } => "select",
            View::Windows { .. } => "unfold",
            View::Split { .. } => "split",
            View::Unbind { .. } => "unbind",
            View::Alias => "alias",
            View::Detach => "detach",
        }
    }

    fn arity(&self) -> (usize, usize) {
        (1, 1)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        let shapes = match self {
            View::Split { lengths, dim } => split(x, lengths, *dim)?,
            View::Unbind { dim } => unbind(x, *dim)?,
            one => vec![one.shape(x)?],
        };
        Ok(shapes.into_iter().map(|shape| (*dtype, shape)).collect())
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        _: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        let x = &operands[0];
        let one = match self {
            View::Reshape(shape) => eager.reshape(x, shape),
            View::Permute(order) => eager.permute(x, order),
            View::Unsqueeze(dim) => eager.unsqueeze(x, *dim),
            View::Expand(shape) => eager.expand(x, shape),
            View::Slice {
                dim,
                start,
                end,
                step,
            } => eager.slice(x, *dim, (*start, *end, *step)),
            View::Select { dim, index } => eager.select(x, *dim, *index),
            View::Windows { dim, size, step } => eager.windows(x, *dim, [*size, *step]),
            View::Split { lengths, dim } => return Ok(eager.split(x, lengths, *dim)),
            View::Unbind { dim } => return Ok(eager.unbind(x, *dim)),
            View::Alias => Tensor::clone(x),
            View::Detach => x.detached(),
        };
        Ok(vec![one])
    }
}

impl View {
    /// The shape of the only result.
    fn shape(&self, x: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
        match self {
            View::Reshape(to) if numel(to) == numel(x) => Ok(to.clone()),
            View::Reshape(to) => Err(format!("{x:?} has other elements than {to:?}")),
            View::Permute(order) => {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                if sorted.into_iter().ne(0..x.len()) {
                    return Err(format!("{order:?} is no order of the dimensions of {x:?}"));
                }
                Ok(order.iter().map(|i| x[*i]).collect())
            }
            View::Unsqueeze(dim) => {
                let mut result = x.to_vec();
                if *dim > result.len() {
                    return Err(format!("no place {dim} in {result:?}"));
                }
                result.insert(*dim, Extent::ONE);
                Ok(result)
            }
            View::Expand(to) if broadcast(x, to)? == *to => Ok(to.clone()),
            View::Expand(to) => Err(format!("{x:?} does not expand to {to:?}")),
            View::Slice {
                dim,
                start,
                end,
                step,
            } => slice(x, *dim, *start, *end, *step),
            View::Select { dim, index } => select(x, *dim, *index),
            View::Windows { dim, size, step } => {
                let length = x.get(*dim).and_then(|length| length.as_fixed());
                let room = length.and_then(|length| length.checked_sub(*size));
                let room = room.filter(|_| *step > 0);
                let room = room.ok_or_else(|| {
                    format!("no windows of {size} fit dimension {dim} of {x:?}, {step} apart")
                })?;
                let mut result = x.to_vec();
                result[*dim] = Extent::fixed(room / step + 1);
                result.push(Extent::fixed(*size));
                Ok(result)
            }
    
            View::Alias | View::Detach => Ok(x.to_vec()),
            View::Split { .. } | View::Unbind { .. } => Err("it has several results".into()),
        }
    }
}

fn slice(
    x: &[Extent],
    dim: usize,
    start: u64,
    end: Extent,
    step: u64,
) -> Result<Vec<Extent>, Mismatch> {
    let mut result = x.to_vec();
    let length = result
        .get_mut(dim)
        .ok_or_else(|| format!("no dimension {dim}"))?;
    *length = match (end.as_fixed(), start) {
        (_, 0) if step == 1 => end,
        (Some(end), start) if start <= end => Extent::fixed((end - start).div_ceil(step)),
        _ => return Err(format!("cannot slice from {start} to {end}")),
    };
    Ok(result)
}

fn select(x: &[Extent], dim: usize, index: u64) -> Result<Vec<Extent>, Mismatch> {
    let mut result = x.to_vec();
    match x.get(dim).map(|length| length.as_fixed()) {
        Some(Some(length)) if index >= length => {
            Err(format!("no element {index} in dimension {dim} of {x:?}"))
        }
        Some(_) => {
            result.remove(dim);
            Ok(result)
        }
        None => Err(format!("no dimension {dim} in {x:?}")),
    }
}

fn split(
    x: &[Extent],
    lengths: &[u64],
    dim: usize,
) -> Result<Vec<Vec<Extent>>, Mismatch> {
    let total = lengths.iter().try_fold(0_u64, |sum, n| sum.checked_add(*n));
    if x.get(dim).and_then(|length| length.as_fixed()) != total || total.is_none() {
        return Err(format!(
            "cannot split dimension {dim} of {x:?} into {lengths:?}"
        ));
    }
    let part = |length: &u64| {
        let mut result = x.to_vec();
        result[dim] = Extent::fixed(*length);
        result
    };
    Ok(lengths.iter().map(part).collect())
}

fn unbind(x: &[Extent], dim: usize) -> Result<Vec<Vec<Extent>>, Mismatch> {
    let Some(length) = x.get(dim).and_then(|length| length.as_fixed()) else {
        return Err(format!("cannot unbind dimension {dim} of {x:?}"));
    };
    let mut part = x.to_vec();
    part.remove(dim);
    Ok((0..length).map(|_| part.clone()).collect())
}
