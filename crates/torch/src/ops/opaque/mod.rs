//! Operators that are not known.

mod not_elementwise;
mod run;

pub use not_elementwise::not_elementwise;

use crate::ops::prelude::*;

/// Something that is not known, taken to be elementwise: what it makes, as PyTorch recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Opaque {
    /// The types of its results.
    pub results: Vec<Type>,
}

/// None is read: the reader of a graph makes these where nothing else does.
pub(super) const ATEN: &[(&str, Reader)] = &[];

impl Operator for Opaque {
    fn name(&self) -> &'static str {
        "unknown"
    }

    fn infer(&self, _: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(self.results.clone())
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        eager.opaque(operands, &self.results)
    }
}
