//! The CUDA runtime: devices, streams, events, capture, copies, launches.
//!
//! Signatures are those of `cuda_runtime_api.h` of CUDA 12 and 13. Where the two differ under one name, the session's CUDA version decides;
//! names that only one of them has are simply there. Names ending in `_ptsz` and `_ptds` are what programs import that were compiled with a
//! default stream for each thread: nothing runs, so which default stream is meant makes no difference.
#![allow(non_snake_case, missing_docs)] // the names are CUDA's, and so is their documentation

/// Functions of the runtime: an error is also kept as the thread's last.
macro_rules! runtime {
    ($($functions:tt)*) => { $crate::names::functions! { @$crate::runtime::errors::keep; $($functions)* } };
}
pub(crate) use runtime;

mod arguments;
pub mod capture;
pub mod devices;
pub mod errors;
pub mod graph;
mod images;
pub mod launch;
pub mod memory;
pub mod pool;
pub mod properties;
pub mod streams;
pub mod trace;
pub mod variables;

pub use devices::current_device;

use crate::config::config;
use crate::status::check;

/// Whether a name that CUDA 12 and 13 share has its meaning of 13.
fn is_13() -> bool {
    config().is_none_or(|config| config.cuda >= 13000)
}

/// What another function of the runtime returned.
fn passed(status: crate::status::Status) -> Result<(), crate::status::Status> {
    check(status == 0, status)
}
