//! cuSPARSE: matrices, and what their products need.
//!
//! Sizes of `SpMM` and `SpMV` were read from cuSPARSE 12.6.3 (CUDA 13.0) on an H100 on 2026-11-28; those of other functions are said to be
//! unanswered.

use std::ffi::{c_char, c_int, c_void};

use crate::handle::{Handles, fresh};
use crate::names::{functions, same, say_unanswered};
use crate::status::{self, check, refuses_null};

/// `cusparseStatus_t`.
type Status = c_int;
const INVALID_VALUE: Status = 3;

refuses_null! { INVALID_VALUE }

/// Rows, columns and elements of a sparse matrix.
static MATRICES: Handles<[i64; 3]> = Handles::new();

/// What a buffer has beside what grows.
const LEAST: usize = 11;

unsafe fn out_size(matrix: u64, to: *mut usize, elements_a_byte: i64) -> Result<(), Status> {
    let elements = MATRICES.with(matrix, |size| size[2]).ok_or(INVALID_VALUE)?;
    out(to, LEAST + (elements / elements_a_byte) as usize)
}

functions! {
    cusparseCreate(handle: *mut u64) { out(handle, fresh()) }
    /// As `cusparseCreateCoo`, `cusparseCreateCsc` and their kin: what follows the sizes is not looked at.
    cusparseCreateCsr(matrix: *mut u64, rows: i64, columns: i64, elements: i64) {
        check(!matrix.is_null() && rows >= 0 && columns >= 0 && elements >= 0, INVALID_VALUE)?;
        out(matrix, MATRICES.insert([rows, columns, elements]))
    }
    cusparseDestroySpMat(matrix: u64) { MATRICES.remove(matrix).map(drop).ok_or(INVALID_VALUE) }
    cusparseSpMatGetSize(matrix: u64, rows: *mut i64, columns: *mut i64, elements: *mut i64) {
        let [height, width, count] = MATRICES.with(matrix, |size| *size).ok_or(INVALID_VALUE)?;
        let _ = (out(rows, height), out(columns, width));
        // A product's elements are counted on the card: what is asked after one is what its matrix was made with.
        out(elements, count)
    }
    cusparseSpMM_bufferSize(
        _handle: u64, _op_a: c_int, _op_b: c_int, _alpha: *const c_void, a: u64, _b: u64, _beta: *const c_void, _c: u64, _compute: c_int, _algorithm: c_int, bytes: *mut usize,
    ) {
        out_size(a, bytes, 64)
    }
    cusparseSpMV_bufferSize(
        _handle: u64, _op: c_int, _alpha: *const c_void, a: u64, _x: u64, _beta: *const c_void, _y: u64, _compute: c_int, _algorithm: c_int, bytes: *mut usize,
    ) {
        out_size(a, bytes, 1024)
    }
    /// Both steps of a sparse product ask for a size first, with no buffer.
    cusparseSpGEMM_compute(
        _handle: u64, _op_a: c_int, _op_b: c_int, _alpha: u64, _a: u64, _b: u64, _beta: u64, _c: u64, _compute: c_int, _algorithm: c_int, _product: u64, bytes: *mut usize, buffer: u64,
    ) {
        say_unanswered!("cusparseSpGEMM");
        if buffer == 0 { out(bytes, 0) } else { Ok(()) }
    }
    /// How many elements a sum of two matrices has: at most as many as both, which is what a host is told.
    cusparseXcsrgeam2Nnz(
        _handle: u64, _m: c_int, _n: c_int, _a: u64, a_elements: c_int, _a_rows: u64, _a_columns: u64, _b: u64, b_elements: c_int, _b_rows: u64, _b_columns: u64, _c: u64, _c_rows: u64,
        elements: *mut c_int, _workspace: u64,
    ) {
        say_unanswered!("cusparseXcsrgeam2Nnz");
        out(elements, a_elements.saturating_add(b_elements).max(0))
    }
}

same! {
    cusparseCreateCoo = cusparseCreateCsr, cusparseCreateCsc = cusparseCreateCsr, cusparseCreateConstCsr = cusparseCreateCsr, cusparseCreateConstCoo = cusparseCreateCsr,
    cusparseSpGEMM_workEstimation = cusparseSpGEMM_compute,
}

/// A function whose size is not known: 0, and that is said. `$ignored` are the arguments before the place for it.
macro_rules! unknown {
    ($($name:ident($($ignored:ty),*) -> $size:ty;)*) => { $(
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($(_: $ignored,)* bytes: *mut $size) -> Status {
            say_unanswered!(stringify!($name));
            status::status(|| out(bytes, 0))
        }
    )* };
}
unknown! {
    cusparseSDDMM_bufferSize(u64, c_int, c_int, u64, u64, u64, u64, u64, c_int, c_int) -> usize;
    cusparseSpSV_bufferSize(u64, c_int, u64, u64, u64, u64, c_int, c_int, u64) -> usize;
    cusparseSpSM_bufferSize(u64, c_int, c_int, u64, u64, u64, u64, c_int, c_int, u64) -> usize;
    cusparseXcoosort_bufferSizeExt(u64, c_int, c_int, c_int, u64, u64) -> usize;
    cusparseSbsrsv2_bufferSize(u64, c_int, c_int, c_int, c_int, u64, u64, u64, u64, c_int, u64) -> c_int;
    cusparseSbsrsm2_bufferSize(u64, c_int, c_int, c_int, c_int, c_int, c_int, u64, u64, u64, u64, c_int, u64) -> c_int;
    cusparseScsrgeam2_bufferSizeExt(u64, c_int, c_int, u64, u64, c_int, u64, u64, u64, u64, u64, c_int, u64, u64, u64, u64, u64, u64, u64) -> usize;
    cusparseLtMatmulGetWorkspace(u64, u64) -> usize;
}

same! {
    cusparseXcsrsort_bufferSizeExt = cusparseXcoosort_bufferSizeExt,
    cusparseDbsrsv2_bufferSize = cusparseSbsrsv2_bufferSize, cusparseCbsrsv2_bufferSize = cusparseSbsrsv2_bufferSize, cusparseZbsrsv2_bufferSize = cusparseSbsrsv2_bufferSize,
    cusparseDbsrsm2_bufferSize = cusparseSbsrsm2_bufferSize, cusparseCbsrsm2_bufferSize = cusparseSbsrsm2_bufferSize, cusparseZbsrsm2_bufferSize = cusparseSbsrsm2_bufferSize,
    cusparseDcsrgeam2_bufferSizeExt = cusparseScsrgeam2_bufferSizeExt, cusparseCcsrgeam2_bufferSizeExt = cusparseScsrgeam2_bufferSizeExt,
    cusparseZcsrgeam2_bufferSizeExt = cusparseScsrgeam2_bufferSizeExt,
}

#[unsafe(no_mangle)]
pub extern "C" fn cusparseGetErrorString(status: Status) -> *const c_char {
    if status == 0 { c"success" } else { c"invalid value" }.as_ptr()
}
