//! The CUDA driver: devices, contexts, looking up functions by name.
//!
//! What the runtime has too (streams, events, graphs, plain allocations) is the runtime's by another name ([`streams`], [`memory`]): arguments
//! and errors are the same numbers.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]

pub mod context;
pub mod cubin;
pub mod mapping;
pub mod memory;
pub mod module;
pub mod streams;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::config::{card, config, devices};
use crate::libc;
use crate::names::{same, say_unanswered};
use crate::runtime::{errors, properties};
use crate::status::{INVALID_DEVICE, INVALID_VALUE, NOT_FOUND, SUCCESS, Status, give, give_text};

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: Status = 100;

/// Whether there is a device of that number.
pub fn is_a_device(device: c_int) -> bool {
    (0..devices()).contains(&device)
}

/// Does it for a device that there is.
unsafe fn for_device(device: c_int, act: impl FnOnce() -> Status) -> Status {
    if is_a_device(device) { act() } else { INVALID_DEVICE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> Status {
    if flags != 0 {
        return INVALID_VALUE;
    }
    if devices() == 0 { NO_DEVICE } else { SUCCESS }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    give(version, config().map_or(0, |config| config.cuda))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
    give(count, devices())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Status {
    for_device(ordinal, || give(device, ordinal))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut u8, room: c_int, device: c_int) -> Status {
    for_device(device, || give_text(name, usize::try_from(room).unwrap_or(0), &card().name))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(to: *mut [u8; 16], device: c_int) -> Status {
    for_device(device, || give(to, properties::uuid(device as usize)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> Status {
    for_device(device, || give(bytes, card().memory as usize))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: c_int) -> Status {
    for_device(device, || match give(major, card().major) {
        SUCCESS => give(minor, card().minor),
        failed => failed,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetExecAffinitySupport(supported: *mut c_int, _kind: c_int, device: c_int) -> Status {
    for_device(device, || give(supported, 0))
}

same! {
    cuDeviceGetUuid_v2 = cuDeviceGetUuid,
    cuDeviceTotalMem = cuDeviceTotalMem_v2,
    cuDeviceGetAttribute = cudaDeviceGetAttribute,
    cuDeviceGetPCIBusId = cudaDeviceGetPCIBusId,
    cuDeviceGetByPCIBusId = cudaDeviceGetByPCIBusId,
    cuDeviceCanAccessPeer = cudaDeviceCanAccessPeer,
    cuDeviceGetP2PAttribute = cudaDeviceGetP2PAttribute,
}

/// Numbers and names of the errors that are returned here, by `cuda.h`. Their texts are the runtime's.
const ERRORS: &[(Status, &CStr)] = &[
    (0, c"CUDA_SUCCESS"),
    (1, c"CUDA_ERROR_INVALID_VALUE"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED"),
    (100, c"CUDA_ERROR_NO_DEVICE"),
    (101, c"CUDA_ERROR_INVALID_DEVICE"),
    (200, c"CUDA_ERROR_INVALID_IMAGE"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT"),
    (301, c"CUDA_ERROR_FILE_NOT_FOUND"),
    (400, c"CUDA_ERROR_INVALID_HANDLE"),
    (500, c"CUDA_ERROR_NOT_FOUND"),
    (600, c"CUDA_ERROR_NOT_READY"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED"),
    (900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
    (901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
    (999, c"CUDA_ERROR_UNKNOWN"),
];

unsafe fn give_known(text: Option<&CStr>, to: *mut *const c_char) -> Status {
    let given = give(to, text.map_or(std::ptr::null(), CStr::as_ptr));
    if text.is_some() { given } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: Status, name: *mut *const c_char) -> Status {
    give_known(ERRORS.iter().find(|known| known.0 == error).map(|known| known.1), name)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: Status, text: *mut *const c_char) -> Status {
    give_known(errors::describe(error).map(|known| known.1), text)
}

/// Private tables, which a CUDA runtime that is linked into a library asks for. None is imitated; such a runtime says that it has no driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(table: *mut *const c_void, _id: *const c_void) -> Status {
    give(table, std::ptr::null());
    NOT_FOUND
}

/// This very object: what it exports is looked up in no other.
fn object() -> *mut c_void {
    static OBJECT: OnceLock<usize> = OnceLock::new();
    let find = || {
        let mut info = libc::DlInfo { file: std::ptr::null(), base: std::ptr::null_mut(), name: std::ptr::null(), address: std::ptr::null_mut() };
        // SAFETY: an address of this object, a place for the answer, and the file's name, which the loader keeps.
        unsafe {
            if libc::dladdr(cuInit as *const c_void, &raw mut info) == 0 {
                return 0;
            }
            libc::dlopen(info.file, libc::RTLD_NOW | libc::RTLD_NOLOAD) as usize
        }
    };
    *OBJECT.get_or_init(find) as *mut c_void
}

fn exported(name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: an object that stays loaded, and a name that ends.
    let found = unsafe { libc::dlsym(object(), name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The driver's function of a name, in the form that CUDA had at `version`.
fn entry_point(name: &str, version: c_int) -> Option<*mut c_void> {
    if !name.starts_with("cu") || name.starts_with("cuda") || object().is_null() {
        return None;
    }
    // Where forms differ in their arguments; all others are the same function by several names.
    match (name, version) {
        ("cuStreamGetCaptureInfo", ..11_030) => return exported(name),
        ("cuStreamGetCaptureInfo", ..12_030) => return exported("cuStreamGetCaptureInfo_v2"),
        ("cuGetProcAddress", 12_000..) => return exported("cuGetProcAddress_v2"),
        ("cuCtxCreate", 13_000..) => return exported("cuCtxCreate_v4"),
        ("cuStreamGetCaptureInfo", _) => return exported("cuStreamGetCaptureInfo_v3"),
        _ => {}
    }
    exported(name).or_else(|| ["_v2", "_v3", "_v4"].iter().find_map(|form| exported(&format!("{name}{form}"))))
}

/// As `cuGetProcAddress` and the runtime's `cudaGetDriverEntryPoint` look up.
///
/// # Safety
///
/// `name` is null or ends; the others are null or places for answers.
pub unsafe fn give_entry_point(name: *const c_char, function: *mut *mut c_void, version: c_int, found: *mut c_int) -> Status {
    /// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
    const SYMBOL_NOT_FOUND: c_int = 1;
    if name.is_null() || function.is_null() {
        return INVALID_VALUE;
    }
    let name = CStr::from_ptr(name).to_string_lossy();
    let entry = entry_point(&name, version);
    if !found.is_null() {
        give(found, if entry.is_some() { 0 } else { SYMBOL_NOT_FOUND });
    }
    give(function, entry.unwrap_or(std::ptr::null_mut()));
    if entry.is_some() { SUCCESS } else { NOT_FOUND }
}

/// The form of CUDA 11, which does not say whether it found something.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(name: *const c_char, function: *mut *mut c_void, version: c_int, _flags: u64) -> Status {
    give_entry_point(name, function, version, std::ptr::null_mut())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    _flags: u64,
    found: *mut c_int,
) -> Status {
    give_entry_point(name, function, version, found)
}

/// A descriptor of a tensor for the copy engine of Hopper: 128 bytes that only a kernel reads.
unsafe fn give_tensor_map(map: *mut [u8; 128]) -> Status {
    give(map, [0; 128])
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(map: *mut [u8; 128]) -> Status {
    give_tensor_map(map)
}

same! {
    cuTensorMapEncodeIm2col = cuTensorMapEncodeTiled,
    cuTensorMapEncodeIm2colWide = cuTensorMapEncodeTiled,
}

/// What needs several cards or other processes, and is refused as a card without it refuses.
macro_rules! refuses {
    ($($name:ident)*) => { $(
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> Status {
            say_unanswered!(stringify!($name));
            crate::status::NOT_SUPPORTED
        }
    )* };
}

refuses! {
    cuMulticastCreate cuMulticastAddDevice cuMulticastBindMem cuMulticastBindAddr cuMulticastUnbind cuMulticastGetGranularity
    cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemGetHandleForAddressRange
    cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxStreamCreate cuCtxFromGreenCtx cuDeviceGetDevResource cuDevSmResourceSplitByCount cuDevResourceGenerateDesc
    cuImportExternalMemory cuImportExternalSemaphore cuArrayCreate_v2 cuArray3DCreate_v2 cuMipmappedArrayCreate cuTexObjectCreate cuSurfObjectCreate
}
