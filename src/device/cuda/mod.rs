//! Real NVIDIA GPUs. The only place that names cudarc.
//!
//! [`Gpu`] opens a card, [`CudaMemory`] takes segments from its driver, and [`CudaLauncher`] runs a
//! program's launches with kernels compiled on the spot, cuBLASLt and cuDNN. All of it belongs to one
//! thread, and everything runs on one stream, in the order in which it was queued.
//!
//! NVIDIA's libraries are loaded at run time. cudarc panics where one is missing, so [`Library`] is asked
//! first, and their absence is a [`GpuError`].
#![doc = include_str!("NOTES.md")]

pub mod cudnn;

mod attention;
mod compile;
mod convolution;
mod cublas;
mod elementwise;
mod error;
mod expandable;
mod fused_attention;
mod gather;
mod gpu;
mod held;
mod kernel_cache;
mod kernels;
mod launcher;
mod layout;
mod libraries;
mod loss;
mod losses;
mod masks;
mod matmul;
mod memory;
mod norm;
mod nvml;
mod optimizer;
mod poison;
mod pool;
mod random;
mod record;
mod reduce;
mod script;

pub use compile::check_kernels;
pub use cudnn::Tf32;
pub use error::GpuError;
pub use gpu::{Facts, Gpu};
pub use launcher::{CudaLauncher, LauncherOptions};
pub use libraries::Library;
pub use memory::CudaMemory;
pub use nvml::{Card, Meter, Usage, cards};
pub use record::record_workspaces;
pub use script::{
    Gradients, HostTensor, Outputs, Script, TensorFileError, read_tensors, write_tensors,
};
