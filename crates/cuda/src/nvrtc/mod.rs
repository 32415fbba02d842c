//! Our own kernels: compiled with NVRTC, kept on disk, loaded on a card.

pub(crate) mod compile;
pub(crate) mod files;
pub(crate) mod kernel_cache;
pub(crate) mod kernels;
