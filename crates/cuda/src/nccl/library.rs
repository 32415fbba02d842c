//! The functions of the NCCL library, looked up once.
//!
//! cudarc has them too, behind a feature of its own; but it panics where the library is missing, and asks for `libnccl.so`
//! first, which PyTorch's wheels do not bring. The declarations are those of nccl.h of NCCL 2.28.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::CUstream;
use libloading::Library;

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

/// What is used of NCCL, by the C names without their prefix.
pub(super) struct Functions {
    pub(super) get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub(super) get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub(super) comm_init_rank: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int,
    pub(super) comm_abort: unsafe extern "C" fn(Comm) -> c_int,
    pub(super) get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub(super) get_last_error: unsafe extern "C" fn(Comm) -> *const c_char,
    /// `send, receive, count, type, operation, communicator, stream`.
    pub(super) all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        CUstream,
    ) -> c_int,
    /// `send, receive, count, type, root, communicator, stream`.
    pub(super) broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        CUstream,
    ) -> c_int,
    /// `send, receive, count sent, type, communicator, stream`.
    pub(super) all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> c_int,
    /// `send, receive, count received, type, operation, communicator, stream`.
    pub(super) reduce_scatter: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        CUstream,
    ) -> c_int,
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
    static LOADED: OnceLock<Option<Functions>> = OnceLock::new();
    LOADED
        .get_or_init(load)
        .as_ref()
        .ok_or_else(|| GpuError::LibrariesMissing {
            libraries: "NCCL (libnccl.so.2)".to_owned(),
        })
}

fn load() -> Option<Functions> {
    NAMES.iter().find_map(|name| {
        // SAFETY: loading NCCL runs its initialisers, which have no preconditions.
        let library = unsafe { Library::new(*name) }.ok()?;
        let functions = look_up(&library);
        // The functions are kept for good, so the library must stay loaded.
        std::mem::forget(library);
        functions
    })
}

fn look_up(library: &Library) -> Option<Functions> {
    /// One function, by its C name.
    fn get<F: Copy>(library: &Library, name: &[u8]) -> Option<F> {
        // SAFETY: `F` is the type of the field that the result goes into, and each field below
        // has the signature that the C header gives the function of that name.
        unsafe { library.get::<F>(name) }.ok().map(|symbol| *symbol)
    }
    Some(Functions {
        get_version: get(library, b"ncclGetVersion")?,
        get_unique_id: get(library, b"ncclGetUniqueId")?,
        comm_init_rank: get(library, b"ncclCommInitRank")?,
        comm_abort: get(library, b"ncclCommAbort")?,
        get_error_string: get(library, b"ncclGetErrorString")?,
        get_last_error: get(library, b"ncclGetLastError")?,
        all_reduce: get(library, b"ncclAllReduce")?,
        broadcast: get(library, b"ncclBroadcast")?,
        all_gather: get(library, b"ncclAllGather")?,
        reduce_scatter: get(library, b"ncclReduceScatter")?,
    })
}
