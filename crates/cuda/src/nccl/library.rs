//! The functions of the NCCL library, looked up once.
//!
//! cudarc has them too, behind a feature of its own; but it panics where the library is missing, and asks for `libnccl.so`
//! first, which PyTorch's wheels do not bring. The declarations are those of nccl.h of NCCL 2.28.

use std::ffi::{CStr, c_char, c_int, c_void};

use cudarc::driver::sys::CUstream;

use crate::driver::error::GpuError;

/// File names to try, best first.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// `ncclUniqueId`: where the ranks of a communicator find each other.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// `ncclComm_t`.
pub(super) type Comm = *mut c_void;

/// `ncclSuccess`.
pub(super) const SUCCESS: c_int = 0;

c_library! {
    /// What is used of NCCL, by the C names without their prefix.
    pub(super) Functions from NAMES;
    get_version = b"ncclGetVersion" fn(*mut c_int) -> c_int;
    get_unique_id = b"ncclGetUniqueId" fn(*mut UniqueId) -> c_int;
    comm_init_rank = b"ncclCommInitRank" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int;
    comm_abort = b"ncclCommAbort" fn(Comm) -> c_int;
    get_error_string = b"ncclGetErrorString" fn(c_int) -> *const c_char;
    get_last_error = b"ncclGetLastError" fn(Comm) -> *const c_char;
    /// `send, receive, count, type, operation, communicator, stream`.
    all_reduce = b"ncclAllReduce" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
    /// `send, receive, count, type, root, communicator, stream`.
    broadcast = b"ncclBroadcast" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
    /// `send, receive, count sent, type, communicator, stream`.
    all_gather = b"ncclAllGather" fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> c_int;
    /// `send, receive, count received, type, operation, communicator, stream`.
    reduce_scatter = b"ncclReduceScatter" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
}

impl Functions {
    /// Turns a status into a result. `comm` is null where there is no communicator yet.
    pub(super) fn check(
        &self,
        call: &'static str,
        comm: Comm,
        status: c_int,
    ) -> Result<(), GpuError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: any number is taken, and a communicator that is null or alive; both give text that NCCL keeps.
        let (what, why) = unsafe { ((self.get_error_string)(status), (self.get_last_error)(comm)) };
        let words: Vec<String> = [what, why]
            .into_iter()
            .filter(|text| !text.is_null())
            .map(|text| {
                // SAFETY: not null, so text that ends in a zero byte.
                unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .into_owned()
            })
            .filter(|text| !text.trim().is_empty())
            .collect();
        Err(GpuError::Call {
            call,
            detail: words.join(": ").replace('\n', " "),
        })
    }
}

/// The loaded library, or why there is none.
pub(super) fn functions() -> Result<&'static Functions, GpuError> {
    Functions::loaded().ok_or_else(|| GpuError::LibrariesMissing {
        libraries: "NCCL (libnccl.so.2)".to_owned(),
    })
}
