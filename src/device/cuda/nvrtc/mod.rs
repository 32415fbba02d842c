//! Our own kernels: compiled with NVRTC, kept on disk, loaded on a card.

pub(in crate::device::cuda) mod compile;
pub(in crate::device::cuda) mod files;
pub(in crate::device::cuda) mod kernel_cache;
pub(in crate::device::cuda) mod kernels;
