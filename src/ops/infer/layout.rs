//! Shapes of what arranges, takes apart, joins or adds up elements.

use crate::ops::Op;
use crate::shape::{Extent, Mismatch, broadcast, numel};

/// The shape of the only result.
pub(super) fn shape(op: &Op, operands: &[&[Extent]]) -> Result<Vec<Extent>, Mismatch> {
    let x = operands[0];
    match op {
        Op::Reshape(to) if numel(to) == numel(x) => Ok(to.clone()),
        Op::Reshape(to) => Err(format!("{x:?} has other elements than {to:?}")),
        Op::Permute(order) => {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            if sorted.into_iter().ne(0..x.len()) {
                return Err(format!("{order:?} is no order of the dimensions of {x:?}"));
            }
            Ok(order.iter().map(|i| x[*i]).collect())
        }
        Op::Unsqueeze(dim) => {
            let mut result = x.to_vec();
            if *dim > result.len() {
                return Err(format!("no place {dim} in {result:?}"));
            }
            result.insert(*dim, Extent::ONE);
            Ok(result)
        }
        Op::Expand(to) if broadcast(x, to)? == *to => Ok(to.clone()),
        Op::Expand(to) => Err(format!("{x:?} does not expand to {to:?}")),
        Op::Slice {
            dim,
            start,
            end,
            step,
        } => slice(x, *dim, *start, *end, *step),
        Op::Select { dim, index } => select(x, *dim, *index),
        Op::Windows { dim, size, step } => {
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
        Op::Gather { dim } => gather(x, operands[1], *dim),
        Op::Reduce { dims, keep, .. } => reduce(x, dims, *keep),
        Op::Cat { dim } => join(operands, *dim),
        Op::Stack { dim } => stack(operands, *dim),
        Op::Repeat(times) => repeat(x, times),
        Op::Roll { .. } | Op::Flip | Op::Contiguous | Op::Clone | Op::Alias | Op::Detach => {
            Ok(x.to_vec())
        }
        _ => unreachable!("`infer` sends only layouts here"),
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

fn gather(x: &[Extent], index: &[Extent], dim: usize) -> Result<Vec<Extent>, Mismatch> {
    if dim >= x.len() || index.len() != x.len() {
        return Err(format!(
            "indices {index:?} do not fit {x:?} along dimension {dim}"
        ));
    }
    Ok(index.to_vec())
}

pub(super) fn split(
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

pub(super) fn unbind(x: &[Extent], dim: usize) -> Result<Vec<Vec<Extent>>, Mismatch> {
    let Some(length) = x.get(dim).and_then(|length| length.as_fixed()) else {
        return Err(format!("cannot unbind dimension {dim} of {x:?}"));
    };
    let mut part = x.to_vec();
    part.remove(dim);
    Ok((0..length).map(|_| part.clone()).collect())
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

fn repeat(x: &[Extent], times: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let added = times.len().checked_sub(x.len());
    let added = added.ok_or_else(|| format!("{times:?} does not say how often to repeat {x:?}"))?;
    let lengths = times.iter().enumerate().map(|(i, times)| {
        let length = i.checked_sub(added).map_or(Extent::ONE, |at| x[at]);
        times.checked_mul(length)
    });
    let result = lengths.collect::<Option<Vec<_>>>();
    result.ok_or_else(|| format!("{x:?} repeated {times:?} times is too large"))
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

pub(super) fn reduce(x: &[Extent], dims: &[usize], keep: bool) -> Result<Vec<Extent>, Mismatch> {
    if let Some(dim) = dims.iter().find(|dim| **dim >= x.len()) {
        return Err(format!("no dimension {dim} in {x:?}"));
    }
    let lengths = x.iter().enumerate();
    Ok(if keep {
        lengths
            .map(|(i, n)| if dims.contains(&i) { Extent::ONE } else { *n })
            .collect()
    } else {
        lengths
            .filter(|(i, _)| !dims.contains(i))
            .map(|(_, n)| *n)
            .collect()
    })
}
