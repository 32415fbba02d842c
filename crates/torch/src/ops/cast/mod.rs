//! Conversions to another type.

use serde::Serialize;

use super::{Context, Operator, Read, Reader};
use crate::aten::Arguments;
use crate::eager::{Eager, Stop, Tensor};
use crate::shape::{DType, Mismatch, Type};

/// `to(dtype)`; with a second operand `type_as`, to the type that it has when the graph runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Cast(pub DType);

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.to.device", to),
    ("aten.to.dtype", to),
    ("aten.to.dtype_layout", to),
    ("aten.type_as.default", |args| {
        let other = args.tensor("other")?;
        let dtype = args.typed(other).0;
        Ok((Cast(dtype).into(), vec![args.tensor("self")?, other]))
    }),
];

fn to(args: &Arguments<'_>) -> Result<Read, String> {
    let input = args.tensor("self")?;
    let own = args.typed(input).0;
    let dtype = args.dtype("dtype")?.unwrap_or(own);
    if args.is_channels_last() && dtype == own {
        let copy = super::Copy::ChannelsLast { always: false };
        return Ok((copy.into(), vec![input]));
    }
    Ok((Cast(dtype).into(), vec![input]))
}

impl Operator for Cast {
    fn name(&self) -> &'static str {
        "to"
    }

    fn arity(&self) -> (usize, usize) {
        (1, 2)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(vec![(self.0, operands[0].1.clone())])
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        context: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        let of_other = operands.get(1).map(|other| other.dtype);
        // What is of half precision now is converted up, whatever came before.
        let back = context.goes_back_to.filter(|_| operands[0].dtype == self.0);
        let dtype = of_other.or(context.asks_for).or(back);
        Ok(vec![eager.cast(&operands[0], dtype.unwrap_or(self.0))])
    }
}
