//! Each thread's last error; names and texts of errors.

use std::cell::Cell;
use std::ffi::{CStr, c_char};

use crate::fork;
use crate::status::{SUCCESS, Status};

/// Numbers of errors, names of those that are returned here, and what `cudaGetErrorName`, `cudaGetErrorString` of CUDA 13.0 and, for the driver's that are
/// returned here, `cuGetErrorName` answer.
macro_rules! errors {
    ($($number:literal $($name:ident)? = $cuda:expr, $text:expr $(, $driver:expr)?;)*) => {
        $($(pub const $name: Status = $number;)?)*
        const ERRORS: &[(Status, &CStr, &CStr, &[&CStr])] = &[$(($number, $cuda, $text, &[$($driver)?])),*];
    };
}

errors! {
    0 = c"cudaSuccess", c"no error", c"CUDA_SUCCESS";
    1 = c"cudaErrorInvalidValue", c"invalid argument", c"CUDA_ERROR_INVALID_VALUE";
    2 = c"cudaErrorMemoryAllocation", c"out of memory", c"CUDA_ERROR_OUT_OF_MEMORY";
    3 NOT_INITIALIZED = c"cudaErrorInitializationError", c"initialization error", c"CUDA_ERROR_NOT_INITIALIZED";
    4 = c"cudaErrorCudartUnloading", c"driver shutting down";
    9 INVALID_CONFIGURATION = c"cudaErrorInvalidConfiguration", c"invalid configuration argument";
    12 INVALID_PITCH = c"cudaErrorInvalidPitchValue", c"invalid pitch argument";
    13 INVALID_SYMBOL = c"cudaErrorInvalidSymbol", c"invalid device symbol";
    17 = c"cudaErrorInvalidDevicePointer", c"invalid device pointer";
    21 INVALID_DIRECTION = c"cudaErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy";
    35 = c"cudaErrorInsufficientDriver", c"CUDA driver version is insufficient for CUDA runtime version";
    36 = c"cudaErrorCallRequiresNewerDriver", c"API call is not supported in the installed CUDA driver";
    46 = c"cudaErrorDevicesUnavailable", c"CUDA-capable device(s) is/are busy or unavailable";
    52 MISSING_CONFIGURATION = c"cudaErrorMissingConfiguration", c"__global__ function call is not configured";
    98 INVALID_FUNCTION = c"cudaErrorInvalidDeviceFunction", c"invalid device function";
    100 NO_DEVICE = c"cudaErrorNoDevice", c"no CUDA-capable device is detected", c"CUDA_ERROR_NO_DEVICE";
    101 = c"cudaErrorInvalidDevice", c"invalid device ordinal", c"CUDA_ERROR_INVALID_DEVICE";
    200 = c"cudaErrorInvalidKernelImage", c"device kernel image is invalid", c"CUDA_ERROR_INVALID_IMAGE";
    201 = c"cudaErrorDeviceUninitialized", c"invalid device context", c"CUDA_ERROR_INVALID_CONTEXT";
    209 = c"cudaErrorNoKernelImageForDevice", c"no kernel image is available for execution on the device";
    215 UNSUPPORTED_LIMIT = c"cudaErrorUnsupportedLimit", c"limit is not supported on this architecture";
    217 = c"cudaErrorPeerAccessUnsupported", c"peer access is not supported between these two devices";
    218 = c"cudaErrorInvalidPtx", c"a PTX JIT compilation failed";
    221 = c"cudaErrorJitCompilerNotFound", c"PTX JIT compiler library not found";
    222 = c"cudaErrorUnsupportedPtxVersion", c"the provided PTX was compiled with an unsupported toolchain.";
    301 = c"cudaErrorFileNotFound", c"file not found", c"CUDA_ERROR_FILE_NOT_FOUND";
    302 = c"cudaErrorSharedObjectSymbolNotFound", c"shared object symbol not found";
    304 = c"cudaErrorOperatingSystem", c"OS call failed or operation not supported on this OS";
    400 = c"cudaErrorInvalidResourceHandle", c"invalid resource handle", c"CUDA_ERROR_INVALID_HANDLE";
    401 ILLEGAL_STATE = c"cudaErrorIllegalState", c"the operation cannot be performed in the present state";
    500 SYMBOL_NOT_FOUND = c"cudaErrorSymbolNotFound", c"named symbol not found", c"CUDA_ERROR_NOT_FOUND";
    600 = c"cudaErrorNotReady", c"device not ready", c"CUDA_ERROR_NOT_READY";
    700 = c"cudaErrorIllegalAddress", c"an illegal memory access was encountered";
    701 = c"cudaErrorLaunchOutOfResources", c"too many resources requested for launch";
    702 = c"cudaErrorLaunchTimeout", c"the launch timed out and was terminated";
    704 PEER_ALREADY_ENABLED = c"cudaErrorPeerAccessAlreadyEnabled", c"peer access is already enabled";
    705 PEER_NOT_ENABLED = c"cudaErrorPeerAccessNotEnabled", c"peer access has not been enabled";
    709 = c"cudaErrorContextIsDestroyed", c"context is destroyed";
    710 = c"cudaErrorAssert", c"device-side assert triggered";
    712 ALREADY_REGISTERED = c"cudaErrorHostMemoryAlreadyRegistered", c"part or all of the requested memory range is already mapped";
    713 NOT_REGISTERED = c"cudaErrorHostMemoryNotRegistered", c"pointer does not correspond to a registered memory region";
    716 = c"cudaErrorMisalignedAddress", c"misaligned address";
    719 = c"cudaErrorLaunchFailure", c"unspecified launch failure";
    720 COOPERATIVE_TOO_LARGE = c"cudaErrorCooperativeLaunchTooLarge", c"too many blocks in cooperative launch";
    800 = c"cudaErrorNotPermitted", c"operation not permitted";
    801 = c"cudaErrorNotSupported", c"operation not supported", c"CUDA_ERROR_NOT_SUPPORTED";
    802 = c"cudaErrorSystemNotReady", c"system not yet initialized";
    803 = c"cudaErrorSystemDriverMismatch", c"system has unsupported display driver / cuda driver combination";
    900 CAPTURE_UNSUPPORTED = c"cudaErrorStreamCaptureUnsupported", c"operation not permitted when stream is capturing", c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    901 CAPTURE_INVALIDATED = c"cudaErrorStreamCaptureInvalidated", c"operation failed due to a previous error during capture", c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    902 CAPTURE_MERGE = c"cudaErrorStreamCaptureMerge", c"operation would result in a merge of separate capture sequences";
    903 CAPTURE_UNMATCHED = c"cudaErrorStreamCaptureUnmatched", c"capture was not ended in the same stream as it began";
    904 CAPTURE_UNJOINED = c"cudaErrorStreamCaptureUnjoined", c"capturing stream has unjoined work";
    905 CAPTURE_ISOLATION = c"cudaErrorStreamCaptureIsolation", c"dependency created on uncaptured work in another stream";
    906 CAPTURE_IMPLICIT = c"cudaErrorStreamCaptureImplicit", c"operation would make the legacy stream depend on a capturing blocking stream";
    907 CAPTURED_EVENT = c"cudaErrorCapturedEvent", c"operation not permitted on an event last recorded in a capturing stream";
    908 CAPTURE_WRONG_THREAD = c"cudaErrorStreamCaptureWrongThread", c"attempt to terminate a thread-local capture sequence from another thread";
    910 = c"cudaErrorGraphExecUpdateFailure", c"the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    912 = c"cudaErrorInvalidClusterSize", c"a kernel launch error has occurred due to cluster misconfiguration";
    999 = c"cudaErrorUnknown", c"unknown error", c"CUDA_ERROR_UNKNOWN";
}
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

/// Name and text of an error, also of the driver's that has the same number, and the driver's name.
pub fn describe(status: Status) -> Option<(&'static CStr, &'static CStr, Option<&'static CStr>)> {
    let found = ERRORS.binary_search_by_key(&status, |error| error.0).ok()?;
    let (_, name, text, driver) = ERRORS[found];
    Some((name, text, driver.first().copied()))
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
