//! Distances and similarities of vectors.

mod run;

use crate::ops::prelude::*;

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.cosine_similarity.default", |args| {
        let operands = args.all(&["x1", "x2"])?;
        let rank = operands.iter().map(|id| args.shape(*id).len()).max();
        let similarity = Function {
            name: "cosine_similarity",
            arguments: (
                args.dim("dim", Some(1), rank.unwrap_or(0))?,
                args.number_or("eps", 1e-8)?,
            ),
            infer: |&(dim, _), x| {
                let (dtype, mut shape) = both(x)?;
                if dim >= shape.len() {
                    return Err(format!("no dimension {dim} in {shape:?}"));
                }
                shape.remove(dim);
                Ok(vec![(dtype, shape)])
            },
            run: |&(dim, _), eager, x, _| Ok(vec![eager.cosine_similarity(&x[0], &x[1], dim)?]),
        };
        Ok(similarity.on(operands))
    }),
    // Of vectors in the last dimension.
    ("aten.pairwise_distance.default", |args| {
        let norm = (args.number_or("p", 2.0)?, args.number_or("eps", 1e-6)?);
        let distance = Function {
            name: "pairwise_distance",
            arguments: (norm, args.flag("keepdim", false)?),
            infer: |(_, keep), x| {
                let (dtype, mut shape) = both(x)?;
                shape.pop().ok_or("its operands are no vectors")?;
                shape.extend(keep.then_some(Extent::ONE));
                Ok(vec![(dtype, shape)])
            },
            run: |&(norm, keep), eager, x, _| {
                Ok(vec![eager.pairwise_distance(&x[0], &x[1], norm, keep)?])
            },
        };
        Ok(distance.on(args.all(&["x1", "x2"])?))
    }),
];

/// The type that two operands have together.
fn both(operands: &[Type]) -> Result<Type, Mismatch> {
    let [(a, left), (b, right)] = [&operands[0], &operands[1]];
    Ok((DType::promote(*a, *b), broadcast(left, right)?))
}
