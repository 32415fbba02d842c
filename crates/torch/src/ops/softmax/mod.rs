//! `softmax` and `log_softmax`.

mod run;

use serde::Serialize;

use super::{Context, Operator, Read, Reader};
use crate::aten::Arguments;
use crate::eager::{Eager, Outputs, Tensor};
use crate::shape::{DType, Mismatch, Type};

/// `softmax(input, dim, dtype)`, or its logarithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Softmax {
    /// Along which dimension.
    pub dim: usize,
    /// Whether its logarithm is taken.
    pub log: bool,
    /// The type to compute in, where the model's code says.
    pub dtype: Option<DType>,
}

pub(super) const ATEN: &[(&str, Reader)] =
    &[("aten.softmax.int", read), ("aten.log_softmax.int", read)];

fn read(args: &Arguments<'_>) -> Result<Read, String> {
    let input = args.tensor("self")?;
    let softmax = Softmax {
        dim: args.dim("dim", None, args.shape(input).len())?,
        log: args.target.contains("log"),
        dtype: args.dtype("dtype")?,
    };
    Ok((softmax.into(), vec![input]))
}

impl Operator for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn arity(&self) -> (usize, usize) {
        (1, 1)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, shape) = &operands[0];
        Ok(vec![(self.dtype.unwrap_or(*dtype), shape.clone())])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        let Softmax { dim, log, dtype } = *self;
        Ok(vec![eager.softmax(&operands[0], (dim, log), dtype)?])
    }
}
