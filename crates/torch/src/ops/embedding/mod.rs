//! Table look-ups.

pub(in crate::ops) mod bag;
mod run;

pub use run::{ALL_BITS, radix_bytes};

use crate::ops::prelude::*;

/// `embedding(weight, indices)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Embedding {
    /// The row that gets no gradient.
    pub padding: Option<u64>,
}

pub(super) const ATEN: &[(&str, Reader)] = &[("aten.embedding.default", |args| {
    args.absent("sparse")?;
    args.absent("scale_grad_by_freq")?;
    // A negative index stands for none.
    let padding = u64::try_from(args.int("padding_idx", Some(-1))?).ok();
    Ok((
        Embedding { padding }.into(),
        args.all(&["weight", "indices"])?,
    ))
})];

impl Operator for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let [_, width] = operands[0].1.as_slice() else {
            return Err("the weight is not a matrix".into());
        };
        let shape = operands[1].1.iter().copied().chain([*width]).collect();
        Ok(vec![(operands[0].0, shape)])
    }

    fn positions(&self, operands: &[Type]) -> Vec<(usize, Extent)> {
        vec![(1, operands[0].1[0])]
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        Ok(vec![eager.embedding(
            &operands[0],
            &operands[1],
            self.padding,
        )?])
    }
}
