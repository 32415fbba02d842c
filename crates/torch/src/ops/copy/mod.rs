//! The same elements elsewhere in memory.

mod kernel;
mod run;

use crate::ops::prelude::*;

/// A copy of a tensor's elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub enum Copy {
    /// `contiguous()`.
    Contiguous,
    /// `contiguous(memory_format=torch.channels_last)`, and `to` and `clone` with it.
    ChannelsLast {
        /// Whether there is always a copy.
        always: bool,
    },
    /// `clone()`.
    Clone,
    /// `roll(shifts, dims)`, one dimension after the other.
    Roll {
        /// By how many elements along which dimension; along the flattened tensor if none.
        shifts: Vec<(i64, Option<usize>)>,
    },
    /// `flip(dims)`.
    Flip {
        /// Along which dimensions.
        dims: Vec<usize>,
    },
    /// `repeat(times)`: copies side by side along each dimension of the result.
    Repeat(Vec<Extent>),
    /// `diag_embed(offset, dim1, dim2)`: matrices with the elements on a diagonal, and zeros.
    DiagEmbed {
        /// How far above the main diagonal.
        offset: i64,
        /// The matrices' dimensions.
        dims: [usize; 2],
    },
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.contiguous.default", |args| {
        let copy = if args.is_channels_last() {
            Copy::ChannelsLast { always: false }
        } else {
            Copy::Contiguous
        };
        Ok((copy.into(), vec![args.tensor("self")?]))
    }),
    ("aten.clone.default", |args| {
        let copy = if args.is_channels_last() {
            Copy::ChannelsLast { always: true }
        } else {
            Copy::Clone
        };
        Ok((copy.into(), vec![args.tensor("self")?]))
    }),
    // A constant in the model's code, such as `torch.tensor(0.5, device=x.device)`: made again in each pass.
    ("aten.lift_fresh_copy.default", |args| {
        Ok((Copy::Clone.into(), vec![args.tensor("self")?]))
    }),
    ("aten.roll.default", |args| {
        // Without dimensions it rolls the flattened tensor, by one shift.
        let input = args.tensor("self")?;
        let shifts = args.whole_numbers("shifts")?;
        let dims = if args.has("dims") {
            args.dims("dims", args.shape(input).len())?
        } else {
            Vec::new()
        };
        if !dims.is_empty() && dims.len() != shifts.len() {
            return Err(format!("it rolls dimensions {dims:?} by {shifts:?}"));
        }
        let along = |(at, shift): (usize, &i64)| (*shift, dims.get(at).copied());
        let shifts = shifts.iter().enumerate().map(along).collect();
        Ok((Copy::Roll { shifts }.into(), vec![input]))
    }),
    ("aten.flip.default", |args| {
        let input = args.tensor("self")?;
        let dims = args.dims("dims", args.shape(input).len())?;
        Ok((Copy::Flip { dims }.into(), vec![input]))
    }),
    ("aten.diag_embed.default", |args| {
        let input = args.tensor("self")?;
        let rank = args.shape(input).len() + 1;
        let dims = [
            args.dim("dim1", Some(-2), rank)?,
            args.dim("dim2", Some(-1), rank)?,
        ];
        let offset = args.int("offset", Some(0))?;
        Ok((Copy::DiagEmbed { offset, dims }.into(), vec![input]))
    }),
    ("aten.diag.default", |args| {
        let input = args.tensor("self")?;
        if args.shape(input).len() != 1 {
            return Err("it copies the diagonal of a matrix; write torch.diagonal".into());
        }
        let offset = args.int("diagonal", Some(0))?;
        Ok((
            Copy::DiagEmbed {
                offset,
                dims: [0, 1],
            }
            .into(),
            vec![input],
        ))
    }),
    ("aten.repeat.default", |args| {
        let times = args.whole_lengths("repeats")?;
        Ok((Copy::Repeat(times).into(), vec![args.tensor("self")?]))
    }),
    ("aten.tile.default", |args| {
        let input = args.tensor("self")?;
        let mut times = args.whole_lengths("dims")?;
        while times.len() < args.shape(input).len() {
            times.insert(0, Extent::ONE);
        }
        Ok((Copy::Repeat(times).into(), vec![input]))
    }),
];

impl Operator for Copy {
    fn name(&self) -> &'static str {
        match self {
            Copy::Contiguous | Copy::ChannelsLast { .. } => "contiguous",
            Copy::Clone => "clone",
            Copy::Roll { .. } => "roll",
            Copy::Flip { .. } => "flip",
            Copy::Repeat(_) => "repeat",
            Copy::DiagEmbed { .. } => "diag_embed",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        let shape = match self {
            Copy::Contiguous
            | Copy::ChannelsLast { .. }
            | Copy::Clone
            | Copy::Roll { .. }
            | Copy::Flip { .. } => x.clone(),
            Copy::Repeat(times) => repeat(x, times)?,
            Copy::DiagEmbed { offset, dims } => embedded(x, *offset, *dims)?,
        };
        Ok(vec![(*dtype, shape)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        let x = &operands[0];
        Ok(vec![match self {
            Copy::Contiguous => eager.contiguous(x),
            Copy::ChannelsLast { always } => eager.in_channels_last(x, *always),
            Copy::Clone => eager.clone_of(x),
            Copy::Roll { shifts } => eager.roll(x, shifts),
            Copy::Flip { dims } => eager.flip(x, dims),
            Copy::Repeat(times) => eager.repeat(x, times),
            Copy::DiagEmbed { offset, dims } => {
                eager.diag_embed(x, &context.results[0], (*offset, *dims))
            }
        }])
    }
}

/// Matrices whose diagonals are as long as the last dimension.
fn embedded(x: &[Extent], offset: i64, dims: [usize; 2]) -> Result<Vec<Extent>, Mismatch> {
    let (length, rest) = x
        .split_last()
        .ok_or("it has no dimension to put on a diagonal")?;
    let side = *length + Extent::fixed(offset.unsigned_abs());
    let mut shape = rest.to_vec();
    let (low, high) = (dims[0].min(dims[1]), dims[0].max(dims[1]));
    if low == high || high > shape.len() + 1 {
        return Err(format!(
            "{dims:?} are not two dimensions of matrices of {x:?}"
        ));
    }
    shape.insert(low, side);
    shape.insert(high, side);
    Ok(shape)
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
