//! cuBLAS and cuBLASLt.
//!
//! PyTorch brings the workspaces (`CUBLAS_WORKSPACE_CONFIG`, `CUBLASLT_WORKSPACE_SIZE`), so one algorithm that needs none is all that is asked.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};

use crate::config::config;
use crate::handle::{Handles, fresh};
use crate::libraries::real;
use crate::memory::{self, bytes};
use crate::names::same;
use crate::runtime::capture;
use crate::runtime::devices::current_device;

/// `cublasStatus_t`.
type Status = c_int;
const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 1;
const INVALID_VALUE: Status = 7;

unsafe fn give<T>(to: *mut T, value: T) -> Status {
    if crate::status::give(to, value) == crate::status::SUCCESS { SUCCESS } else { INVALID_VALUE }
}

/// What was set of a handle.
#[derive(Debug, Default)]
struct Settings {
    stream: u64,
    pointer_mode: c_int,
    math_mode: c_int,
    atomics_mode: c_int,
    multiprocessors: c_int,
}

static HANDLES: Handles<Settings> = Handles::new();

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasCreate_v2(handle: *mut u64) -> Status {
    /// What a handle keeps on an H100, as addresses beside it show.
    const KEPT: u64 = 64 << 20;
    if handle.is_null() {
        return INVALID_VALUE;
    }
    memory::take(current_device(), KEPT);
    give(handle, HANDLES.insert(Settings::default()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasDestroy_v2(handle: u64) -> Status {
    HANDLES.remove(handle).map_or(NOT_INITIALIZED, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetWorkspace_v2(handle: u64, workspace: *const c_void, bytes: usize) -> Status {
    if workspace.is_null() && bytes > 0 {
        return INVALID_VALUE;
    }
    HANDLES.with(handle, |_| SUCCESS).unwrap_or(NOT_INITIALIZED)
}

/// A setting of a handle: its setter and its getter.
macro_rules! setting {
    ($set:ident, $get:ident, $field:ident: $kind:ty) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $set(handle: u64, value: $kind) -> Status {
            HANDLES.with(handle, |one| one.$field = value).map_or(NOT_INITIALIZED, |()| SUCCESS)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(handle: u64, value: *mut $kind) -> Status {
            HANDLES.with(handle, |one| one.$field).map_or(NOT_INITIALIZED, |known| give(value, known))
        }
    };
}

/// PyTorch sets the stream before each product; where the stream captures, this stands for the product, so that the graph is not empty.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetStream_v2(handle: u64, stream: u64) -> Status {
    let Some(()) = HANDLES.with(handle, |one| one.stream = stream) else {
        return NOT_INITIALIZED;
    };
    // An error of the capture is said when it ends.
    let _ = capture::add(stream, None);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetStream_v2(handle: u64, stream: *mut u64) -> Status {
    HANDLES.with(handle, |one| one.stream).map_or(NOT_INITIALIZED, |known| give(stream, known))
}

setting!(cublasSetPointerMode_v2, cublasGetPointerMode_v2, pointer_mode: c_int);
setting!(cublasSetMathMode, cublasGetMathMode, math_mode: c_int);
setting!(cublasSetAtomicsMode, cublasGetAtomicsMode, atomics_mode: c_int);
setting!(cublasSetSmCountTarget, cublasGetSmCountTarget, multiprocessors: c_int);

const LIBRARY: &[&CStr] = &[c"libcublasLt.so.13", c"libcublasLt.so.12"];

/// The real library's version; its own first one for this CUDA where it is not there.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    type Version = unsafe extern "C" fn() -> usize;
    let Some(version) = real(LIBRARY, c"cublasLtGetVersion") else {
        return config().map_or(0, |config| config.cuda as usize / 1000 * 10_000);
    };
    // SAFETY: the function of this name, which returns a constant.
    unsafe { std::mem::transmute::<*mut c_void, Version>(version)() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetVersion_v2(_handle: u64, version: *mut c_int) -> Status {
    give(version, cublasLtGetVersion() as c_int)
}

/// Major, minor, patch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetProperty(kind: c_int, value: *mut c_int) -> Status {
    let version = cublasLtGetVersion() as c_int;
    match kind {
        0 => give(value, version / 10_000),
        1 => give(value, version / 100 % 100),
        2 => give(value, version % 100),
        _ => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusName(status: Status) -> *const c_char {
    let name = match status {
        SUCCESS => c"CUBLAS_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUBLAS_STATUS_NOT_INITIALIZED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        _ => c"CUBLAS_STATUS_INTERNAL_ERROR",
    };
    name.as_ptr()
}

same! { cublasGetStatusString = cublasGetStatusName, cublasLtGetStatusName = cublasGetStatusName, cublasLtGetStatusString = cublasGetStatusName, cublasLtGetProperty = cublasGetProperty, }

/// `cublasSetVectorAsync` and its kin copy between host and device, column by column.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetMatrix(rows: c_int, columns: c_int, size: c_int, from: u64, from_pitch: c_int, to: u64, to_pitch: c_int) -> Status {
    let (Ok(rows), Ok(columns), Ok(size)) = (u64::try_from(rows), u64::try_from(columns), u64::try_from(size)) else {
        return INVALID_VALUE;
    };
    let (Ok(from_pitch), Ok(to_pitch)) = (u64::try_from(from_pitch), u64::try_from(to_pitch)) else {
        return INVALID_VALUE;
    };
    let status = bytes::copy_rows(to, to_pitch * size, from, from_pitch * size, rows * size, columns);
    if status == crate::status::SUCCESS { SUCCESS } else { INVALID_VALUE }
}

/// A vector is a matrix of one row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetVector(count: c_int, size: c_int, from: u64, from_step: c_int, to: u64, to_step: c_int) -> Status {
    cublasSetMatrix(1, count, size, from, from_step, to, to_step)
}

same! {
    cublasGetMatrix = cublasSetMatrix, cublasSetMatrixAsync = cublasSetMatrix, cublasGetMatrixAsync = cublasSetMatrix,
    cublasGetVector = cublasSetVector, cublasSetVectorAsync = cublasSetVector, cublasGetVectorAsync = cublasSetVector,
}

/// Attributes of cuBLASLt's descriptors, as bytes: what was set can be read again.
static DESCRIPTORS: Handles<BTreeMap<c_int, Vec<u8>>> = Handles::new();

/// No attribute is longer.
const LONGEST: usize = 256;

unsafe fn describe(to: *mut u64) -> Status {
    if to.is_null() { INVALID_VALUE } else { give(to, DESCRIPTORS.insert(BTreeMap::new())) }
}

/// Creates a descriptor; what it was created with is not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescCreate(to: *mut u64) -> Status {
    describe(to)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescSetAttribute(descriptor: u64, attribute: c_int, value: *const u8, bytes: usize) -> Status {
    if value.is_null() || bytes > LONGEST {
        return INVALID_VALUE;
    }
    let value = std::slice::from_raw_parts(value, bytes).to_vec();
    DESCRIPTORS.with(descriptor, |known| known.insert(attribute, value)).map_or(INVALID_VALUE, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescGetAttribute(
    descriptor: u64,
    attribute: c_int,
    value: *mut u8,
    room: usize,
    written: *mut usize,
) -> Status {
    // What was not set is zero: each attribute's default, or that of a program that set it when it was created.
    let Some(known) = DESCRIPTORS.with(descriptor, |known| known.get(&attribute).cloned()) else {
        return INVALID_VALUE;
    };
    let known = known.unwrap_or_else(|| vec![0; room.min(LONGEST)]);
    if !written.is_null() {
        give(written, known.len());
    }
    if room == 0 {
        return SUCCESS;
    }
    if value.is_null() || room < known.len() {
        return INVALID_VALUE;
    }
    std::ptr::copy_nonoverlapping(known.as_ptr(), value, known.len());
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescDestroy(descriptor: u64) -> Status {
    DESCRIPTORS.remove(descriptor).map_or(INVALID_VALUE, |_| SUCCESS)
}

same! {
    cublasLtMatrixLayoutCreate = cublasLtMatmulDescCreate, cublasLtMatmulPreferenceCreate = cublasLtMatmulDescCreate, cublasLtMatrixTransformDescCreate = cublasLtMatmulDescCreate,
    cublasLtMatrixLayoutSetAttribute = cublasLtMatmulDescSetAttribute, cublasLtMatmulPreferenceSetAttribute = cublasLtMatmulDescSetAttribute,
    cublasLtMatrixTransformDescSetAttribute = cublasLtMatmulDescSetAttribute,
    cublasLtMatrixLayoutGetAttribute = cublasLtMatmulDescGetAttribute, cublasLtMatmulPreferenceGetAttribute = cublasLtMatmulDescGetAttribute,
    cublasLtMatrixLayoutDestroy = cublasLtMatmulDescDestroy, cublasLtMatmulPreferenceDestroy = cublasLtMatmulDescDestroy, cublasLtMatrixTransformDescDestroy = cublasLtMatmulDescDestroy,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtCreate(handle: *mut u64) -> Status {
    give(handle, fresh())
}

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// One algorithm, which needs no workspace.
#[unsafe(no_mangle)]
#[expect(clippy::too_many_arguments, reason = "cuBLASLt's")]
pub unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: u64,
    operation: u64,
    _a: u64,
    _b: u64,
    _c: u64,
    _d: u64,
    _preference: u64,
    room: c_int,
    results: *mut Heuristic,
    count: *mut c_int,
) -> Status {
    if operation == 0 || room < 1 || results.is_null() || count.is_null() {
        return INVALID_VALUE;
    }
    give(results, Heuristic { algorithm: [1, 0, 0, 0, 0, 0, 0, 0], workspace: 0, state: SUCCESS, waves: 1.0, reserved: [0; 4] });
    give(count, 1)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoCheck(
    _handle: u64,
    _operation: u64,
    _a: u64,
    _b: u64,
    _c: u64,
    _d: u64,
    algorithm: *const [u64; 8],
    result: *mut Heuristic,
) -> Status {
    if algorithm.is_null() {
        return INVALID_VALUE;
    }
    give(result, Heuristic { algorithm: algorithm.read_unaligned(), workspace: 0, state: SUCCESS, waves: 1.0, reserved: [0; 4] })
}
