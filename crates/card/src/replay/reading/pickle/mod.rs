//! Reads pickles that hold plain data, and executes nothing.
//!
//! A pickle is a program for a stack machine, and most of its opcodes can be asked to import and call
//! anything. PyTorch's memory snapshots need only the part that builds containers, numbers and strings
//! (protocols 2 to 5), so that part is all there is here; the rest is refused by name. Values are held
//! by index, because PyTorch shares on purpose: thousands of events refer to the same list of frames.
//! What a hostile file can make this use is bounded by [`Bounds`].

mod machine;
mod opcode;
mod value;

pub use machine::Bounds;
pub use value::{Pickle, Value, ValueId};

/// Why a pickle cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset} of the pickle, opcode {opcode}: {problem}")]
pub struct PickleError {
    /// Where the opcode is.
    pub offset: usize,
    /// Its name.
    pub opcode: String,
    /// What is wrong, and what was expected.
    pub problem: String,
}
