//! The same elements elsewhere in memory.

mod run;

use serde::Serialize;

use super::{Context, Operator, Reader};
use crate::eager::{Eager, Stop, Tensor};
use crate::shape::{Extent, Mismatch, Type};
use crate::aten::Arguments;

/// A copy of a tensor's elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub enum Copy {
    /// `contiguous()`.
    Contiguous,
    /// `clone()`.
    Clone,
    /// `roll` along so many dimensions, one after the other.
    Roll {
        /// How many.
        dims: usize,
    },
    /// `flip`.
    Flip,
    /// `repeat(times)`: copies side by side along each dimension of the result.
    Repeat(Vec<Extent>),
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.contiguous.default", |args| {
        args.no_channels_last()?;
        Ok((Copy::Contiguous.into(), vec![args.tensor("self")?]))
    }),
    ("aten.clone.default", |args| {
        args.no_channels_last()?;
        Ok((Copy::Clone.into(), vec![args.tensor("self")?]))
    }),
    ("aten.roll.default", |args| {
        // Without dimensions it rolls the flattened tensor, by one shift.
        let dims = args.whole_numbers("shifts")?.len();
        Ok((Copy::Roll { dims }.into(), vec![args.tensor("self")?]))
    }),
    ("aten.flip.default", |args| {
        let input = args.tensor("self")?;
        args.dims("dims", args.shape(input).len())?;
        Ok((Copy::Flip.into(), vec![input]))
    }),
    ("aten.repeat.default", |args| {
        let times = counts(args, "repeats")?;
        Ok((Copy::Repeat(times).into(), vec![args.tensor("self")?]))
    }),
    ("aten.tile.default", |args| {
        let input = args.tensor("self")?;
        let mut times = counts(args, "dims")?;
        while times.len() < args.shape(input).len() {
            times.insert(0, Extent::ONE);
        }
        Ok((Copy::Repeat(times).into(), vec![input]))
    }),
];

fn counts(args: &Arguments<'_>, name: &str) -> Result<Vec<Extent>, String> {
    let counts = args.lengths(name)?.into_iter().collect::<Option<Vec<_>>>();
    counts.ok_or_else(|| format!("its argument {name:?} contains -1"))
}

impl Operator for Copy {
    fn name(&self) -> &'static str {
        match self {
            Copy::Contiguous => "contiguous",
            Copy::Clone => "clone",
            Copy::Roll { .. } => "roll",
            Copy::Flip => "flip",
            Copy::Repeat(_) => "repeat",
        }
    }

    fn arity(&self) -> (usize, usize) {
        (1, 1)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        let shape = match self {
            Copy::Contiguous | Copy::Clone | Copy::Roll { .. } | Copy::Flip => x.clone(),
            Copy::Repeat(times) => repeat(x, times)?,
        };
        Ok(vec![(*dtype, shape)])
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        _: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        let x = &operands[0];
        Ok(vec![match self {
            Copy::Contiguous => eager.contiguous(x),
            Copy::Clone => eager.clone_of(x),
            Copy::Roll { dims } => eager.roll(x, *dims),
            Copy::Flip => eager.flip(x),
            Copy::Repeat(times) => eager.repeat(x, times),
        }])
    }
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
