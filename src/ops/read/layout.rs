//! Operators that arrange, take apart, join or add up elements.

use super::Lowered;
use crate::aten::{Arguments, Length};
use crate::graph::ValueId;
use crate::ops::{Op, Reduction};
use crate::shape::{DType, Extent, numel};

/// Operators of this file.
pub(super) const NAMES: &[&str] = &[
    "aten._unsafe_view.default",
    "aten.alias.default",
    "aten.broadcast_to.default",
    "aten.chunk.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.expand.default",
    "aten.expand_as.default",
    "aten.flatten.using_ints",
    "aten.flip.default",
    "aten.gather.default",
    "aten.mean.default",
    "aten.mean.dim",
    "aten.movedim.int",
    "aten.narrow.default",
    "aten.numpy_T.default",
    "aten.permute.default",
    "aten.repeat.default",
    "aten.reshape.default",
    "aten.reshape_as.default",
    "aten.roll.default",
    "aten.select.int",
    "aten.slice.Tensor",
    "aten.split.Tensor",
    "aten.split.sizes",
    "aten.split_with_sizes.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.stack.default",
    "aten.sum.default",
    "aten.sum.dim_IntList",
    "aten.swapaxes.default",
    "aten.swapdims.default",
    "aten.t.default",
    "aten.tile.default",
    "aten.transpose.int",
    "aten.type_as.default",
    "aten.unbind.int",
    "aten.unflatten.int",
    "aten.unfold.default",
    "aten.unsqueeze.default",
    "aten.view.default",
    "aten.view_as.default",
];

/// Most parts that a tensor may be taken apart into.
const MOST_PARTS: u64 = 1 << 16;

/// What a node does, or `None` for an operator of another family.
pub(super) fn lower(
    target: &str,
    args: &Arguments<'_>,
    typed: impl Fn(ValueId) -> (DType, Vec<Extent>),
) -> Result<Option<Lowered>, String> {
    if !NAMES.contains(&target) {
        return Ok(None);
    }
    if target == "aten.stack.default" {
        let tensors = args.tensors("tensors")?;
        let first = tensors.first().ok_or("it joins no tensors")?;
        let dim = args.dim("dim", Some(0), typed(*first).1.len() + 1)?;
        return Ok(Some((Op::Stack { dim }, tensors)));
    }
    let input = args.tensor("self")?;
    let from = typed(input).1;
    if target == "aten.gather.default" {
        let dim = args.dim("dim", None, from.len())?;
        let operands = vec![input, args.tensor("index")?];
        return Ok(Some((Op::Gather { dim }, operands)));
    }
    let like = || args.tensor("other").map(&typed);
    let op = match target {
        "aten.type_as.default" => Some(Op::Cast(like()?.0)),
        "aten.view_as.default" | "aten.reshape_as.default" => Some(Op::Reshape(like()?.1)),
        "aten.expand_as.default" => Some(Op::Expand(like()?.1)),
        _ => None,
    };
    let families = [view, part, copy, reduction];
    let mut families = families.iter().map(|family| family(target, args, &from));
    let found = match op {
        Some(op) => Some(op),
        None => families.find_map(Result::transpose).transpose()?,
    };
    Ok(found.map(|op| (op, vec![input])))
}

/// The same elements under another shape.
fn view(target: &str, args: &Arguments<'_>, from: &[Extent]) -> Result<Option<Op>, String> {
    let rank = from.len();
    let without = |dims: &[usize]| {
        let gone = |i: usize| dims.contains(&i) && from[i] == Extent::ONE;
        let kept = (0..rank).filter(|i| !gone(*i)).map(|i| from[i]);
        Op::Reshape(kept.collect())
    };
    let swapped = |a: usize, b: usize| {
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(a, b);
        Op::Permute(order)
    };
    Ok(Some(match target {
        "aten.view.default" | "aten._unsafe_view.default" => {
            Op::Reshape(resolve(from, &args.lengths("size")?)?)
        }
        "aten.reshape.default" => Op::Reshape(resolve(from, &args.lengths("shape")?)?),
        "aten.flatten.using_ints" => {
            let start = args.dim("start_dim", Some(0), rank)?;
            let end = args.dim("end_dim", Some(-1), rank)?;
            if start > end {
                return Err(format!("it flattens from dimension {start} to {end}"));
            }
            let merged = [numel(&from[start..=end])];
            Op::Reshape([&from[..start], &merged, &from[end + 1..]].concat())
        }
        "aten.unflatten.int" => {
            let dim = args.dim("dim", None, rank)?;
            let parts = resolve(&from[dim..=dim], &args.lengths("sizes")?)?;
            Op::Reshape([&from[..dim], &parts, &from[dim + 1..]].concat())
        }
        "aten.squeeze.default" => without(&(0..rank).collect::<Vec<_>>()),
        "aten.squeeze.dim" => without(&[args.dim("dim", None, rank)?]),
        "aten.squeeze.dims" => without(&args.dims("dim", rank)?),
        "aten.unsqueeze.default" => Op::Unsqueeze(args.dim("dim", None, rank + 1)?),
        "aten.transpose.int" | "aten.swapdims.default" => {
            swapped(args.dim("dim0", None, rank)?, args.dim("dim1", None, rank)?)
        }
        "aten.swapaxes.default" => swapped(
            args.dim("axis0", None, rank)?,
            args.dim("axis1", None, rank)?,
        ),
        "aten.t.default" | "aten.numpy_T.default" => Op::Permute((0..rank).rev().collect()),
        "aten.permute.default" => Op::Permute(args.dims("dims", rank)?),
        "aten.movedim.int" => {
            let source = args.dim("source", None, rank)?;
            let mut order: Vec<usize> = (0..rank).filter(|i| *i != source).collect();
            order.insert(args.dim("destination", None, rank)?, source);
            Op::Permute(order)
        }
        "aten.expand.default" | "aten.broadcast_to.default" => {
            Op::Expand(expand(from, &args.lengths("size")?)?)
        }
        "aten.alias.default" => Op::Alias,
        "aten.detach.default" | "aten.detach_.default" => Op::Detach,
        _ => return Ok(None),
    }))
}

/// Some of the elements, or all of them in parts.
fn part(target: &str, args: &Arguments<'_>, from: &[Extent]) -> Result<Option<Op>, String> {
    let dim = || args.dim("dim", Some(0), from.len());
    let into_parts_of = |size: u64, dim: usize| {
        let length = from[dim]
            .as_fixed()
            .filter(|n| size > 0 && n.div_ceil(size) <= MOST_PARTS);
        let length =
            length.ok_or_else(|| format!("cannot split dimension {dim} of {from:?} by {size}"))?;
        let starts = (0..length.div_ceil(size)).map(|i| i * size);
        let lengths = starts.map(|start| size.min(length - start)).collect();
        Ok::<Op, String>(Op::Split { lengths, dim })
    };
    Ok(Some(match target {
        "aten.slice.Tensor" => slice(args, from)?,
        "aten.select.int" => select(args, from)?,
        "aten.narrow.default" => {
            let dim = dim()?;
            let start = args.count("start", None)?;
            let end = Extent::fixed(start + args.count("length", None)?);
            let step = 1;
            Op::Slice {
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
            Op::Split {
                lengths,
                dim: dim()?,
            }
        }
        "aten.unfold.default" => Op::Windows {
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
            Op::Unbind { dim }
        }
        _ => return Ok(None),
    }))
}

/// The elements elsewhere in memory.
fn copy(target: &str, args: &Arguments<'_>, from: &[Extent]) -> Result<Option<Op>, String> {
    let counts = |name: &str| {
        let counts = args.lengths(name)?.into_iter().collect::<Option<Vec<_>>>();
        counts.ok_or_else(|| format!("its argument {name:?} contains -1"))
    };
    Ok(Some(match target {
        "aten.contiguous.default" => {
            args.no_channels_last()?;
            Op::Contiguous
        }
        "aten.clone.default" => {
            args.no_channels_last()?;
            Op::Clone
        }
        // Without dimensions it rolls the flattened tensor, by one shift.
        "aten.roll.default" => Op::Roll {
            dims: args.whole_numbers("shifts")?.len(),
        },
        "aten.flip.default" => {
            args.dims("dims", from.len())?;
            Op::Flip
        }
        "aten.repeat.default" => Op::Repeat(counts("repeats")?),
        "aten.tile.default" => {
            let mut times = counts("dims")?;
            while times.len() < from.len() {
                times.insert(0, Extent::ONE);
            }
            Op::Repeat(times)
        }
        _ => return Ok(None),
    }))
}

/// Sums and means.
fn reduction(target: &str, args: &Arguments<'_>, from: &[Extent]) -> Result<Option<Op>, String> {
    let (function, all) = match target {
        "aten.mean.default" => (Reduction::Mean, true),
        "aten.mean.dim" => (Reduction::Mean, false),
        "aten.sum.default" => (Reduction::Sum, true),
        "aten.sum.dim_IntList" => (Reduction::Sum, false),
        _ => return Ok(None),
    };
    let mut dims: Vec<usize> = if all {
        (0..from.len()).collect()
    } else {
        args.dims_or_all("dim", from.len())?
    };
    dims.sort_unstable();
    Ok(Some(Op::Reduce {
        function,
        dims,
        keep: args.flag("keepdim", false)?,
    }))
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

fn slice(args: &Arguments<'_>, from: &[Extent]) -> Result<Op, String> {
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
    Ok(Op::Slice {
        dim,
        start,
        end,
        step,
    })
}

fn select(args: &Arguments<'_>, from: &[Extent]) -> Result<Op, String> {
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
    Ok(Op::Select { dim, index })
}
