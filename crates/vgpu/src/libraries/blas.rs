//! cuBLAS and cuBLASLt.
//!
//! PyTorch brings the workspaces (`CUBLAS_WORKSPACE_CONFIG`, `CUBLASLT_WORKSPACE_SIZE`), so one algorithm that needs none is all that is asked.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};

use crate::config::{card, config};
use crate::handle::{Handles, fresh};
use crate::libraries::real;
use crate::memory::{self, bytes};
use crate::names::{functions, same};
use crate::runtime::devices::current_device;
use crate::runtime::{capture, launch, streams};
use crate::status::{check, refuses_null};

/// `cublasStatus_t`.
type Status = c_int;
const NOT_INITIALIZED: Status = 1;
const INVALID_VALUE: Status = 7;

refuses_null! { INVALID_VALUE }

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

/// Reads or changes what is remembered of a handle.
fn with<T>(handle: u64, act: impl FnOnce(&mut Settings) -> T) -> Result<T, Status> {
    HANDLES.with(handle, act).ok_or(NOT_INITIALIZED)
}

/// Settings of handles: their setters and getters.
macro_rules! settings {
    ($($set:ident $get:ident $field:ident)*) => { functions! { $(
        $set(handle: u64, value: c_int) { with(handle, |one| one.$field = value) }
        $get(handle: u64, value: *mut c_int) { out(value, with(handle, |one| one.$field)?) }
    )* } };
}

settings! {
    cublasSetPointerMode_v2 cublasGetPointerMode_v2 pointer_mode
    cublasSetMathMode cublasGetMathMode math_mode
    cublasSetAtomicsMode cublasGetAtomicsMode atomics_mode
    cublasSetSmCountTarget cublasGetSmCountTarget multiprocessors
}

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
pub extern "C" fn cublasGetStatusName(status: Status) -> *const c_char {
    let name = match status {
        0 => c"CUBLAS_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUBLAS_STATUS_NOT_INITIALIZED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        _ => c"CUBLAS_STATUS_INTERNAL_ERROR",
    };
    name.as_ptr()
}

unsafe fn copy_matrix(rows: c_int, columns: c_int, size: c_int, from: u64, from_pitch: c_int, to: u64, to_pitch: c_int) -> Result<(), Status> {
    let numbers = [rows, columns, size, from_pitch, to_pitch];
    check(numbers.iter().all(|&number| number >= 0), INVALID_VALUE)?;
    let [rows, columns, size, from_pitch, to_pitch] = numbers.map(|number| number as u64);
    bytes::copy_rows(to, to_pitch * size, from, from_pitch * size, rows * size, columns).map_err(|_| INVALID_VALUE)
}

/// Attributes of cuBLASLt's descriptors, as bytes: what was set can be read again.
static DESCRIPTORS: Handles<BTreeMap<c_int, Vec<u8>>> = Handles::new();

/// No attribute is longer.
const LONGEST: usize = 256;

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

impl Heuristic {
    /// An algorithm that needs no workspace.
    const fn of(algorithm: [u64; 8]) -> Self {
        Heuristic { algorithm, workspace: 0, state: 0, waves: 1.0, reserved: [0; 4] }
    }
}

/// A stream multiplies matrices, of float32 where their `cudaDataType` is 0.
fn product(stream: u64, extents: [u64; 4], kind: c_int) {
    launch::spend(launch::CALL);
    let products = extents.iter().fold(1, |all: u64, &extent| all.saturating_mul(extent));
    streams::work(stream, card().multiplies(products, kind == 0));
}

functions! {
    cublasCreate_v2(handle: *mut u64) {
        /// What a handle keeps on an H100, as addresses beside it show.
        const KEPT: u64 = 64 << 20;
        check(!handle.is_null(), INVALID_VALUE)?;
        memory::take(current_device(), KEPT);
        out(handle, HANDLES.insert(Settings::default()))
    }
    cublasDestroy_v2(handle: u64) { HANDLES.remove(handle).map(drop).ok_or(NOT_INITIALIZED) }
    cublasSetWorkspace_v2(handle: u64, workspace: *const c_void, bytes: usize) {
        check(!workspace.is_null() || bytes == 0, INVALID_VALUE)?;
        with(handle, |_| ())
    }
    /// PyTorch sets the stream before each product; where the stream captures, this stands for the product, so that the graph is not empty. Products of
    /// other kinds than those below take no time.
    cublasSetStream_v2(handle: u64, stream: u64) {
        with(handle, |one| one.stream = stream)?;
        // An error of the capture is said when it ends.
        let _ = capture::add(stream, None);
        Ok(())
    }
    cublasSgemm_v2(handle: u64, _ta: c_int, _tb: c_int, m: u32, n: u32, k: u32) { with(handle, |one| product(one.stream, [m, n, k, 1].map(u64::from), 0)) }
    cublasGemmEx(handle: u64, _ta: c_int, _tb: c_int, m: u32, n: u32, k: u32, _alpha: u64, _a: u64, kind: c_int) {
        with(handle, |one| product(one.stream, [m, n, k, 1].map(u64::from), kind))
    }
    cublasGemmStridedBatchedEx(
        handle: u64, _ta: c_int, _tb: c_int, m: u32, n: u32, k: u32, _alpha: u64, _a: u64, kind: c_int, _lda: c_int, _next_a: i64, _b: u64, _kind_b: c_int, _ldb: c_int, _next_b: i64,
        _beta: u64, _c: u64, _kind_c: c_int, _ldc: c_int, _next_c: i64, count: u32,
    ) {
        with(handle, |one| product(one.stream, [m, n, k, count].map(u64::from), kind))
    }
    cublasLtMatrixLayoutCreate(to: *mut u64, kind: u32, rows: u64, columns: u64) {
        let said = [(0, u64::from(kind)), (2, rows), (3, columns)];
        out(to, DESCRIPTORS.insert(said.map(|(attribute, value)| (attribute, value.to_ne_bytes().to_vec())).into()))
    }
    /// Of several products (attribute 5) one is counted; `a` has m x k elements, however it is transposed.
    cublasLtMatmul(_handle: u64, _operation: u64, _alpha: u64, _a: u64, a: u64, _b: u64, _lb: u64, _beta: u64, _c: u64, _lc: u64, _d: u64, d: u64, _algorithm: u64, _workspace: u64, _bytes: usize, stream: u64) {
        let of = |layout, attribute: c_int| {
            let said = DESCRIPTORS.with(layout, |known| known.get(&attribute).and_then(|value| value.first_chunk().copied()));
            said.flatten().map_or(1, u64::from_ne_bytes)
        };
        product(stream, [of(a, 2), of(a, 3), of(d, 3), 1], of(a, 0) as c_int);
        Ok(())
    }
    cublasGetStream_v2(handle: u64, stream: *mut u64) { out(stream, with(handle, |one| one.stream)?) }
    cublasGetVersion_v2(_handle: u64, version: *mut c_int) { out(version, cublasLtGetVersion() as c_int) }
    /// Major, minor, patch.
    cublasGetProperty(kind: c_int, value: *mut c_int) {
        let version = cublasLtGetVersion() as c_int;
        match kind {
            0 => out(value, version / 10_000),
            1 => out(value, version / 100 % 100),
            2 => out(value, version % 100),
            _ => Err(INVALID_VALUE),
        }
    }
    /// `cublasSetVectorAsync` and its kin copy between host and device, column by column.
    cublasSetMatrix(rows: c_int, columns: c_int, size: c_int, from: u64, from_pitch: c_int, to: u64, to_pitch: c_int) {
        copy_matrix(rows, columns, size, from, from_pitch, to, to_pitch)
    }
    /// A vector is a matrix of one row.
    cublasSetVector(count: c_int, size: c_int, from: u64, from_step: c_int, to: u64, to_step: c_int) { copy_matrix(1, count, size, from, from_step, to, to_step) }
    // Of a batch `info` is on the host, and says whether the arguments are right.
    cublasSgeqrfBatched(_handle: u64, _rows: c_int, _columns: c_int, _a: u64, _lda: c_int, _tau: u64, info: *mut c_int) { out(info, 0) }
    cublasSgetrsBatched(_handle: u64, _trans: c_int, _n: c_int, _right: c_int, _a: u64, _lda: c_int, _pivots: u64, _b: u64, _ldb: c_int, info: *mut c_int) { out(info, 0) }
    /// Creates a descriptor; what it was created with is not looked at.
    cublasLtMatmulDescCreate(to: *mut u64) { out(to, DESCRIPTORS.insert(BTreeMap::new())) }
    cublasLtMatmulDescSetAttribute(descriptor: u64, attribute: c_int, value: *const u8, bytes: usize) {
        check(!value.is_null() && bytes <= LONGEST, INVALID_VALUE)?;
        let value = std::slice::from_raw_parts(value, bytes).to_vec();
        DESCRIPTORS.with(descriptor, |known| known.insert(attribute, value)).map(drop).ok_or(INVALID_VALUE)
    }
    cublasLtMatmulDescGetAttribute(descriptor: u64, attribute: c_int, value: *mut u8, room: usize, written: *mut usize) {
        // What was not set is zero: each attribute's default, or that of a program that set it when it was created.
        let known = DESCRIPTORS.with(descriptor, |known| known.get(&attribute).cloned()).ok_or(INVALID_VALUE)?;
        let known = known.unwrap_or_else(|| vec![0; room.min(LONGEST)]);
        let _ = out(written, known.len());
        if room > 0 {
            check(!value.is_null() && room >= known.len(), INVALID_VALUE)?;
            std::ptr::copy_nonoverlapping(known.as_ptr(), value, known.len());
        }
        Ok(())
    }
    cublasLtMatmulDescDestroy(descriptor: u64) { DESCRIPTORS.remove(descriptor).map(drop).ok_or(INVALID_VALUE) }
    cublasLtCreate(handle: *mut u64) { out(handle, fresh()) }
    /// One algorithm, which needs no workspace.
    cublasLtMatmulAlgoGetHeuristic(
        _handle: u64, operation: u64, _a: u64, _b: u64, _c: u64, _d: u64, _preference: u64, room: c_int, results: *mut Heuristic, count: *mut c_int,
    ) {
        check(operation != 0 && room >= 1 && !results.is_null() && !count.is_null(), INVALID_VALUE)?;
        out(results, Heuristic::of([1, 0, 0, 0, 0, 0, 0, 0]))?;
        out(count, 1)
    }
    cublasLtMatmulAlgoCheck(_handle: u64, _operation: u64, _a: u64, _b: u64, _c: u64, _d: u64, algorithm: *const [u64; 8], result: *mut Heuristic) {
        check(!algorithm.is_null(), INVALID_VALUE)?;
        out(result, Heuristic::of(algorithm.read_unaligned()))
    }
}

same! {
    cublasGetStatusString = cublasGetStatusName, cublasLtGetStatusName = cublasGetStatusName, cublasLtGetStatusString = cublasGetStatusName, cublasLtGetProperty = cublasGetProperty,
    cublasGetMatrix = cublasSetMatrix, cublasSetMatrixAsync = cublasSetMatrix, cublasGetMatrixAsync = cublasSetMatrix,
    cublasDgeqrfBatched = cublasSgeqrfBatched, cublasCgeqrfBatched = cublasSgeqrfBatched, cublasZgeqrfBatched = cublasSgeqrfBatched,
    cublasDgetrsBatched = cublasSgetrsBatched, cublasCgetrsBatched = cublasSgetrsBatched, cublasZgetrsBatched = cublasSgetrsBatched,
    cublasSgelsBatched = cublasSgetrsBatched, cublasDgelsBatched = cublasSgetrsBatched, cublasCgelsBatched = cublasSgetrsBatched, cublasZgelsBatched = cublasSgetrsBatched,
    cublasGetVector = cublasSetVector, cublasSetVectorAsync = cublasSetVector, cublasGetVectorAsync = cublasSetVector,
    cublasLtMatmulPreferenceCreate = cublasLtMatmulDescCreate, cublasLtMatrixTransformDescCreate = cublasLtMatmulDescCreate,
    cublasLtMatrixLayoutSetAttribute = cublasLtMatmulDescSetAttribute, cublasLtMatmulPreferenceSetAttribute = cublasLtMatmulDescSetAttribute,
    cublasLtMatrixTransformDescSetAttribute = cublasLtMatmulDescSetAttribute,
    cublasLtMatrixLayoutGetAttribute = cublasLtMatmulDescGetAttribute, cublasLtMatmulPreferenceGetAttribute = cublasLtMatmulDescGetAttribute,
    cublasLtMatrixLayoutDestroy = cublasLtMatmulDescDestroy, cublasLtMatmulPreferenceDestroy = cublasLtMatmulDescDestroy, cublasLtMatrixTransformDescDestroy = cublasLtMatmulDescDestroy,
}
