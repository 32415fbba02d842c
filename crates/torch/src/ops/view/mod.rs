//! The same memory under another shape, and the copies that stand where no view is possible.

mod kernel;
pub(in crate::ops) mod meshgrid;
mod read;
mod run;

pub(super) use read::{
    ATEN, diagonal as read_diagonal, select as read_select, slice as read_slice,
};

use crate::limits::{grow, weight_of_rank};
use crate::ops::prelude::*;

pub use run::gradient_view;

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
        start: Extent,
        /// Past the last index; already clamped to the length.
        end: Extent,
        /// Distance between the elements taken.
        step: u64,
    },
    /// `select(dim, index)`: one slice, without its dimension.
    Select {
        /// Which dimension.
        dim: usize,
        /// Which element of it.
        index: Extent,
    },
    /// `diagonal(offset, dim1, dim2)`: as a new last dimension.
    Diagonal {
        /// How far above the main one.
        offset: i64,
        /// The matrices' dimensions.
        dims: [usize; 2],
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
        lengths: Vec<Extent>,
        /// Which dimension.
        dim: usize,
    },
    /// `tensor_split(dim)`: several slices, each with a gradient of its own.
    Slices {
        /// Where each starts and ends.
        bounds: Vec<[Extent; 2]>,
        /// Which dimension.
        dim: usize,
    },
    /// `unbind(dim)`: every element along a dimension, without it.
    Unbind {
        /// Which dimension.
        dim: usize,
    },
    /// `as_strided(size, stride, storage_offset)`.
    Strided {
        /// The lengths of the result.
        shape: Vec<Extent>,
        /// Its strides.
        strides: Vec<Extent>,
        /// Its first element, counted from the beginning of the memory.
        offset: Extent,
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
            View::Diagonal { .. } => "diagonal",
            View::Windows { .. } => "unfold",
            View::Split { .. } => "split",
            View::Slices { .. } => "tensor_split",
            View::Unbind { .. } => "unbind",
            View::Strided { .. } => "as_strided",
            View::Alias => "alias",
            View::Detach => "detach",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        let parts = match self {
            View::Split { lengths, .. } => lengths.len(),
            View::Slices { bounds, .. } => bounds.len(),
            View::Unbind { dim } => {
                usize::try_from(x[*dim].as_fixed().unwrap_or(0)).unwrap_or(usize::MAX)
            }
            _ => 1,
        };
        grow(parts.saturating_mul(weight_of_rank(x.len())))?;
        let shapes = match self {
            View::Split { lengths, dim } => split(x, lengths, *dim)?,
            View::Slices { bounds, dim } => {
                let one = |[start, end]: &[Extent; 2]| slice(x, *dim, *start, *end, 1);
                bounds.iter().map(one).collect::<Result<_, _>>()?
            }
            View::Unbind { dim } => unbind(x, *dim)?,
            one => vec![one.shape(x)?],
        };
        Ok(shapes.into_iter().map(|shape| (*dtype, shape)).collect())
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
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
            View::Diagonal { offset, dims } => eager.diagonal(x, *offset, *dims),
            View::Windows { dim, size, step } => eager.windows(x, *dim, [*size, *step]),
            View::Split { lengths, dim } => {
                let parts = eager.split(x, lengths, *dim).into_iter();
                return Ok(parts.map(|part| viewed(x, part)).collect());
            }
            View::Slices { bounds, dim } => {
                let one =
                    |[start, end]: &[Extent; 2]| viewed(x, eager.slice(x, *dim, (*start, *end, 1)));
                return Ok(bounds.iter().map(one).collect());
            }
            View::Strided {
                shape,
                strides,
                offset,
            } => eager.as_strided(x, shape, (strides, *offset)),
            View::Unbind { dim } => {
                let parts = eager.unbind(x, *dim).into_iter();
                return Ok(parts.map(|part| viewed(x, part)).collect());
            }
            View::Alias => Tensor::clone(x),
            // No longer in its history.
            View::Detach => return Ok(vec![x.detached()]),
        };
        Ok(vec![viewed(x, one)])
    }
}

impl View {
    /// Slices between neighbouring places; `None` where one would have a negative length.
    fn slices(ends: &[Extent], dim: usize) -> Option<View> {
        let bounds = ends.windows(2).map(|pair| {
            let longest = pair[0].as_fixed().zip(pair[1].as_fixed());
            let end = longest.map_or(pair[1], |(start, end)| Extent::fixed(end.max(start)));
            sliced(pair[0], end, 1).map(|_| [pair[0], end])
        });
        let bounds = bounds.collect::<Option<Vec<_>>>()?;
        Some(View::Slices { bounds, dim })
    }

    /// The shape of the only result.
    fn shape(&self, x: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
        match self {
            View::Reshape(to) if numel(to).is_always(numel(x)) => Ok(to.clone()),
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
            View::Diagonal { offset, dims } => diagonal(x, *offset, *dims),
            View::Windows { dim, size, step } => {
                let length = x.get(*dim).copied();
                let length = length.filter(|n| n.as_fixed().is_none_or(|n| n >= *size));
                let room = length.and_then(|length| length.checked_sub(Extent::fixed(*size)));
                let count = room.and_then(|room| room.floor_div(*step)?.checked_add(Extent::ONE));
                let count = count.ok_or_else(|| {
                    format!("no windows of {size} fit dimension {dim} of {x:?}, {step} apart")
                })?;
                let mut result = x.to_vec();
                result[*dim] = count;
                result.push(Extent::fixed(*size));
                Ok(result)
            }
            View::Strided { shape, .. } => Ok(shape.clone()),
            View::Alias | View::Detach => Ok(x.to_vec()),
            View::Split { .. } | View::Slices { .. } | View::Unbind { .. } => {
                Err("it has several results".into())
            }
        }
    }
}

/// The shape of a diagonal: both dimensions go, and its length comes last.
pub(super) fn diagonal(
    x: &[Extent],
    offset: i64,
    dims: [usize; 2],
) -> Result<Vec<Extent>, Mismatch> {
    let problem = || format!("no diagonal {offset} of dimensions {dims:?} of {x:?}");
    let lengths = [x.get(dims[0]), x.get(dims[1])];
    let ([Some(rows), Some(columns)], false) = (lengths, dims[0] == dims[1]) else {
        return Err(problem());
    };
    let by = Extent::fixed(offset.unsigned_abs());
    let (rows, columns) = if offset >= 0 {
        (Some(*rows), columns.checked_sub(by))
    } else {
        (rows.checked_sub(by), Some(*columns))
    };
    let length = rows.zip(columns).and_then(|(rows, columns)| {
        rows.smaller(columns)
            .and_then(|length| length.larger(Extent::ZERO))
    });
    let mut shape = x.to_vec();
    shape.remove(dims[0].max(dims[1]));
    shape.remove(dims[0].min(dims[1]));
    shape.push(length.ok_or_else(problem)?);
    Ok(shape)
}

fn slice(
    x: &[Extent],
    dim: usize,
    start: Extent,
    end: Extent,
    step: u64,
) -> Result<Vec<Extent>, Mismatch> {
    let mut result = x.to_vec();
    let length = result
        .get_mut(dim)
        .ok_or_else(|| format!("no dimension {dim}"))?;
    let taken = sliced(start, end, step);
    *length = taken.ok_or_else(|| format!("cannot slice from {start} to {end} by {step}"))?;
    Ok(result)
}

/// How many elements a slice takes.
pub(super) fn sliced(start: Extent, end: Extent, step: u64) -> Option<Extent> {
    let span = end.checked_sub(start)?;
    // A slice that ends before it starts is empty, and no length.
    if span.as_fixed().is_none() && span.at(1) == 0 && span.at(1 << 20) == 0 {
        return None;
    }
    let last = Extent::fixed(step.checked_sub(1)?);
    span.checked_add(last)?.floor_div(step)
}

fn select(x: &[Extent], dim: usize, index: Extent) -> Result<Vec<Extent>, Mismatch> {
    let mut result = x.to_vec();
    let length = *x
        .get(dim)
        .ok_or_else(|| format!("no dimension {dim} in {x:?}"))?;
    if let (Some(length), Some(index)) = (length.as_fixed(), index.as_fixed())
        && index >= length
    {
        return Err(format!("no element {index} in dimension {dim} of {x:?}"));
    }
    result.remove(dim);
    Ok(result)
}

fn split(x: &[Extent], lengths: &[Extent], dim: usize) -> Result<Vec<Vec<Extent>>, Mismatch> {
    let mut all = lengths.iter();
    let total = all.try_fold(Extent::ZERO, |sum, n| sum.checked_add(*n));
    if !matches!((x.get(dim), total), (Some(length), Some(total)) if length.is_always(total)) {
        return Err(format!(
            "cannot split dimension {dim} of {x:?} into {lengths:?}"
        ));
    }
    let part = |length: &Extent| {
        let mut result = x.to_vec();
        result[dim] = *length;
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
