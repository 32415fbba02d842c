//! A node of an exported graph: PyTorch's serialized form and typed access to its arguments.
//!
//! Knows no operator: what an argument means is for the readers in the module `ops`.

mod arguments;
pub(crate) mod schema;

use serde::Serialize;

pub use arguments::Constant;
pub(crate) use arguments::{Arguments, Length, Scope, chosen_of, dtype};

/// Names a value of one graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ValueId(pub u32);
