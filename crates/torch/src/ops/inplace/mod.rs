//! Operators that write their results into tensors that they are given (`out=`).

use crate::ops::prelude::*;

/// Any operator in its form with `out=`, which autograd does not record: a result is the tensor that it was written into,
/// unless that had other lengths. Operands are those tensors.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Written {
    /// The types of its results, as PyTorch recorded them.
    pub results: Vec<Type>,
}

/// None is read: the reader of a graph makes these of what no family reads.
pub(super) const ATEN: &[(&str, Reader)] = &[];

impl Operator for Written {
    fn name(&self) -> &'static str {
        "out"
    }

    fn infer(&self, _: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(self.results.clone())
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        let written = operands.iter().zip(&self.results).map(|(out, (_, shape))| {
            let result = if out.shape == *shape {
                out.detached()
            } else {
                // `resize_`: memory of its own.
                Tensor::new(eager.empty(shape, out.dtype))
            };
            eager.launch(Kernel::MemoryOnly("out"), &[], &[&result]);
            result
        });
        Ok(written.collect())
    }
}
