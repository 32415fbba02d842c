//! CUDA's libraries: the calls whose answers matter. What only computes is in [`crate::names`].

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]

pub mod blas;
pub mod cupti;
pub mod fft;
pub mod nccl;
pub mod solver;
pub mod sparse;

use std::ffi::{CStr, c_int, c_void};

use crate::libc;

/// A function of the real library, which PyTorch loaded and of which nothing else is called: for what is the same with and without a card.
pub fn real(library: &[&CStr], name: &CStr) -> Option<*mut c_void> {
    library.iter().find_map(|file| libc::symbol(libc::loaded(file)?, name))
}

/// The version that the real library writes; `other` where it is not there.
pub fn version(library: &[&CStr], name: &CStr, mut other: c_int) -> c_int {
    type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
    if let Some(function) = real(library, name) {
        // SAFETY: the function of this name, which writes a constant.
        unsafe { std::mem::transmute::<*mut c_void, Version>(function)(&raw mut other) };
    }
    other
}
