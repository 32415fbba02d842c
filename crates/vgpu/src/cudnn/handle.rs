//! cuDNN's handles, and the stream that each was given.

use std::ffi::c_int;

use super::{BAD_PARAM, Opaque, Status, out};
use crate::handle::Handles;
use crate::names::functions;

static STREAMS: Handles<u64> = Handles::new();

/// The stream of a handle that was given out.
pub(super) fn stream_of(handle: u64) -> Result<u64, Status> {
    STREAMS.with(handle, |kept| *kept).ok_or(BAD_PARAM)
}

pub(super) fn check_handle(handle: u64) -> Result<(), Status> {
    stream_of(handle).map(drop)
}

functions! {
    cudnnCreate(handle: *mut u64) { out(handle, STREAMS.insert(0)) }
    cudnnDestroy(handle: u64) { STREAMS.remove(handle).map(drop).ok_or(BAD_PARAM) }
    cudnnSetStream(handle: u64, stream: u64) { STREAMS.with(handle, |kept| *kept = stream).ok_or(BAD_PARAM) }
    cudnnGetStream(handle: u64, stream: *mut u64) { out(stream, stream_of(handle)?) }
    /// Kernels that are not launched do not fail.
    cudnnQueryRuntimeError(handle: u64, status: *mut Status, _mode: c_int, _tag: Opaque) {
        out(status, 0)?;
        check_handle(handle)
    }
}
