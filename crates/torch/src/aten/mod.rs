//! A node of an exported graph: PyTorch's serialized form and typed access to its arguments.
//!
//! Knows no operator: what an argument means is for the readers in the module `ops`.

mod arguments;
mod constant;
mod number;
pub mod schema;
mod scope;

use serde::Serialize;

pub use arguments::{Arguments, Length, MOST_PARTS, chosen_of, dtype};
pub use constant::Constant;
pub use scope::Scope;

/// Names a value of one graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ValueId(pub u32);
