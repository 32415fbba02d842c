//! CUPTI, which PyTorch's profiler subscribes to: nothing is ever recorded.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::config::config;
use crate::handle::fresh;
use crate::libraries::real;
use crate::names::done;

/// `CUptiResult`.
type Status = c_int;
const INVALID_PARAMETER: Status = 1;
const MAX_LIMIT_REACHED: Status = 12;

unsafe fn give<T>(to: *mut T, value: T) -> Status {
    if crate::status::give(to, value) == crate::status::SUCCESS { 0 } else { INVALID_PARAMETER }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuptiGetVersion(version: *mut u32) -> Status {
    type Version = unsafe extern "C" fn(*mut u32) -> Status;
    const LIBRARY: &[&CStr] = &[c"libcupti.so.13", c"libcupti.so.12"];
    match real(LIBRARY, c"cuptiGetVersion") {
        // The function of this name, which gives a constant.
        Some(function) if !version.is_null() => std::mem::transmute::<*mut c_void, Version>(function)(version),
        // CUPTI counts as CUDA does, in hundreds.
        _ => give(version, config().map_or(0, |config| config.cuda as u32 * 10)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuptiGetResultString(status: Status, text: *mut *const c_char) -> Status {
    give(text, if status == 0 { c"CUPTI_SUCCESS" } else { c"CUPTI_ERROR_NOT_INITIALIZED" }.as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuptiGetCallbackName(_domain: c_int, _callback: u32, name: *mut *const c_char) -> Status {
    give(name, c"".as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuptiActivityGetNextRecord(_buffer: *const u8, _bytes: usize, _record: *mut *mut c_void) -> Status {
    MAX_LIMIT_REACHED
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuptiActivityGetNumDroppedRecords(_context: u64, _stream: u32, dropped: *mut usize) -> Status {
    give(dropped, 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuptiActivityPopExternalCorrelationId(_kind: c_int, last: *mut u64) -> Status {
    if !last.is_null() {
        give(last, 0);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuptiSubscribe(subscriber: *mut u64, _callback: *const c_void, _data: *const c_void) -> Status {
    give(subscriber, fresh())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuptiGetTimestamp(to: *mut u64) -> Status {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    give(to, since.map_or(0, |since| since.as_nanos() as u64))
}

done! { cuptiActivityFlushAll cuptiUnsubscribe cuptiFinalize }
