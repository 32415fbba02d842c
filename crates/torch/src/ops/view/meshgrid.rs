//! `meshgrid`: each vector seen along a dimension of its own.

use crate::ops::prelude::*;

pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.meshgrid.default", |args| meshgrid(args, false)),
    ("aten.meshgrid.indexing", |args| {
        match args.text("indexing", "ij")? {
            "ij" => meshgrid(args, false),
            "xy" => meshgrid(args, true),
            other => Err(format!("its argument \"indexing\" is {other:?}")),
        }
    }),
];

/// `meshgrid(tensors, indexing)`; with `indexing="xy"` the first two dimensions change places.
fn meshgrid(args: &Arguments<'_>, swapped: bool) -> Result<Read, String> {
    let meshgrid = Function {
        name: "meshgrid",
        arguments: swapped,
        infer: |swapped, x| results(x, *swapped),
        run: |swapped, eager, x, context| Ok(eager.meshgrid(x, *swapped, context.results)),
    };
    Ok(meshgrid.on(args.tensors("tensors")?))
}

/// The dimension that each vector lies along, of so many.
fn along(vector: usize, count: usize, swapped: bool) -> usize {
    match vector {
        0 | 1 if swapped && count > 1 => 1 - vector,
        _ => vector,
    }
}

fn results(operands: &[Type], swapped: bool) -> Result<Vec<Type>, Mismatch> {
    let count = operands.len();
    if !(1..=16).contains(&count) {
        return Err(format!("takes 1 to 16 tensors, not {count}"));
    }
    let mut result = vec![Extent::ONE; count];
    for (vector, (_, shape)) in operands.iter().enumerate() {
        result[along(vector, count, swapped)] = match shape[..] {
            [] => Extent::ONE,
            [length] => length,
            _ => return Err(format!("it takes vectors, not {shape:?}")),
        };
    }
    let results = operands.iter().map(|(dtype, _)| (*dtype, result.clone()));
    Ok(results.collect())
}

impl Eager {
    fn meshgrid(&mut self, x: &[Tensor], swapped: bool, results: &[Vec<Extent>]) -> Vec<Tensor> {
        let mut grid = Vec::new();
        for (vector, (x_of, whole)) in x.iter().zip(results).enumerate() {
            let mut seen = vec![Extent::ONE; whole.len()];
            seen[along(vector, x.len(), swapped)] = x_of.numel();
            let view = self.reshape(x_of, &seen);
            grid.push(self.expand(&view, whole));
        }
        grid
    }
}
