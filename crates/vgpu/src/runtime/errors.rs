//! Each thread's last error; names and texts of errors.

use std::cell::Cell;
use std::ffi::{CStr, c_char};

use crate::fork;
use crate::status::{SUCCESS, Status};

pub const NOT_INITIALIZED: Status = 3;
pub const INVALID_CONFIGURATION: Status = 9;
pub const INVALID_PITCH: Status = 12;
pub const INVALID_SYMBOL: Status = 13;
pub const INVALID_DIRECTION: Status = 21;
pub const MISSING_CONFIGURATION: Status = 52;
pub const INVALID_FUNCTION: Status = 98;
pub const NO_DEVICE: Status = 100;
pub const UNINITIALIZED: Status = 201;
pub const UNSUPPORTED_LIMIT: Status = 215;
pub const ILLEGAL_STATE: Status = 401;
pub const SYMBOL_NOT_FOUND: Status = 500;
pub const PEER_ALREADY_ENABLED: Status = 704;
pub const PEER_NOT_ENABLED: Status = 705;
pub const ALREADY_REGISTERED: Status = 712;
pub const NOT_REGISTERED: Status = 713;
pub const COOPERATIVE_TOO_LARGE: Status = 720;
pub const CAPTURE_UNSUPPORTED: Status = 900;
pub const CAPTURE_INVALIDATED: Status = 901;
pub const CAPTURE_MERGE: Status = 902;
pub const CAPTURE_UNMATCHED: Status = 903;
pub const CAPTURE_UNJOINED: Status = 904;
pub const CAPTURE_ISOLATION: Status = 905;
pub const CAPTURE_IMPLICIT: Status = 906;
pub const CAPTURED_EVENT: Status = 907;
pub const CAPTURE_WRONG_THREAD: Status = 908;

/// As `cudaGetErrorName` and `cudaGetErrorString` of CUDA 13.0 answer.
const ERRORS: &[(Status, &CStr, &CStr)] = &[
    (0, c"cudaSuccess", c"no error"),
    (1, c"cudaErrorInvalidValue", c"invalid argument"),
    (2, c"cudaErrorMemoryAllocation", c"out of memory"),
    (3, c"cudaErrorInitializationError", c"initialization error"),
    (4, c"cudaErrorCudartUnloading", c"driver shutting down"),
    (9, c"cudaErrorInvalidConfiguration", c"invalid configuration argument"),
    (12, c"cudaErrorInvalidPitchValue", c"invalid pitch argument"),
    (13, c"cudaErrorInvalidSymbol", c"invalid device symbol"),
    (17, c"cudaErrorInvalidDevicePointer", c"invalid device pointer"),
    (21, c"cudaErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy"),
    (35, c"cudaErrorInsufficientDriver", c"CUDA driver version is insufficient for CUDA runtime version"),
    (36, c"cudaErrorCallRequiresNewerDriver", c"API call is not supported in the installed CUDA driver"),
    (46, c"cudaErrorDevicesUnavailable", c"CUDA-capable device(s) is/are busy or unavailable"),
    (52, c"cudaErrorMissingConfiguration", c"__global__ function call is not configured"),
    (98, c"cudaErrorInvalidDeviceFunction", c"invalid device function"),
    (100, c"cudaErrorNoDevice", c"no CUDA-capable device is detected"),
    (101, c"cudaErrorInvalidDevice", c"invalid device ordinal"),
    (200, c"cudaErrorInvalidKernelImage", c"device kernel image is invalid"),
    (201, c"cudaErrorDeviceUninitialized", c"invalid device context"),
    (209, c"cudaErrorNoKernelImageForDevice", c"no kernel image is available for execution on the device"),
    (215, c"cudaErrorUnsupportedLimit", c"limit is not supported on this architecture"),
    (217, c"cudaErrorPeerAccessUnsupported", c"peer access is not supported between these two devices"),
    (218, c"cudaErrorInvalidPtx", c"a PTX JIT compilation failed"),
    (221, c"cudaErrorJitCompilerNotFound", c"PTX JIT compiler library not found"),
    (222, c"cudaErrorUnsupportedPtxVersion", c"the provided PTX was compiled with an unsupported toolchain."),
    (301, c"cudaErrorFileNotFound", c"file not found"),
    (302, c"cudaErrorSharedObjectSymbolNotFound", c"shared object symbol not found"),
    (304, c"cudaErrorOperatingSystem", c"OS call failed or operation not supported on this OS"),
    (400, c"cudaErrorInvalidResourceHandle", c"invalid resource handle"),
    (401, c"cudaErrorIllegalState", c"the operation cannot be performed in the present state"),
    (500, c"cudaErrorSymbolNotFound", c"named symbol not found"),
    (600, c"cudaErrorNotReady", c"device not ready"),
    (700, c"cudaErrorIllegalAddress", c"an illegal memory access was encountered"),
    (701, c"cudaErrorLaunchOutOfResources", c"too many resources requested for launch"),
    (702, c"cudaErrorLaunchTimeout", c"the launch timed out and was terminated"),
    (704, c"cudaErrorPeerAccessAlreadyEnabled", c"peer access is already enabled"),
    (705, c"cudaErrorPeerAccessNotEnabled", c"peer access has not been enabled"),
    (709, c"cudaErrorContextIsDestroyed", c"context is destroyed"),
    (710, c"cudaErrorAssert", c"device-side assert triggered"),
    (712, c"cudaErrorHostMemoryAlreadyRegistered", c"part or all of the requested memory range is already mapped"),
    (713, c"cudaErrorHostMemoryNotRegistered", c"pointer does not correspond to a registered memory region"),
    (716, c"cudaErrorMisalignedAddress", c"misaligned address"),
    (719, c"cudaErrorLaunchFailure", c"unspecified launch failure"),
    (720, c"cudaErrorCooperativeLaunchTooLarge", c"too many blocks in cooperative launch"),
    (800, c"cudaErrorNotPermitted", c"operation not permitted"),
    (801, c"cudaErrorNotSupported", c"operation not supported"),
    (802, c"cudaErrorSystemNotReady", c"system not yet initialized"),
    (803, c"cudaErrorSystemDriverMismatch", c"system has unsupported display driver / cuda driver combination"),
    (900, c"cudaErrorStreamCaptureUnsupported", c"operation not permitted when stream is capturing"),
    (901, c"cudaErrorStreamCaptureInvalidated", c"operation failed due to a previous error during capture"),
    (902, c"cudaErrorStreamCaptureMerge", c"operation would result in a merge of separate capture sequences"),
    (903, c"cudaErrorStreamCaptureUnmatched", c"capture was not ended in the same stream as it began"),
    (904, c"cudaErrorStreamCaptureUnjoined", c"capturing stream has unjoined work"),
    (905, c"cudaErrorStreamCaptureIsolation", c"dependency created on uncaptured work in another stream"),
    (906, c"cudaErrorStreamCaptureImplicit", c"operation would make the legacy stream depend on a capturing blocking stream"),
    (907, c"cudaErrorCapturedEvent", c"operation not permitted on an event last recorded in a capturing stream"),
    (908, c"cudaErrorStreamCaptureWrongThread", c"attempt to terminate a thread-local capture sequence from another thread"),
    (
        910,
        c"cudaErrorGraphExecUpdateFailure",
        c"the graph update was not performed because it included changes which violated constraints specific to instantiated graph update",
    ),
    (912, c"cudaErrorInvalidClusterSize", c"a kernel launch error has occurred due to cluster misconfiguration"),
    (999, c"cudaErrorUnknown", c"unknown error"),
];
const UNRECOGNIZED: &CStr = c"unrecognized error code";

thread_local! {
    static LAST: Cell<Status> = const { Cell::new(SUCCESS) };
}

/// What an answer is returned as; an error is the thread's last from now on. In a fork of a process that used a device there is no other.
pub fn keep(answer: impl FnOnce() -> Result<(), Status>) -> Status {
    let answer = if fork::is_device_lost() { Err(NOT_INITIALIZED) } else { answer() };
    if let Err(status) = answer {
        LAST.set(status);
    }
    answer.err().unwrap_or(SUCCESS)
}

/// Name and text of an error, also of the driver's that has the same number.
pub fn describe(status: Status) -> Option<(&'static CStr, &'static CStr)> {
    let found = ERRORS.binary_search_by_key(&status, |error| error.0).ok()?;
    Some((ERRORS[found].1, ERRORS[found].2))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> Status {
    LAST.replace(SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> Status {
    LAST.get()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorName(status: Status) -> *const c_char {
    describe(status).map_or(UNRECOGNIZED, |error| error.0).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorString(status: Status) -> *const c_char {
    describe(status).map_or(UNRECOGNIZED, |error| error.1).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::{ERRORS, cudaGetLastError, cudaPeekAtLastError, keep};

    #[test]
    fn errors_are_sorted_for_the_search() {
        assert!(ERRORS.is_sorted_by(|one, next| one.0 < next.0));
    }

    #[test]
    fn the_last_error_is_a_threads_own_and_is_taken_once() {
        assert_eq!(keep(|| Err(2)), 2);
        assert_eq!(keep(|| Ok(())), 0);
        assert_eq!(std::thread::spawn(|| cudaPeekAtLastError()).join().ok(), Some(0));
        assert_eq!(cudaGetLastError(), 2);
        assert_eq!(cudaGetLastError(), 0);
    }
}
