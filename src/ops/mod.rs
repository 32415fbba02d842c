//! What each operator is: how it is read from ATen, its shapes, and what eager PyTorch does for it.

mod infer;
mod kinds;
mod op;
pub(crate) mod read;
pub(crate) mod run;

pub(crate) use infer::infer;
pub(crate) use kinds::looked_up;
pub use kinds::*;
pub use op::{Op, Pool1d, Reduction};
