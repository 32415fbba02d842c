//! In front of the real cuDNN, which answers without a device.
//!
//! cuDNN's graph interface describes an operation, asks heuristics for engines, and builds plans of them. Since 9.8 it does all but the last
//! without a device, when it is told of one in words; [`backend`] tells it of the card behind the caller's back and never builds a plan: a plan's
//! workspace is what the engine's configuration says. An older cuDNN, which cannot, is not asked at all ([`stand_in`]).
//!
//! For convolutions `batchfit run` is asked first ([`convolution`]): it has what cuDNN answered on a real card. Where it has not, what cuDNN
//! says without a device is mended where that is known to be wrong ([`refused`], [`stream_k`]; the evidence is in Notes [Without a device] and
//! [Splits of a sum] of `crates/cuda/src/cudnn/NOTES.md`). Calls of the older interface that need a handle are answered in [`recurrent`] and
//! [`legacy`]; handles are numbers.

pub mod backend;
pub mod convolution;
mod engine;
pub mod handle;
pub mod legacy;
pub mod recurrent;
mod refused;
mod stand_in;
mod stream_k;

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::handle::Lock;
use crate::status::{check, refuses_null};
use crate::{channel, libc};

/// `cudnnStatus_t`, as cuDNN 9 numbers it.
pub type Status = c_int;

/// `CUDNN_STATUS_BAD_PARAM`.
pub const BAD_PARAM: Status = 2000;
/// `CUDNN_STATUS_BAD_PARAM_NULL_POINTER`.
pub const NULL_POINTER: Status = 2002;
/// `CUDNN_STATUS_NOT_SUPPORTED`.
pub const NOT_SUPPORTED: Status = 3000;
/// `CUDNN_STATUS_INTERNAL_ERROR`.
pub const INTERNAL_ERROR: Status = 4000;

/// The first version that answers without a device.
const DEVICELESS: usize = 90_800;

refuses_null! { NULL_POINTER }

/// A function of the real cuDNN, which `known` keeps once it is found: a program may load the library after it first asked.
fn find(known: &AtomicUsize, name: &CStr) -> Option<usize> {
    let seen = known.load(Ordering::Relaxed);
    if seen != 0 {
        return Some(seen);
    }
    // Python opens PyTorch for itself: what it links is not among what follows this object, but has its name.
    let library = libc::loaded(c"libcudnn.so.9").or_else(|| libc::loaded(c"libcudnn.so.8"));
    let found = libc::symbol(library.unwrap_or(libc::RTLD_NEXT), name)? as usize;
    known.store(found, Ordering::Relaxed);
    Some(found)
}

/// `real!(cudnnName(argument => type, ..))`: what the real cuDNN answers, or [`INTERNAL_ERROR`] where there is none.
macro_rules! real {
    ($name:ident($($value:expr => $type:ty),* $(,)?)) => {{
        static KNOWN: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        };
        let status = $crate::cudnn::find(&KNOWN, NAME).map_or($crate::cudnn::INTERNAL_ERROR, |at| {
            let function: unsafe extern "C" fn($($type),*) -> $crate::cudnn::Status = std::mem::transmute(at);
            function($($value),*)
        });
        $crate::status::check(status == $crate::status::SUCCESS, status)
    }};
}
use real;

/// The version of the real cuDNN; 0 without one.
fn version() -> usize {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    find(&KNOWN, c"cudnnGetVersion").map_or(0, |at| {
        // SAFETY: cuDNN's function of this name.
        let version: unsafe extern "C" fn() -> usize = unsafe { std::mem::transmute(at) };
        unsafe { version() }
    })
}

/// Whether the real cuDNN can be asked about a card that is not there.
fn is_deviceless() -> bool {
    version() >= DEVICELESS && !engine::card().is_null()
}

/// Says, once, that something has no real answer.
fn unanswered(name: &'static str) {
    static SAID: Lock<BTreeSet<&str>> = Lock::new(BTreeSet::new());
    if SAID.lock().insert(name) {
        channel::say(&format!("unanswered\t{name}"));
    }
}

/// A pointer of the caller's to something that is not looked into.
type Opaque = *mut c_void;
