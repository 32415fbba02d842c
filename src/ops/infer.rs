//! Shapes and dtypes of results from those of operands.

mod layout;

use crate::ops::Normalize;
use crate::ops::Resample;
use crate::ops::{Op, Pool1d};
use crate::shape::DType;
use crate::shape::Extent;
use crate::shape::Window;
use crate::shape::result_type;
use crate::shape::{Mismatch, broadcast};

/// A result's dtype and shape.
pub(crate) type Typed = (DType, Vec<Extent>);

/// The results of `op` on operands of these types.
pub(crate) fn infer(op: &Op, operands: &[Typed]) -> Result<Vec<Typed>, Mismatch> {
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
            Ok(vec![(result_type(&scalars(operands), None), result)])
        }
        Op::Pointwise(pointwise) => {
            let result = shapes
                .iter()
                .try_fold(Vec::new(), |result, shape| broadcast(&result, shape))?;
            Ok(vec![(pointwise.result_type(&scalars(operands)), result)])
        }
        Op::Indexed(indexed) => indexed.infer(operands),
        Op::Loss(loss) => Ok(vec![loss.infer(&operands[0], &operands[1])?]),
        Op::GroupedMatmul => grouped(operands),
        Op::Opaque(results) => Ok(results.clone()),
        Op::Create(create) => Ok(vec![(create.recorded(), create.shape.clone())]),
        Op::Softmax { dtype, .. } => Ok(vec![(dtype.unwrap_or(operands[0].0), shapes[0].to_vec())]),
        Op::Cast(dtype) => Ok(vec![(*dtype, shapes[0].to_vec())]),
        Op::Arange(end) => Ok(vec![(DType::Int64, vec![*end])]),
        // A sum counts: of integers and truth values it is int64.
        Op::Reduce { .. } if !operands[0].0.is_float() => {
            Ok(vec![(DType::Int64, shape(op, &shapes)?)])
        }
        Op::Resample(resample @ Resample::AdaptiveMaxPool(_)) => {
            let shape = resample.shape(shapes[0])?;
            Ok(vec![(operands[0].0, shape.clone()), (DType::Int64, shape)])
        }
        Op::Addcmul => {
            let factors = broadcast(shapes[1], shapes[2])?;
            let types = operands.iter().map(|(dtype, _)| *dtype);
            let dtype = types.reduce(DType::promote).unwrap_or(DType::Float32);
            Ok(vec![(dtype, broadcast(shapes[0], &factors)?)])
        }
        Op::Split { lengths, dim } => {
            let parts = layout::split(shapes[0], lengths, *dim)?.into_iter();
            Ok(parts.map(|part| (operands[0].0, part)).collect())
        }
        Op::Unbind { dim } => {
            let parts = layout::unbind(shapes[0], *dim)?.into_iter();
            Ok(parts.map(|part| (operands[0].0, part)).collect())
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
        Op::ConvTranspose2d(window) => convolve_transposed(window, x, operands[1]),
        Op::Matmul | Op::Bmm => matrices(x, operands[1]),
        Op::Baddbmm { .. } => matrices(operands[1], operands[2]),
        Op::BatchNorm { .. } => batch_norm(operands),
        Op::LayerNorm { dims, .. } | Op::RmsNorm { dims } => layer_norm(operands, *dims),
        Op::MaxPool2d(window) => pool(window, x),
        Op::AdaptiveAvgPool2d { output } => {
            let [n, c, _, _] = x else {
                return Err(format!(
                    "the input {x:?} is not [batch, channels, height, width]"
                ));
            };
            Ok(vec![*n, *c, output[0].into(), output[1].into()])
        }
        Op::Pool1d(pool) => {
            let [n, c, length] = x else {
                return Err(format!("the input {x:?} is not [batch, channels, length]"));
            };
            let length = match pool {
                Pool1d::AdaptiveAverage(output) => *output,
                Pool1d::Average(window) | Pool1d::Max(window) => window.side(1, *length)?,
            };
            Ok(vec![*n, *c, length.into()])
        }
        Op::Resample(resample) => resample.shape(x),
        Op::Einsum(einsum) => einsum.shape(x, operands[1]),
        Op::VectorNorm { dims, keep } => layout::reduce(x, dims, *keep),
        Op::Normalize(normalize) => normalize.shape(operands),
        Op::Embedding { .. } => {
            let [_, width] = x else {
                return Err("the weight is not a matrix".into());
            };
            Ok(operands[1].iter().copied().chain([*width]).collect())
        }
        Op::Attention { grouped, .. } => attend(operands, *grouped),
        Op::CrossEntropy => cross_entropy(x, operands[1]),
        Op::Unary { .. }
        | Op::MulScalar(_)
        | Op::AddScalar(..)
        | Op::PowScalar(_)
        | Op::Dropout { .. }
        | Op::NoiseDropout { .. }
        | Op::Prelu => Ok(x.to_vec()),
        Op::Reshape(_)
        | Op::Permute(_)
        | Op::Unsqueeze(_)
        | Op::Expand(_)
        | Op::Slice { .. }
        | Op::Select { .. }
        | Op::Windows { .. }
        | Op::Gather { .. }
        | Op::Reduce { .. }
        | Op::Cat { .. }
        | Op::Stack { .. }
        | Op::Roll { .. }
        | Op::Flip
        | Op::Repeat(_)
        | Op::Contiguous
        | Op::Clone
        | Op::Alias
        | Op::Detach => layout::shape(op, operands),
        Op::Pointwise(_)
        | Op::Loss(_)
        | Op::GroupedMatmul
        | Op::Opaque(_)
        | Op::Indexed(_)
        | Op::Create(_)
        | Op::Softmax { .. }
        | Op::Addcmul
        | Op::Addmm
        | Op::Add(_)
        | Op::Mul
        | Op::Cast(_)
        | Op::Arange(_)
        | Op::Split { .. }
        | Op::Unbind { .. } => unreachable!("these have other types or several results"),
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

fn grouped(operands: &[Typed]) -> Result<Vec<Typed>, Mismatch> {
    let ([rows, inner], [_, inner_too, columns]) = (&*operands[0].1, &*operands[1].1) else {
        return Err("it multiplies a matrix by a stack of matrices".into());
    };
    if inner != inner_too {
        return Err(format!("inner sizes {inner} and {inner_too} differ"));
    }
    Ok(vec![(operands[1].0, vec![*rows, *columns])])
}

/// Types of operands, and whether each has no dimensions.
fn scalars(operands: &[Typed]) -> Vec<(DType, bool)> {
    let scalar = |(dtype, shape): &Typed| (*dtype, shape.is_empty());
    operands.iter().map(scalar).collect()
}

/// Attention of other than four dimensions: of equally many matrices.
fn attend_in_stacks(operands: &[&[Extent]]) -> Result<Vec<Extent>, Mismatch> {
    let problem = || format!("{operands:?} do not fit together");
    let split = |shape: &[Extent]| {
        let (lead, matrix) = shape.split_at_checked(shape.len().checked_sub(2)?)?;
        Some((lead.to_vec(), matrix[0], matrix[1]))
    };
    let all = operands.iter().take(3).map(|shape| split(shape));
    let all = all.collect::<Option<Vec<_>>>().ok_or_else(problem)?;
    let [
        (lead, rows, width),
        (of_keys, keys, key_width),
        (of_values, values, value_width),
    ] = all.try_into().map_err(|_| problem())?;
    if lead != of_keys || lead != of_values || width != key_width || keys != values {
        return Err(problem());
    }
    let scores = [&lead[..], &[rows, keys]].concat();
    if let Some(mask) = operands.get(3)
        && (mask.is_empty() || broadcast(mask, &scores)? != scores)
    {
        return Err(format!("the mask {mask:?} does not fit scores {scores:?}"));
    }
    Ok([&lead[..], &[rows, value_width]].concat())
}

fn attend(operands: &[&[Extent]], grouped: bool) -> Result<Vec<Extent>, Mismatch> {
    let [q, k, v] = [operands[0], operands[1], operands[2]];
    if q.len() != 4 {
        return attend_in_stacks(operands);
    }
    let heads = |shape: &[Extent]| shape[1].as_fixed().filter(|heads| *heads > 0);
    let fits = [q, k, v].iter().all(|shape| shape.len() == 4)
        && q[0] == k[0]
        && k[..3] == v[..3]
        && q[3] == k[3]
        && match (heads(q), heads(k)) {
            // One head is broadcast to all; several are repeated only where that is asked for.
            (Some(of_q), Some(of_k)) => {
                of_q == of_k || of_k == 1 || (grouped && of_q.is_multiple_of(of_k))
            }
            _ => q[1] == k[1],
        };
    if !fits {
        return Err(format!(
            "query {q:?}, key {k:?} and value {v:?} do not fit together"
        ));
    }
    if let Some(mask) = operands.get(3) {
        let scores = [q[0], q[1], q[2], k[2]];
        if mask.is_empty() || broadcast(mask, &scores)? != scores {
            return Err(format!("the mask {mask:?} does not fit scores {scores:?}"));
        }
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
        Op::Linear | Op::Conv2d(_) | Op::ConvTranspose2d(_) => (2, 3),
        Op::Addmm | Op::Addcmul | Op::Baddbmm { .. } | Op::GroupedMatmul => (3, 3),
        Op::Normalize(Normalize::Batch { .. }) => (1, 5),
        Op::RmsNorm { .. } => (1, 2),
        Op::Attention { .. } => (3, 4),
        Op::BatchNorm { .. } => (5, 5),
        Op::Add(_)
        | Op::Mul
        | Op::Matmul
        | Op::Bmm
        | Op::Prelu
        | Op::Einsum(_)
        | Op::Gather { .. }
        | Op::Embedding { .. }
        | Op::Loss(_)
        | Op::CrossEntropy => (2, 2),
        Op::Cat { .. } | Op::Stack { .. } => (1, usize::MAX),
        Op::Arange(_) => (0, 0),
        Op::Opaque(_) => (0, usize::MAX),
        Op::Pointwise(_) | Op::LayerNorm { .. } | Op::Normalize(_) => (1, 3),
        Op::Indexed(indexed) => indexed.arity(),
        Op::Create(_) => (0, 1),
        Op::Unary { .. }
        | Op::Softmax { .. }
        | Op::AddScalar(..)
        | Op::MulScalar(_)
        | Op::PowScalar(_)
        | Op::Dropout { .. }
        | Op::NoiseDropout { .. }
        | Op::VectorNorm { .. }
        | Op::MaxPool2d(_)
        | Op::Pool1d(_)
        | Op::AdaptiveAvgPool2d { .. }
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Unsqueeze(_)
        | Op::Expand(_)
        | Op::Slice { .. }
        | Op::Windows { .. }
        | Op::Select { .. }
        | Op::Reduce { .. }
        | Op::Split { .. }
        | Op::Unbind { .. }
        | Op::Roll { .. }
        | Op::Flip
        | Op::Repeat(_)
        | Op::Contiguous
        | Op::Clone
        | Op::Alias
        | Op::Detach
        | Op::Cast(_)
        | Op::Resample(_) => (1, 1),
    }
}

/// A convolution of one dimension is one of planes of height one.
fn convolve(window: &Window, x: &[Extent], w: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let ([n, channels, length], [out, per_group, taps]) = (x, w) else {
        return convolve_planes(window, x, w);
    };
    let one = Extent::ONE;
    let plane = [*n, *channels, one, *length];
    let mut shape = convolve_planes(window, &plane, &[*out, *per_group, one, *taps])?;
    shape.remove(2);
    Ok(shape)
}

fn convolve_planes(window: &Window, x: &[Extent], w: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
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
        window.side(0, *height)?.into(),
        window.side(1, *width)?.into(),
    ])
}

fn convolve_transposed(
    window: &Window,
    x: &[Extent],
    w: &[Extent],
) -> Result<Vec<Extent>, Mismatch> {
    let ([n, channels, height, width], [into, per_group, kh, kw]) = (x, w) else {
        return Err(format!(
            "input {x:?} and weight {w:?} must have four dimensions"
        ));
    };
    if channels != into {
        return Err(format!(
            "the input has {channels} channels, the weight takes {into}"
        ));
    }
    if [kh.as_fixed(), kw.as_fixed()] != window.kernel.map(Some) {
        return Err(format!(
            "the weight is {kh} x {kw}, the kernel {:?}",
            window.kernel
        ));
    }
    let side = |axis: usize, length: Extent| {
        let output = length
            .as_fixed()
            .and_then(|n| window.transposed_output(axis, n));
        output
            .map(Extent::fixed)
            .ok_or_else(|| format!("nothing is left of a side of {length}"))
    };
    let out = *per_group * Extent::fixed(window.groups);
    Ok(vec![*n, out, side(0, *height)?, side(1, *width)?])
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
        window.side(0, *height)?.into(),
        window.side(1, *width)?.into(),
    ])
}

#[cfg(test)]
mod tests;
