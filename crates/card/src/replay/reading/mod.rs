//! From the bytes of a file to a recording that makes sense: traces as text, PyTorch's memory snapshots, which are pickles.

pub(in crate::replay) mod check;
pub(in crate::replay) mod error;
pub mod pickle;
pub(in crate::replay) mod read;
pub(in crate::replay) mod recording;
pub(in crate::replay) mod snapshot;
mod stacks;
pub(in crate::replay) mod text;
