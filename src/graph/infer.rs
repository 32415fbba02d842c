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
    let typed = |index: usize| &operands[index];
    let shape = |index: usize| operands[index].1.as_slice();
    let same = |shape: Vec<Extent>| Ok(vec![(operands[0].0, shape)]);
    match op {
        Op::Linear => {
            let (x, w) = (shape(0), shape(1));
            let [out, features] = w else {
                return Err(format!("the weight {w:?} is not a matrix"));
            };
            let Some((last, lead)) = x.split_last() else {
                return Err("the input is a scalar".into());
            };
            if last != features {
                return Err(format!(
                    "the input has {last} features, the weight takes {features}"
                ));
            }
            let mut result = lead.to_vec();
            result.push(*out);
            same(result)
        }
        Op::Addmm => {
            let ([m, k], [k2, n]) = (shape(1), shape(2)) else {
                return Err("both factors must be matrices".into());
            };
            if k != k2 {
                return Err(format!("inner sizes {k} and {k2} differ"));
            }
            Ok(vec![(typed(1).0, vec![*m, *n])])
        }
        Op::Conv2d(window) => convolve(window, shape(0), shape(1)).and_then(same),
        Op::BatchNorm { .. } => {
            let [_, channels, ..] = shape(0) else {
                return Err("the input has no channels".into());
            };
            if let Some(other) = (1..operands.len()).find(|i| shape(*i) != [*channels]) {
                return Err(format!(
                    "operand {other} is {:?}, not [{channels}]",
                    shape(other)
                ));
            }
            same(shape(0).to_vec())
        }
        Op::LayerNorm { dims, .. } => {
            let x = shape(0);
            if *dims == 0 || *dims > x.len() {
                return Err(format!("cannot normalize {dims} dimensions of {x:?}"));
            }
            if let Some(other) = (1..operands.len()).find(|i| shape(*i) != &x[x.len() - dims..]) {
                return Err(format!(
                    "operand {other} is {:?}, not the last {dims} of {x:?}",
                    shape(other)
                ));
            }
            same(x.to_vec())
        }
        Op::Unary { .. }
        | Op::MulScalar(_)
        | Op::AddScalar(..)
        | Op::PowScalar(_)
        | Op::Dropout { .. }
        | Op::Contiguous
        | Op::Alias => same(shape(0).to_vec()),
        Op::Add(_) | Op::Mul => {
            let result = broadcast(shape(0), shape(1))?;
            Ok(vec![(typed(0).0.promote(typed(1).0), result)])
        }
        Op::MaxPool2d(window) => pool(window, shape(0)).and_then(same),
        Op::AdaptiveAvgPool2d { output } => {
            let [n, c, _, _] = shape(0) else {
                return Err(format!(
                    "the input {:?} is not [batch, channels, height, width]",
                    shape(0)
                ));
            };
            same(vec![*n, *c, output[0].into(), output[1].into()])
        }
        Op::Embedding => {
            let [_, width] = shape(0) else {
                return Err("the weight is not a matrix".into());
            };
            let mut result = shape(1).to_vec();
            result.push(*width);
            same(result)
        }
        Op::Reshape(to) => {
            if numel(to) != numel(shape(0)) {
                return Err(format!("{:?} has other elements than {to:?}", shape(0)));
            }
            same(to.clone())
        }
        Op::Transpose(a, b) => {
            let mut result = shape(0).to_vec();
            if *a >= result.len() || *b >= result.len() {
                return Err(format!("no dimensions {a} and {b} in {result:?}"));
            }
            result.swap(*a, *b);
            same(result)
        }
        Op::Unsqueeze(dim) => {
            let mut result = shape(0).to_vec();
            if *dim > result.len() {
                return Err(format!("no place {dim} in {result:?}"));
            }
            result.insert(*dim, Extent::ONE);
            same(result)
        }
        Op::Expand(to) => {
            if broadcast(shape(0), to)? != *to {
                return Err(format!("{:?} does not expand to {to:?}", shape(0)));
            }
            same(to.clone())
        }
        Op::Slice { dim, start, end } => {
            let mut result = shape(0).to_vec();
            let length = result
                .get_mut(*dim)
                .ok_or_else(|| format!("no dimension {dim}"))?;
            *length = match (end.as_fixed(), *start) {
                (_, 0) => *end,
                (Some(end), start) if start <= end => Extent::fixed(end - start),
                _ => return Err(format!("cannot slice from {start} to {end}")),
            };
            same(result)
        }
        Op::Split { size, dim } => {
            let x = shape(0);
            let length = x.get(*dim).and_then(|length| length.as_fixed());
            let Some(length) = length.filter(|_| *size > 0) else {
                return Err(format!("cannot split dimension {dim} of {x:?} by {size}"));
            };
            let part = |from: u64| {
                let mut result = x.to_vec();
                result[*dim] = (*size).min(length - from).into();
                (typed(0).0, result)
            };
            Ok((0..length.div_ceil(*size))
                .map(|i| part(i * size))
                .collect())
        }
        Op::Cat { dim } => {
            let mut result = shape(0).to_vec();
            if *dim >= result.len() {
                return Err(format!("no dimension {dim} in {result:?}"));
            }
            for (index, (_, other)) in operands.iter().enumerate().skip(1) {
                let fits = other.len() == result.len()
                    && other
                        .iter()
                        .zip(&result)
                        .enumerate()
                        .all(|(i, (a, b))| i == *dim || a == b);
                if !fits {
                    return Err(format!(
                        "operand {index} is {other:?}, which does not join {result:?}"
                    ));
                }
                result[*dim] = result[*dim] + other[*dim];
            }
            same(result)
        }
        Op::Cast(dtype) => Ok(vec![(*dtype, shape(0).to_vec())]),
        Op::PadLast { before, after } => {
            let mut result = shape(0).to_vec();
            let last = result.last_mut().ok_or("the input is a scalar")?;
            *last = *last + Extent::fixed(before + after);
            same(result)
        }
        Op::Arange(end) => Ok(vec![(DType::Int64, vec![*end])]),
        Op::Attention { grouped, .. } => {
            let (q, k, v) = (shape(0), shape(1), shape(2));
            let fits = q.len() == 4
                && k.len() == 4
                && v.len() == 4
                && q[0] == k[0]
                && k[0] == v[0]
                && k[1] == v[1]
                && k[2] == v[2]
                && q[3] == k[3]
                && (*grouped || q[1] == k[1]);
            if !fits {
                return Err(format!(
                    "query {q:?}, key {k:?} and value {v:?} do not fit together"
                ));
            }
            same(vec![q[0], q[1], q[2], v[3]])
        }
        Op::CrossEntropy => {
            let (x, y) = (shape(0), shape(1));
            let expected: Vec<Extent> = x
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != 1)
                .map(|(_, n)| *n)
                .collect();
            if x.len() < 2 || expected != y {
                return Err(format!("targets {y:?} do not fit predictions {x:?}"));
            }
            same(Vec::new())
        }
    }
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
