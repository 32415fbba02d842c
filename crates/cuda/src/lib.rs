//! Real NVIDIA GPUs. The only crate that names cudarc; it knows programs and cards, and no model.
//!
//! [`Gpu`] opens a card, [`CudaMemory`] takes segments from its driver, and [`CudaLauncher`] runs a
//! program's launches with kernels compiled on the spot, cuBLASLt and cuDNN. All of it belongs to one
//! thread, and everything runs on one stream, in the order in which it was queued,
//! but for what it does together with other cards: see Note [Collectives] in `nccl`.
//!
//! NVIDIA's libraries are loaded at run time. cudarc panics where one is missing, so [`Library`] is asked
//! first, and their absence is a [`GpuError`].
#![doc = include_str!("NOTES.md")]
#![allow(unsafe_code)]

#[macro_use]
mod c_library;

pub mod cudnn;

mod checks;
mod driver;
mod generate;
mod launcher;
mod layout;
mod nccl;
mod nvrtc;
mod ops;
pub mod plan;
mod poison;
mod record;
mod script;
mod shared;
mod step_losses;

pub use checks::{check_generated, check_kernels};
pub use cudnn::Tf32;
pub use driver::error::GpuError;
pub use driver::gpu::{Facts, Gpu};
pub use driver::libraries::Library;
pub use driver::memory::CudaMemory;
pub use driver::nvml::{Card, Meter, Usage, cards};
pub use launcher::{CudaLauncher, LauncherOptions};
pub use nccl::{Communicator, Invitation};
pub use record::{record_workspaces, record_workspaces_of_absent};
pub use script::{
    Gradients, HostTensor, Outputs, Script, TensorFileError, read_tensors, write_tensors,
};

use batchfit_card::{alloc, device};
use batchfit_step::{program, shape, units};
#[cfg(test)]
use batchfit_torch::compile;
