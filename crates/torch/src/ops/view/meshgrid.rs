//! `meshgrid`: each vector seen along a dimension of its own.

use serde::Serialize;

use crate::eager::{Eager, Outputs, Tensor};
use crate::ops::{Context, Operator, Reader};
use crate::shape::{Extent, Mismatch, Type};

/// `meshgrid(tensors, indexing)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Meshgrid {
    /// Whether the first two dimensions change places (`indexing="xy"`).
    pub swapped: bool,
}

pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.meshgrid.default", |args| {
        Ok((Meshgrid { swapped: false }.into(), args.tensors("tensors")?))
    }),
    ("aten.meshgrid.indexing", |args| {
        let swapped = match args.text("indexing", "ij")? {
            "ij" => false,
            "xy" => true,
            other => return Err(format!("its argument \"indexing\" is {other:?}")),
        };
        Ok((Meshgrid { swapped }.into(), args.tensors("tensors")?))
    }),
];

impl Meshgrid {
    /// The dimension that each vector lies along, of so many.
    fn along(self, vector: usize, count: usize) -> usize {
        match vector {
            0 | 1 if self.swapped && count > 1 => 1 - vector,
            _ => vector,
        }
    }

    fn shape(self, lengths: &[Extent]) -> Vec<Extent> {
        let mut shape = lengths.to_vec();
        for (vector, length) in lengths.iter().enumerate() {
            shape[self.along(vector, lengths.len())] = *length;
        }
        shape
    }
}

impl Operator for Meshgrid {
    fn name(&self) -> &'static str {
        "meshgrid"
    }

    fn arity(&self) -> (usize, usize) {
        (1, 16)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let mut lengths = Vec::new();
        for (_, shape) in operands {
            lengths.push(match shape[..] {
                [] => Extent::ONE,
                [length] => length,
                _ => return Err(format!("it takes vectors, not {shape:?}")),
            });
        }
        let shape = self.shape(&lengths);
        let results = operands.iter().map(|(dtype, _)| (*dtype, shape.clone()));
        Ok(results.collect())
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        let mut results = Vec::new();
        for (vector, x) in operands.iter().enumerate() {
            let whole = &context.results[vector];
            let mut seen = vec![Extent::ONE; whole.len()];
            seen[self.along(vector, operands.len())] = x.numel();
            let view = eager.reshape(x, &seen);
            results.push(eager.expand(&view, whole));
        }
        Ok(results)
    }
}
