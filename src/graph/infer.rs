//! Shapes and dtypes of results from those of operands.

use super::dtype::DType;
use super::extent::{Extent, numel};
use super::op::{Op, Window};

/// A result's dtype and shape.
pub(super) type Typed = (DType, Vec<Extent>);

/// Why the operands do not fit; the text completes "cannot apply conv2d: …".
pub(super) type Mismatch = String;

/// The results of `op` on operands of these types.
pub(super) fn infer(op: &Op, operands: &[Typed]) -> Result<Vec<Typed>, Mismatch> {
    let (low, high) = arity(op);
    if operands.len() < low || operands.len() > high {
        return Err(format!(
            "takes {low} to {high} tensors, not {}",
            operands.len()
        ));
    }
    let shapes: Vec<&[Extent]> = operands.iter().map(|(_, shape)| shape.as_slice()).collect();
    match op {
        Op::Addmm => Ok(vec![(operands[1].0, product(shapes[1], shapes[2])?)]),
        Op::Add(_) | Op::Mul => {
            let result = broadcast(shapes[0], shapes[1])?;
            Ok(vec![(operands[0].0.promote(operands[1].0), result)])
        }
        Op::Cast(dtype) => Ok(vec![(*dtype, shapes[0].to_vec())]),
        Op::Arange(end) => Ok(vec![(DType::Int64, vec![*end])]),
        Op::Split { size, dim } => {
            let parts = split(shapes[0], *size, *dim)?;
            Ok(parts
                .into_iter()
                .map(|part| (operands[0].0, part))
                .collect())
        }
        _ => Ok(vec![(operands[0].0, shape(op, &shapes)?)]),
    }
}

/// The shape of the only result, whose type is the first operand's.
fn shape(op: &Op, operands: &[&[Extent]]) -> Result<Vec<Extent>, Mismatch> {
    let x = operands[0];
    match op {
        Op::Linear => linear(x, operands[1]),
        Op::Conv2d(window) => convolve(window, x, operands[1]),
        Op::BatchNorm { .. } => batch_norm(operands),
        Op::LayerNorm { dims, .. } => layer_norm(operands, *dims),
        Op::MaxPool2d(window) => pool(window, x),
        Op::AdaptiveAvgPool2d { output } => {
            let [n, c, _, _] = x else {
                return Err(format!(
                    "the input {x:?} is not [batch, channels, height, width]"
                ));
            };
            Ok(vec![*n, *c, output[0].into(), output[1].into()])
        }
        Op::Embedding => {
            let [_, width] = x else {
                return Err("the weight is not a matrix".into());
            };
            Ok(operands[1].iter().copied().chain([*width]).collect())
        }
        Op::Reshape(to) if numel(to) == numel(x) => Ok(to.clone()),
        Op::Reshape(to) => Err(format!("{x:?} has other elements than {to:?}")),
        Op::Transpose(a, b) => {
            let mut result = x.to_vec();
            if *a >= result.len() || *b >= result.len() {
                return Err(format!("no dimensions {a} and {b} in {result:?}"));
            }
            result.swap(*a, *b);
            Ok(result)
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
        Op::Slice { dim, start, end } => slice(x, *dim, *start, *end),
        Op::Cat { dim } => join(operands, *dim),
        Op::PadLast { before, after } => {
            let (last, lead) = x.split_last().ok_or("the input is a scalar")?;
            Ok(lead
                .iter()
                .copied()
                .chain([*last + Extent::fixed(before + after)])
                .collect())
        }
        Op::Attention { grouped, .. } => attend(x, operands[1], operands[2], *grouped),
        Op::CrossEntropy => cross_entropy(x, operands[1]),
        Op::Unary { .. }
        | Op::MulScalar(_)
        | Op::AddScalar(..)
        | Op::PowScalar(_)
        | Op::Dropout { .. }
        | Op::Contiguous
        | Op::Alias => Ok(x.to_vec()),
        Op::Addmm | Op::Add(_) | Op::Mul | Op::Cast(_) | Op::Arange(_) | Op::Split { .. } => {
            unreachable!("these have other types or several results")
        }
    }
}

fn linear(x: &[Extent], weight: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let [out, features] = weight else {
        return Err(format!("the weight {weight:?} is not a matrix"));
    };
    let (last, lead) = x.split_last().ok_or("the input is a scalar")?;
    if last != features {
        return Err(format!(
            "the input has {last} features, the weight takes {features}"
        ));
    }
    Ok(lead.iter().copied().chain([*out]).collect())
}

fn product(left: &[Extent], right: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let ([rows, inner], [inner_too, columns]) = (left, right) else {
        return Err("both factors must be matrices".into());
    };
    if inner != inner_too {
        return Err(format!("inner sizes {inner} and {inner_too} differ"));
    }
    Ok(vec![*rows, *columns])
}

fn batch_norm(operands: &[&[Extent]]) -> Result<Vec<Extent>, Mismatch> {
    let [_, channels, ..] = operands[0] else {
        return Err("the input has no channels".into());
    };
    let other = operands
        .iter()
        .enumerate()
        .skip(1)
        .find(|(_, shape)| **shape != [*channels]);
    match other {
        Some((i, shape)) => Err(format!("operand {i} is {shape:?}, not [{channels}]")),
        None => Ok(operands[0].to_vec()),
    }
}

fn layer_norm(operands: &[&[Extent]], dims: usize) -> Result<Vec<Extent>, Mismatch> {
    let x = operands[0];
    if dims == 0 || dims > x.len() {
        return Err(format!("cannot normalize {dims} dimensions of {x:?}"));
    }
    let last = &x[x.len() - dims..];
    match operands
        .iter()
        .enumerate()
        .skip(1)
        .find(|(_, shape)| **shape != last)
    {
        Some((i, shape)) => Err(format!(
            "operand {i} is {shape:?}, not the last {dims} of {x:?}"
        )),
        None => Ok(x.to_vec()),
    }
}

fn slice(x: &[Extent], dim: usize, start: u64, end: Extent) -> Result<Vec<Extent>, Mismatch> {
    let mut result = x.to_vec();
    let length = result
        .get_mut(dim)
        .ok_or_else(|| format!("no dimension {dim}"))?;
    *length = match (end.as_fixed(), start) {
        (_, 0) => end,
        (Some(end), start) if start <= end => Extent::fixed(end - start),
        _ => return Err(format!("cannot slice from {start} to {end}")),
    };
    Ok(result)
}

fn split(x: &[Extent], size: u64, dim: usize) -> Result<Vec<Vec<Extent>>, Mismatch> {
    let length = x.get(dim).and_then(|length| length.as_fixed());
    let Some(length) = length.filter(|_| size > 0) else {
        return Err(format!("cannot split dimension {dim} of {x:?} by {size}"));
    };
    let part = |index: u64| {
        let mut result = x.to_vec();
        result[dim] = size.min(length - index * size).into();
        result
    };
    Ok((0..length.div_ceil(size)).map(part).collect())
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

fn attend(
    q: &[Extent],
    k: &[Extent],
    v: &[Extent],
    grouped: bool,
) -> Result<Vec<Extent>, Mismatch> {
    let fits = [q, k, v].iter().all(|shape| shape.len() == 4)
        && q[0] == k[0]
        && k[..3] == v[..3]
        && q[3] == k[3]
        && (grouped || q[1] == k[1]);
    if !fits {
        return Err(format!(
            "query {q:?}, key {k:?} and value {v:?} do not fit together"
        ));
    }
    Ok(vec![q[0], q[1], q[2], v[3]])
}

fn cross_entropy(x: &[Extent], target: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let others = x
        .iter()
        .enumerate()
        .filter(|(i, _)| *i != 1)
        .map(|(_, length)| *length);
    if x.len() < 2 || others.collect::<Vec<_>>() != target {
        return Err(format!("targets {target:?} do not fit predictions {x:?}"));
    }
    Ok(Vec::new())
}

/// Fewest and most operands.
fn arity(op: &Op) -> (usize, usize) {
    match op {
        Op::Linear | Op::Conv2d(_) => (2, 3),
        Op::Addmm | Op::LayerNorm { .. } | Op::Attention { .. } => (3, 3),
        Op::BatchNorm { .. } => (5, 5),
        Op::Add(_) | Op::Mul | Op::Embedding | Op::CrossEntropy => (2, 2),
        Op::Cat { .. } => (1, usize::MAX),
        Op::Arange(_) => (0, 0),
        Op::Unary { .. }
        | Op::AddScalar(..)
        | Op::MulScalar(_)
        | Op::PowScalar(_)
        | Op::Dropout { .. }
        | Op::MaxPool2d(_)
        | Op::AdaptiveAvgPool2d { .. }
        | Op::Reshape(_)
        | Op::Transpose(..)
        | Op::Unsqueeze(_)
        | Op::Expand(_)
        | Op::Slice { .. }
        | Op::Split { .. }
        | Op::Contiguous
        | Op::Alias
        | Op::Cast(_)
        | Op::PadLast { .. } => (1, 1),
    }
}

/// The common shape, by PyTorch's broadcasting rule.
pub(crate) fn broadcast(a: &[Extent], b: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let rank = a.len().max(b.len());
    let length = |shape: &[Extent], i: usize| {
        (i + shape.len())
            .checked_sub(rank)
            .map_or(Extent::ONE, |at| shape[at])
    };
    (0..rank)
        .map(|i| match (length(a, i), length(b, i)) {
            (x, y) if x == y => Ok(x),
            (Extent::ONE, y) => Ok(y),
            (x, Extent::ONE) => Ok(x),
            _ => Err(format!("{a:?} and {b:?} do not broadcast")),
        })
        .collect()
}

fn convolve(window: &Window, x: &[Extent], w: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let ([n, channels, height, width], [out, per_group, kh, kw]) = (x, w) else {
        return Err(format!(
            "input {x:?} and weight {w:?} must have four dimensions"
        ));
    };
    if per_group.checked_mul(window.groups.into()) != Some(*channels) {
        return Err(format!(
            "the input has {channels} channels, the weight takes {per_group} in each of {} groups",
            window.groups
        ));
    }
    if [kh.as_fixed(), kw.as_fixed()] != window.kernel.map(Some) {
        return Err(format!(
            "the weight is {kh} x {kw}, the kernel {:?}",
            window.kernel
        ));
    }
    Ok(vec![
        *n,
        *out,
        slide(window, 0, *height)?,
        slide(window, 1, *width)?,
    ])
}

fn pool(window: &Window, x: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let [n, channels, height, width] = x else {
        return Err(format!(
            "the input {x:?} is not [batch, channels, height, width]"
        ));
    };
    Ok(vec![
        *n,
        *channels,
        slide(window, 0, *height)?,
        slide(window, 1, *width)?,
    ])
}

fn slide(window: &Window, axis: usize, length: Extent) -> Result<Extent, Mismatch> {
    let side = ["height", "width"][axis];
    let fixed = length
        .as_fixed()
        .ok_or_else(|| format!("the {side} depends on the batch"))?;
    window
        .output(axis, fixed)
        .map(Extent::fixed)
        .ok_or_else(|| {
            format!(
                "a kernel of {} with padding {} does not fit a {side} of {fixed}",
                window.kernel[axis], window.padding[axis]
            )
        })
}

#[cfg(test)]
mod tests;
