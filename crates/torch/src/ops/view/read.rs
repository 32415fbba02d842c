//! Reading views.

use super::View;
use crate::aten::Length;
use crate::ops::prelude::*;

/// Operators by their names.
pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    (
        "aten.view.default aten._unsafe_view.default aten.reshape.default aten.flatten.using_ints aten.unflatten.int \
         aten.squeeze_.default aten.squeeze_.dim aten.squeeze_.dims aten.unsqueeze_.default aten.transpose_.default \
         aten.swapdims_.default aten.swapaxes_.default aten.t_.default aten.squeeze.default aten.squeeze.dim aten.squeeze.dims \
         aten.unsqueeze.default aten.transpose.int aten.swapdims.default aten.swapaxes.default aten.t.default aten.numpy_T.default \
         aten.permute.default aten.movedim.int aten.movedim.intlist aten.moveaxis.int aten.moveaxis.intlist aten.adjoint.default \
         aten.matrix_H.default aten.mT.default aten.mH.default aten.ravel.default aten.atleast_1d.default aten.atleast_2d.default \
         aten.atleast_3d.default aten.expand.default aten.broadcast_to.default aten.alias.default aten.detach.default \
         aten.detach_.default",
        read_view,
    ),
    (
        "aten.slice.Tensor aten.select.int aten.narrow.default aten.split.Tensor aten.chunk.default aten.split.sizes \
         aten.split_with_sizes.default aten.unfold.default aten.unbind.int aten.tensor_split.sections aten.tensor_split.indices \
         aten.hsplit.int aten.hsplit.array aten.vsplit.int aten.vsplit.array aten.dsplit.int aten.dsplit.array \
         aten.unsafe_split.Tensor aten.unsafe_split_with_sizes.default aten.unsafe_chunk.default",
        read_part,
    ),
    ("aten.diagonal.default", |args| {
        let input = args.tensor("self")?;
        Ok((diagonal(args, &args.shape(input))?.into(), vec![input]))
    }),
    ("aten.as_strided.default", |args| {
        let (shape, strides) = (args.whole_lengths("size")?, args.whole_lengths("stride")?);
        if shape.len() != strides.len() {
            return Err(format!(
                "it has {} lengths and {} strides",
                shape.len(),
                strides.len()
            ));
        }
        let offset = args.length("storage_offset")?;
        let offset = offset.map_or(Some(Extent::ZERO), counted);
        let offset = offset.ok_or("it begins before its memory")?;
        let view = View::Strided {
            shape,
            strides,
            offset,
        };
        Ok((view.into(), args.all(&["self"])?))
    }),
    ("aten.view_as.default aten.reshape_as.default", reshape_as),
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

/// A batch that is larger than what is added to lengths which depend on it.
const MANY: u64 = 1 << 20;

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
    // In place, the tensor itself becomes the view.
    let target = args
        .target
        .replace("_.", ".")
        .replace("transpose.default", "transpose.int");
    Ok(match target.as_str() {
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
        "aten.movedim.int" | "aten.moveaxis.int" => moved(
            rank,
            &[args.dim("source", None, rank)?],
            &[args.dim("destination", None, rank)?],
        )?,
        "aten.movedim.intlist" | "aten.moveaxis.intlist" => moved(
            rank,
            &args.dims("source", rank)?,
            &args.dims("destination", rank)?,
        )?,
        "aten.adjoint.default"
        | "aten.matrix_H.default"
        | "aten.mT.default"
        | "aten.mH.default" => {
            let last = rank.checked_sub(2).ok_or("it turns no matrix")?;
            swapped(last, last + 1)
        }
        "aten.ravel.default" => View::Reshape(vec![numel(from)]),
        "aten.atleast_1d.default" if rank >= 1 => View::Alias,
        "aten.atleast_1d.default" => View::Reshape(vec![Extent::ONE]),
        "aten.atleast_2d.default" => match from {
            [] => View::Reshape(vec![Extent::ONE; 2]),
            [_] => View::Unsqueeze(0),
            _ => View::Alias,
        },
        "aten.atleast_3d.default" => match from {
            [] => View::Reshape(vec![Extent::ONE; 3]),
            [length] => View::Reshape(vec![Extent::ONE, *length, Extent::ONE]),
            [_, _] => View::Unsqueeze(2),
            _ => View::Alias,
        },
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
    let into_parts_of = |size: Extent, of_nothing: u64, dim: usize| {
        let problem = || format!("cannot split dimension {dim} of {from:?} by {size}");
        // Whole parts, as many as fit, and the rest.
        let whole = match (from[dim].as_fixed(), size.as_fixed()) {
            (Some(0), Some(0)) => Some(of_nothing),
            (Some(length), Some(size)) => length.checked_div(size),
            _ => from[dim]
                .checked_div(size)
                .and_then(Extent::as_fixed)
                // Of a length that the size does not divide, the last part is shorter: as many as for most batches.
                .or_else(|| {
                    from[dim]
                        .at(MANY)
                        .checked_sub(1)?
                        .checked_div(size.at(MANY))
                }),
        };
        let whole = whole
            .filter(|n| *n <= args.most_results)
            .ok_or_else(problem)?;
        let rest = from[dim].checked_sub(size * Extent::fixed(whole));
        let rest = rest.ok_or_else(problem)?;
        let lengths = (0..whole).map(|_| size);
        let lengths = lengths.chain((rest != Extent::ZERO || whole == 0).then_some(rest));
        Ok::<View, String>(View::Split {
            lengths: lengths.collect(),
            dim,
        })
    };
    Ok(match target {
        "aten.slice.Tensor" => slice(args, from)?,
        "aten.select.int" => select(args, from)?,
        "aten.narrow.default" => {
            let dim = dim()?;
            let start = at(args.length("start")?.ok_or("it starts nowhere")?, from[dim])?;
            let length = args.length("length")?.ok_or("it has no length")?;
            let end = start + at(length, from[dim])?;
            let step = 1;
            View::Slice {
                dim,
                start,
                end,
                step,
            }
        }
        "aten.tensor_split.sections" => sections(args, "sections", from, dim()?)?,
        "aten.tensor_split.indices" => cut_at(args, from, dim()?)?,
        "aten.hsplit.int" | "aten.vsplit.int" | "aten.dsplit.int" => {
            sections(args, "sections", from, stacked_dim(target, from.len())?)?
        }
        "aten.hsplit.array" | "aten.vsplit.array" | "aten.dsplit.array" => {
            cut_at(args, from, stacked_dim(target, from.len())?)?
        }
        "aten.split.Tensor" | "aten.unsafe_split.Tensor" => {
            let dim = dim()?;
            let size = args.length("split_size")?.and_then(counted);
            into_parts_of(size.ok_or("it has no size")?, 1, dim)?
        }
        "aten.chunk.default" | "aten.unsafe_chunk.default" => {
            let (dim, chunks) = (dim()?, args.count("chunks", None)?);
            let last = Extent::fixed(chunks.saturating_sub(1));
            let size = (from[dim] + last).floor_div(chunks);
            let size = size.ok_or_else(|| format!("it cuts {from:?} into {chunks} parts"))?;
            into_parts_of(size, chunks, dim)?
        }
        "aten.split.sizes"
        | "aten.split_with_sizes.default"
        | "aten.unsafe_split_with_sizes.default" => {
            let name = if target == "aten.split.sizes" {
                "split_size"
            } else {
                "split_sizes"
            };
            let lengths = args.lengths(name)?.into_iter().collect::<Option<Vec<_>>>();
            let lengths = lengths.ok_or_else(|| format!("its {name:?} contain -1"))?;
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
                .is_none_or(|length| length > args.most_results)
            {
                return Err(format!("cannot unbind dimension {dim} of {from:?}"));
            }
            View::Unbind { dim }
        }
        other => return Err(format!("{other} takes no part")),
    })
}

/// Dimensions moved to other places; the rest keep their order.
fn moved(rank: usize, from: &[usize], to: &[usize]) -> Result<View, String> {
    let mut order: Vec<Option<usize>> = vec![None; rank];
    if from.len() != to.len() {
        return Err(format!("it moves dimensions {from:?} to {to:?}"));
    }
    for (from, to) in from.iter().zip(to) {
        order[*to] = Some(*from);
    }
    let mut rest = (0..rank).filter(|dim| !from.contains(dim));
    let order = order.into_iter().map(|dim| dim.or_else(|| rest.next()));
    let order = order.collect::<Option<Vec<_>>>();
    order
        .map(View::Permute)
        .ok_or_else(|| format!("it moves dimensions {from:?} to {to:?}"))
}

/// The dimension that `hsplit`, `vsplit` and `dsplit` cut, as `hstack` and its like join.
fn stacked_dim(target: &str, rank: usize) -> Result<usize, String> {
    let dim = match target {
        "aten.vsplit.int" | "aten.vsplit.array" => 0,
        "aten.dsplit.int" | "aten.dsplit.array" => 2,
        _ => usize::from(rank > 1),
    };
    (dim < rank)
        .then_some(dim)
        .ok_or_else(|| format!("it cuts {rank} dimensions"))
}

/// `tensor_split(sections)`: the first ones are longer by one where the length does not divide. Its parts are
/// slices, and so have gradients of their own.
fn sections(args: &Arguments<'_>, name: &str, from: &[Extent], dim: usize) -> Result<View, String> {
    let count = args.count(name, None)?;
    let problem = || format!("it cuts {from:?} into {count} parts");
    if count == 0 || count > args.most_results {
        return Err(problem());
    }
    let end = |index: u64| {
        // Of n elements, the parts up to number i have i * (n / count) + min(i, n % count).
        let whole = from[dim]
            .floor_div(count)?
            .checked_mul(Extent::fixed(index))?;
        let rest = from[dim].remainder(count)?;
        whole.checked_add(rest.smaller(Extent::fixed(index))?)
    };
    let ends = (0..=count).map(end).collect::<Option<Vec<_>>>();
    View::slices(&ends.ok_or_else(problem)?, dim).ok_or_else(problem)
}

/// `tensor_split(indices)`.
fn cut_at(args: &Arguments<'_>, from: &[Extent], dim: usize) -> Result<View, String> {
    let indices = args.whole_numbers("indices")?;
    let length = from[dim];
    let inner = indices
        .into_iter()
        .map(|place| at(Length::Number(place), length));
    let mut ends = vec![Extent::ZERO];
    ends.extend(inner.collect::<Result<Vec<_>, _>>()?);
    ends.push(length);
    View::slices(&ends, dim).ok_or_else(|| format!("it cuts {from:?} at {ends:?}"))
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

/// A length that is none from the end.
fn counted(length: Length) -> Option<Extent> {
    match length {
        Length::Number(number) => u64::try_from(number).ok().map(Extent::fixed),
        Length::Batched(length) => Some(length),
    }
}

/// A place along a dimension, as in Python: negative counts from the end, and both are clamped to the length
/// where that is a number. Where it depends on the batch, tracing has checked that it reaches as far.
fn at(place: Length, length: Extent) -> Result<Extent, String> {
    let place = match place {
        Length::Number(i64::MAX) => return Ok(length),
        Length::Number(place) => place,
        Length::Batched(place) => return Ok(place),
    };
    match (u64::try_from(place), length.as_fixed()) {
        (Ok(place), Some(length)) => Ok(Extent::fixed(place.min(length))),
        (Ok(place), None) => Ok(Extent::fixed(place)),
        (Err(_), Some(length)) => Ok(Extent::fixed(length.saturating_sub(place.unsigned_abs()))),
        (Err(_), None) => length
            .checked_sub(Extent::fixed(place.unsigned_abs()))
            .ok_or_else(|| format!("it takes {place} of a dimension of {length}")),
    }
}

pub(in crate::ops) fn slice(args: &Arguments<'_>, from: &[Extent]) -> Result<View, String> {
    let dim = args.dim("dim", Some(0), from.len())?;
    let length = from[dim];
    let start = args.length("start")?.unwrap_or(Length::Number(0));
    let end = args.length("end")?.unwrap_or(Length::Number(i64::MAX));
    let (start, mut end) = (at(start, length)?, at(end, length)?);
    // A slice that ends before it starts is empty.
    if let (Some(first), Some(last)) = (start.as_fixed(), end.as_fixed()) {
        end = Extent::fixed(last.max(first));
    }
    let step = args.count("step", Some(1))?;
    if step == 0 {
        return Err(format!("it takes every {step}th element of {length}"));
    }
    Ok(View::Slice {
        dim,
        start,
        end,
        step,
    })
}

pub(in crate::ops) fn select(args: &Arguments<'_>, from: &[Extent]) -> Result<View, String> {
    let dim = args.dim("dim", None, from.len())?;
    let length = from[dim];
    let index = match args.length("index")? {
        Some(Length::Batched(index)) => Some(index),
        // As in Python: negative counts from the end.
        Some(Length::Number(index)) => match u64::try_from(index) {
            Ok(index) => Some(Extent::fixed(index)),
            Err(_) => length
                .checked_sub(Extent::fixed(index.unsigned_abs()))
                .filter(|at| at.as_fixed().is_some() || length.as_fixed().is_none()),
        },
        None => return Err("it has no argument \"index\"".into()),
    };
    let index = index.ok_or_else(|| format!("it selects outside of {from:?}"))?;
    Ok(View::Select { dim, index })
}

pub(in crate::ops) fn diagonal(args: &Arguments<'_>, from: &[Extent]) -> Result<View, String> {
    Ok(View::Diagonal {
        offset: args.int("offset", Some(0))?,
        dims: [
            args.dim("dim1", Some(0), from.len())?,
            args.dim("dim2", Some(1), from.len())?,
        ],
    })
}

#[cfg(test)]
mod tests {

    use crate::aten::Scope;
    use crate::aten::schema::NamedArg;
    use crate::ops::{Op, infer};
    use crate::shape::{DType, Type};

    use super::*;

    /// How long the first dimension is of what PyTorch 2.11 makes of a tensor of this length, `None` where it refuses.
    fn lengths(length: u64, target: &str, inputs: &str) -> Option<Vec<u64>> {
        let arg = |input: &str| {
            let (name, value) = input.split_once('=').unwrap();
            let kind = ["int", "ints"][usize::from(value.starts_with('['))];
            format!(r#"{{"name": "{name}", "arg": {{"as_{kind}": {value}}}}}"#)
        };
        let inputs: Vec<String> = inputs.split(' ').map(arg).collect();
        let inputs = format!("[{}]", inputs.join(","));
        let inputs: Vec<NamedArg<'_>> = serde_json::from_str(&inputs).unwrap();
        let scope = Scope::default();
        let from = vec![Extent::fixed(length)];
        let types = |_| unreachable!("no argument is a tensor");
        let args = Arguments {
            target,
            types: &types,
            inputs: &inputs,
            scope: &scope,
            rows: None,
            chosen_percent: None,
            most_results: crate::aten::MOST_PARTS,
        };
        let view = part(&args, &from).ok()?;
        let made = infer(&Op::View(view), &[(DType::Float32, from)]).ok()?;
        let first = |(_, shape): &Type| shape.first().map_or(1, |first| first.at(1));
        Some(made.iter().map(first).collect())
    }

    #[test]
    fn parts_of_nothing_are_as_many_as_in_pytorch() {
        for line in include_str!("parts.txt").lines() {
            let (call, made) = line.split_once(" -> ").unwrap();
            let mut words = call.splitn(3, ' ');
            let [length, target, inputs] = [(); 3].map(|()| words.next().unwrap());
            let made = (made != "refused").then(|| serde_json::from_str(made).unwrap());
            let found = lengths(length.parse().unwrap(), target, inputs);
            assert_eq!(found, made, "{line}");
        }
    }
}
