//! Reading views.

use super::View;
use crate::aten::{Arguments, Length};
use crate::ops::{Read, Reader};
use crate::shape::{Extent, numel};

/// Operators by their names.
pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.view.default", read_view),
    ("aten._unsafe_view.default", read_view),
    ("aten.reshape.default", read_view),
    ("aten.flatten.using_ints", read_view),
    ("aten.unflatten.int", read_view),
    ("aten.squeeze.default", read_view),
    ("aten.squeeze.dim", read_view),
    ("aten.squeeze.dims", read_view),
    ("aten.unsqueeze.default", read_view),
    ("aten.transpose.int", read_view),
    ("aten.swapdims.default", read_view),
    ("aten.swapaxes.default", read_view),
    ("aten.t.default", read_view),
    ("aten.numpy_T.default", read_view),
    ("aten.permute.default", read_view),
    ("aten.movedim.int", read_view),
    ("aten.expand.default", read_view),
    ("aten.broadcast_to.default", read_view),
    ("aten.alias.default", read_view),
    ("aten.detach.default", read_view),
    ("aten.detach_.default", read_view),
    ("aten.slice.Tensor", read_part),
    ("aten.select.int", read_part),
    ("aten.narrow.default", read_part),
    ("aten.split.Tensor", read_part),
    ("aten.chunk.default", read_part),
    ("aten.split.sizes", read_part),
    ("aten.split_with_sizes.default", read_part),
    ("aten.unfold.default", read_part),
    ("aten.unbind.int", read_part),
    ("aten.view_as.default", reshape_as),
    ("aten.reshape_as.default", reshape_as),
    ("aten.expand_as.default", |args| {
        let shape = args.shape(args.tensor("other")?);
        Ok((View::Expand(shape).into(), args.all(&["self"])?))
    }),
];

fn reshape_as(args: &Arguments<'_>) -> Result<Read, String> {
    let shape = args.shape(args.tensor("other")?);
    Ok((View::Reshape(shape).into(), args.all(&["self"])?))
}

fn read_view(args: &Arguments<'_>) -> Result<Read, String> {
    let input = args.tensor("self")?;
    Ok((view(args, &args.shape(input))?.into(), vec![input]))
}

fn read_part(args: &Arguments<'_>) -> Result<Read, String> {
    let input = args.tensor("self")?;
    Ok((part(args, &args.shape(input))?.into(), vec![input]))
}

/// Most parts that a tensor may be taken apart into.
const MOST_PARTS: u64 = 1 << 16;

/// The same elements under another shape.
fn view(args: &Arguments<'_>, from: &[Extent]) -> Result<View, String> {
    let rank = from.len();
    let without = |dims: &[usize]| {
        let gone = |i: usize| dims.contains(&i) && from[i] == Extent::ONE;
        let kept = (0..rank).filter(|i| !gone(*i)).map(|i| from[i]);
        View::Reshape(kept.collect())
    };
    let swapped = |a: usize, b: usize| {
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(a, b);
        View::Permute(order)
    };
    Ok(match args.target {
        "aten.view.default" | "aten._unsafe_view.default" => {
            View::Reshape(resolve(from, &args.lengths("size")?)?)
        }
        "aten.reshape.default" => View::Reshape(resolve(from, &args.lengths("shape")?)?),
        "aten.flatten.using_ints" => {
            let start = args.dim("start_dim", Some(0), rank)?;
            let end = args.dim("end_dim", Some(-1), rank)?;
            if start > end {
                return Err(format!("it flattens from dimension {start} to {end}"));
            }
            let merged = [numel(&from[start..=end])];
            View::Reshape([&from[..start], &merged, &from[end + 1..]].concat())
        }
        "aten.unflatten.int" => {
            let dim = args.dim("dim", None, rank)?;
            let parts = resolve(&from[dim..=dim], &args.lengths("sizes")?)?;
            View::Reshape([&from[..dim], &parts, &from[dim + 1..]].concat())
        }
        "aten.squeeze.default" => without(&(0..rank).collect::<Vec<_>>()),
        "aten.squeeze.dim" => without(&[args.dim("dim", None, rank)?]),
        "aten.squeeze.dims" => without(&args.dims("dim", rank)?),
        "aten.unsqueeze.default" => View::Unsqueeze(args.dim("dim", None, rank + 1)?),
        "aten.transpose.int" | "aten.swapdims.default" => {
            swapped(args.dim("dim0", None, rank)?, args.dim("dim1", None, rank)?)
        }
        "aten.swapaxes.default" => swapped(
            args.dim("axis0", None, rank)?,
            args.dim("axis1", None, rank)?,
        ),
        "aten.t.default" | "aten.numpy_T.default" => View::Permute((0..rank).rev().collect()),
        "aten.permute.default" => View::Permute(args.dims("dims", rank)?),
        "aten.movedim.int" => {
            let source = args.dim("source", None, rank)?;
            let mut order: Vec<usize> = (0..rank).filter(|i| *i != source).collect();
            order.insert(args.dim("destination", None, rank)?, source);
            View::Permute(order)
        }
        "aten.expand.default" | "aten.broadcast_to.default" => {
            View::Expand(expand(from, &args.lengths("size")?)?)
        }
        "aten.alias.default" => View::Alias,
        "aten.detach.default" | "aten.detach_.default" => View::Detach,
        other => return Err(format!("{other} is no view")),
    })
}

/// Some of the elements, or all of them in parts.
fn part(args: &Arguments<'_>, from: &[Extent]) -> Result<View, String> {
    let target = args.target;
    let dim = || args.dim("dim", Some(0), from.len());
    let into_parts_of = |size: u64, dim: usize| {
        let length = from[dim]
            .as_fixed()
            .filter(|n| size > 0 && n.div_ceil(size) <= MOST_PARTS);
        let length =
            length.ok_or_else(|| format!("cannot split dimension {dim} of {from:?} by {size}"))?;
        let starts = (0..length.div_ceil(size)).map(|i| i * size);
        let lengths = starts.map(|start| size.min(length - start)).collect();
        Ok::<View, String>(View::Split { lengths, dim })
    };
    Ok(match target {
        "aten.slice.Tensor" => slice(args, from)?,
        "aten.select.int" => select(args, from)?,
        "aten.narrow.default" => {
            let dim = dim()?;
            let start = args.count("start", None)?;
            let end = Extent::fixed(start + args.count("length", None)?);
            let step = 1;
            View::Slice {
                dim,
                start,
                end,
                step,
            }
        }
        "aten.split.Tensor" => into_parts_of(args.count("split_size", None)?, dim()?)?,
        "aten.chunk.default" => {
            let (dim, chunks) = (dim()?, args.count("chunks", None)?.max(1));
            let length = from[dim].as_fixed();
            let length = length.ok_or_else(|| format!("it cuts {from:?} along the batch"))?;
            into_parts_of(length.div_ceil(chunks), dim)?
        }
        "aten.split.sizes" | "aten.split_with_sizes.default" => {
            let name = if target == "aten.split.sizes" {
                "split_size"
            } else {
                "split_sizes"
            };
            let lengths = args.lengths(name)?.into_iter();
            let fixed = lengths.map(|length| length.and_then(Extent::as_fixed));
            let lengths = fixed.collect::<Option<Vec<_>>>();
            let lengths = lengths.ok_or_else(|| format!("its {name:?} depend on the batch"))?;
            View::Split {
                lengths,
                dim: dim()?,
            }
        }
        "aten.unfold.default" => View::Windows {
            dim: args.dim("dimension", None, from.len())?,
            size: args.count("size", None)?,
            step: args.count("step", None)?,
        },
        "aten.unbind.int" => {
            let dim = dim()?;
            if from[dim]
                .as_fixed()
                .is_none_or(|length| length > MOST_PARTS)
            {
                return Err(format!("cannot unbind dimension {dim} of {from:?}"));
            }
            View::Unbind { dim }
        }
        other => return Err(format!("{other} takes no part")),
    })
}

/// The shape a `view` asks for, with its -1 worked out.
fn resolve(from: &[Extent], to: &[Option<Extent>]) -> Result<Vec<Extent>, String> {
    let known: Vec<Extent> = to.iter().copied().flatten().collect();
    if known.len() == to.len() {
        return Ok(known);
    }
    let rest = (known.len() + 1 == to.len())
        .then(|| numel(from).checked_div(numel(&known)))
        .flatten()
        .ok_or_else(|| format!("{from:?} cannot be viewed as {to:?}"))?;
    Ok(to.iter().map(|length| length.unwrap_or(rest)).collect())
}

/// The shape an `expand` asks for: -1 keeps a length.
fn expand(from: &[Extent], to: &[Option<Extent>]) -> Result<Vec<Extent>, String> {
    let added = to.len().checked_sub(from.len());
    let added =
        added.ok_or_else(|| format!("{from:?} cannot expand to {} dimensions", to.len()))?;
    to.iter()
        .enumerate()
        .map(|(i, length)| {
            let kept = i.checked_sub(added).map(|at| from[at]);
            length
                .or(kept)
                .ok_or_else(|| "it keeps the length of a new dimension".to_owned())
        })
        .collect()
}

fn slice(args: &Arguments<'_>, from: &[Extent]) -> Result<View, String> {
    let dim = args.dim("dim", Some(0), from.len())?;
    let length = from[dim];
    // As in Python: negative counts from the end, and both ends are clamped to the length.
    let clamp = |at: i64| -> Result<Extent, String> {
        let Some(length) = length.as_fixed() else {
            return match at {
                0 => Ok(Extent::ZERO),
                i64::MAX => Ok(length),
                _ => Err(format!("it slices a dimension of {length} at {at}")),
            };
        };
        let from_end = at.unsigned_abs();
        Ok(Extent::fixed(match u64::try_from(at) {
            Ok(at) => at.min(length),
            Err(_) => length.saturating_sub(from_end),
        }))
    };
    let start = match args.length("start")? {
        None => 0,
        Some(Length::Number(at)) => clamp(at)?
            .as_fixed()
            .ok_or("it starts at the end of the batch")?,
        Some(Length::Batched(at)) => return Err(format!("it starts at {at}")),
    };
    let end = match args.length("end")? {
        None => length,
        Some(Length::Number(at)) => clamp(at)?,
        Some(Length::Batched(at)) if at == length => length,
        Some(Length::Batched(at)) => return Err(format!("it ends at {at}, of {length}")),
    };
    let step = args.count("step", Some(1))?;
    if step != 1 && (step == 0 || end.as_fixed().is_none()) {
        return Err(format!("it takes every {step}th element of {length}"));
    }
    Ok(View::Slice {
        dim,
        start,
        end,
        step,
    })
}

fn select(args: &Arguments<'_>, from: &[Extent]) -> Result<View, String> {
    let dim = args.dim("dim", None, from.len())?;
    let index = match args.length("index")? {
        Some(Length::Number(index)) => index,
        Some(Length::Batched(index)) => return Err(format!("it selects {index}")),
        None => return Err("it has no argument \"index\"".into()),
    };
    let length = from[dim].as_fixed();
    let index = match (u64::try_from(index), length) {
        (Ok(index), _) => Some(index),
        // As in Python: negative counts from the end.
        (Err(_), Some(length)) => length.checked_sub(index.unsigned_abs()),
        (Err(_), None) => None,
    };
    let index = index.ok_or_else(|| format!("it selects outside of {from:?}"))?;
    Ok(View::Select { dim, index })
}
