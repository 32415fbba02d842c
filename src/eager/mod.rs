//! PyTorch's eager mode without values: tensors, storages, autograd, autocast and checkpoints.
//!
//! Knows no operator; those are in the module `ops`. Ownership here *is* ownership in PyTorch: a storage is
//! freed in the program when its last owner is dropped.

mod autocast;
mod autograd;
mod checkpoint;
mod engine;
mod host_number;
mod process;
mod recorder;
mod tensor;
mod writing;

pub(crate) use autograd::{Draft, Saved, Slot};
pub(crate) use checkpoint::{Frame, Region};
pub(crate) use engine::backward;
pub(crate) use process::{Eager, Stop, Thread, Watcher};
pub(crate) use recorder::Storage;
pub(crate) use tensor::{Elements, History, Leaf, Tensor, TensorBody};
pub(crate) use writing::viewed;
