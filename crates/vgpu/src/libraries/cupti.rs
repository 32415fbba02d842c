//! CUPTI, which PyTorch's profiler subscribes to: nothing is ever recorded.

use std::ffi::{c_char, c_int, c_void};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::config::config;
use crate::handle::fresh;
use crate::libraries::version;
use crate::names::{done, functions};
use crate::status::refuses_null;

/// `CUptiResult`.
type Status = c_int;
const INVALID_PARAMETER: Status = 1;
const MAX_LIMIT_REACHED: Status = 12;

refuses_null! { INVALID_PARAMETER }

functions! {
    // CUPTI counts as CUDA does, in hundreds.
    cuptiGetVersion(to: *mut c_int) { out(to, version(&[c"libcupti.so.13", c"libcupti.so.12"], c"cuptiGetVersion", config().map_or(0, |config| config.cuda * 10))) }
    cuptiGetResultString(status: Status, text: *mut *const c_char) { out(text, if status == 0 { c"CUPTI_SUCCESS" } else { c"CUPTI_ERROR_NOT_INITIALIZED" }.as_ptr()) }
    cuptiGetCallbackName(_domain: c_int, _callback: u32, name: *mut *const c_char) { out(name, c"".as_ptr()) }
    cuptiActivityGetNextRecord(_buffer: *const u8, _bytes: usize, _record: *mut *mut c_void) { Err(MAX_LIMIT_REACHED) }
    cuptiActivityGetNumDroppedRecords(_context: u64, _stream: u32, dropped: *mut usize) { out(dropped, 0) }
    cuptiActivityPopExternalCorrelationId(_kind: c_int, last: *mut u64) {
        let _ = out(last, 0);
        Ok(())
    }
    cuptiSubscribe(subscriber: *mut u64, _callback: *const c_void, _data: *const c_void) { out(subscriber, fresh()) }
    cuptiGetTimestamp(to: *mut u64) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        out(to, since.map_or(0, |since| since.as_nanos() as u64))
    }
}

done! { cuptiActivityFlushAll cuptiUnsubscribe cuptiFinalize }
