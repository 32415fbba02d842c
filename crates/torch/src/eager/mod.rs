//! PyTorch's eager mode without values: tensors, storages, autograd, autocast and checkpoints.
//!
//! Knows no operator; those are in the module `ops`. Ownership here *is* ownership in PyTorch: a storage is
//! freed in the program when its last owner is dropped. Locals go at the end of their scope, the last first, as in C++: what has no
//! other use there is called `_name`, and what goes before is in a block of its own or dropped.

mod autocast;
mod autograd;
mod checkpoint;
mod engine;
mod host_number;
mod process;
mod recorder;
mod tensor;
mod writing;

pub use autograd::{OpRecord, Saved, Slot};
pub use checkpoint::{Frame, Region};
pub use engine::{INPUTS, backward, backward_of};
pub use process::{Eager, Output, Outputs, Stop, Thread, Watcher};
pub use recorder::Storage;
pub use tensor::{Elements, History, Leaf, Tensor, TensorBody};
pub use writing::viewed;
