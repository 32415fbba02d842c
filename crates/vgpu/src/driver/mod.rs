//! The CUDA driver: devices, contexts, looking up functions by name.
//!
//! What the runtime has too (streams, events, graphs, plain allocations) is the runtime's by another name ([`streams`], [`memory`]): arguments
//! and errors are the same numbers.

pub mod context;
mod cubin;
pub mod mapping;
pub mod memory;
pub mod module;
pub mod streams;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::config::{card, config};
use crate::libc;
use crate::names::{functions, refuses, same};
use crate::runtime::devices::{self, count, of_machine};
use crate::runtime::{errors, properties};
use crate::status::{INVALID_DEVICE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, Status, check, out, out_if, out_text};

/// A device that there is.
fn device(number: c_int) -> Result<usize, Status> {
    usize::try_from(number).ok().filter(|_| number < count()).ok_or(INVALID_DEVICE)
}

/// This very object: what it exports is looked up in no other.
fn object() -> Option<*mut c_void> {
    static OBJECT: OnceLock<Option<usize>> = OnceLock::new();
    let find = || {
        let mut info = libc::DlInfo { file: std::ptr::null(), base: std::ptr::null_mut(), name: std::ptr::null(), address: std::ptr::null_mut() };
        // SAFETY: an address of this object, a place for the answer, and the file's name, which the loader keeps.
        let file = unsafe { (libc::dladdr(cuInit as *const c_void, &raw mut info) != 0).then(|| CStr::from_ptr(info.file))? };
        libc::loaded(file).map(|object| object as usize)
    };
    OBJECT.get_or_init(find).map(|object| object as *mut c_void)
}

fn exported(name: &str) -> Option<*mut c_void> {
    libc::symbol(object()?, &CString::new(name).ok()?)
}

/// The driver's function of a name, in the form that CUDA had at `version`.
fn entry_point(name: &str, version: c_int) -> Option<*mut c_void> {
    if !name.starts_with("cu") || name.starts_with("cuda") {
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
/// Safety: `name` is null or ends; the others are null or places for answers.
pub unsafe fn out_entry_point(name: *const c_char, function: *mut *mut c_void, version: c_int, found: *mut c_int) -> Result<(), Status> {
    /// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
    const SYMBOL_NOT_FOUND: c_int = 1;
    check(!name.is_null() && !function.is_null(), INVALID_VALUE)?;
    let entry = entry_point(&CStr::from_ptr(name).to_string_lossy(), version);
    out_if(found, if entry.is_some() { 0 } else { SYMBOL_NOT_FOUND });
    out(function, entry.unwrap_or(std::ptr::null_mut()))?;
    check(entry.is_some(), NOT_FOUND)
}

unsafe fn out_known(text: Option<&CStr>, to: *mut *const c_char) -> Result<(), Status> {
    let given = out(to, text.map_or(std::ptr::null(), CStr::as_ptr));
    text.ok_or(INVALID_VALUE).and(given)
}

functions! {
    cuInit(flags: c_uint) {
        check(flags == 0, INVALID_VALUE)?;
        check(count() > 0, errors::NO_DEVICE)
    }
    cuDriverGetVersion(version: *mut c_int) { out(version, config().map_or(0, |config| config.cuda)) }
    cuDeviceGetCount(count: *mut c_int) { out(count, devices::count()) }
    cuDeviceGet(to: *mut c_int, ordinal: c_int) { out(to, device(ordinal)? as c_int) }
    cuDeviceGetName(name: *mut u8, room: c_int, of: c_int) {
        device(of)?;
        out_text(name, usize::try_from(room).unwrap_or(0), &card().name)
    }
    cuDeviceGetUuid(to: *mut [u8; 16], of: c_int) { out(to, properties::uuid(of_machine(device(of)?))) }
    cuDeviceTotalMem_v2(bytes: *mut usize, of: c_int) { device(of).and_then(|_| out(bytes, card().memory as usize)) }
    cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, of: c_int) {
        device(of)?;
        out(major, card().major)?;
        out(minor, card().minor)
    }
    cuDeviceGetExecAffinitySupport(supported: *mut c_int, _kind: c_int, of: c_int) { device(of).and_then(|_| out(supported, 0)) }
    cuGetErrorName(error: Status, name: *mut *const c_char) { out_known(errors::describe(error).and_then(|known| known.2), name) }
    cuGetErrorString(error: Status, text: *mut *const c_char) { out_known(errors::describe(error).map(|known| known.1), text) }
    /// Private tables, which a CUDA runtime that is linked into a library asks for. None is imitated; such a runtime says that it has no driver.
    cuGetExportTable(table: *mut *const c_void, _id: *const c_void) {
        out_if(table, std::ptr::null());
        Err(NOT_FOUND)
    }
    /// The form of CUDA 11, which does not say whether it found something.
    cuGetProcAddress(name: *const c_char, function: *mut *mut c_void, version: c_int, _flags: u64) { out_entry_point(name, function, version, std::ptr::null_mut()) }
    cuGetProcAddress_v2(name: *const c_char, function: *mut *mut c_void, version: c_int, _flags: u64, found: *mut c_int) { out_entry_point(name, function, version, found) }
    /// A descriptor of a tensor for the copy engine of Hopper: 128 bytes that only a kernel reads.
    cuTensorMapEncodeTiled(map: *mut [u8; 128]) { out(map, [0; 128]) }
}

same! {
    cuDeviceGetUuid_v2 = cuDeviceGetUuid, cuDeviceTotalMem = cuDeviceTotalMem_v2, cuDeviceGetAttribute = cudaDeviceGetAttribute,
    cuDeviceGetPCIBusId = cudaDeviceGetPCIBusId, cuDeviceGetByPCIBusId = cudaDeviceGetByPCIBusId,
    cuDeviceCanAccessPeer = cudaDeviceCanAccessPeer, cuDeviceGetP2PAttribute = cudaDeviceGetP2PAttribute,
    cuTensorMapEncodeIm2col = cuTensorMapEncodeTiled, cuTensorMapEncodeIm2colWide = cuTensorMapEncodeTiled,
}

// What needs several cards or other processes.
refuses! {
    NOT_SUPPORTED;
    cuMulticastCreate cuMulticastAddDevice cuMulticastBindMem cuMulticastBindAddr cuMulticastUnbind cuMulticastGetGranularity
    cuMemExportToShareableHandle cuMemImportFromShareableHandle cuMemGetHandleForAddressRange
    cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxStreamCreate cuCtxFromGreenCtx cuDeviceGetDevResource cuDevSmResourceSplitByCount cuDevResourceGenerateDesc
    cuImportExternalMemory cuImportExternalSemaphore cuArrayCreate_v2 cuArray3DCreate_v2 cuMipmappedArrayCreate cuTexObjectCreate cuSurfObjectCreate
}
