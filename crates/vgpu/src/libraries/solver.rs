//! cuSOLVER: handles, and what its functions need as work space.
//!
//! The sizes were read from cuSOLVER 12.0.4 (CUDA 13.0) on an H100 on 2026-11-28, 70 sizes of square and 900 of rectangular matrices for each
//! function and type, and written down as formulas. Where a formula says nothing else it gives what was read. All types need as many
//! elements, unless a function below says how many bytes.

use std::ffi::{c_int, c_void};

use crate::handle::Handles;
use crate::names::{functions, say_unanswered};
use crate::status::refuses_null;

/// `cusolverStatus_t`.
type Status = c_int;
const NOT_INITIALIZED: Status = 1;
const INVALID_VALUE: Status = 3;

static HANDLES: Handles<u64> = Handles::new();

refuses_null! { INVALID_VALUE }

functions! {
    cusolverDnCreate(handle: *mut u64) { out(handle, HANDLES.insert(0)) }
    cusolverDnDestroy(handle: u64) { HANDLES.remove(handle).map(drop).ok_or(NOT_INITIALIZED) }
    cusolverDnSetStream(handle: u64, stream: u64) { HANDLES.with(handle, |known| *known = stream).ok_or(NOT_INITIALIZED) }
    cusolverDnGetStream(handle: u64, stream: *mut u64) { out(stream, HANDLES.with(handle, |known| *known).ok_or(NOT_INITIALIZED)?) }
}

/// A size of a matrix; what no matrix has gives `None`.
fn edge(value: i64) -> Option<u64> {
    u64::try_from(value).ok().filter(|&value| value <= 1 << 24)
}

/// Writes a number of elements, as the functions before CUDA 11 count.
unsafe fn out_elements(handle: u64, to: *mut c_int, elements: impl FnOnce() -> Option<u64>) -> Result<(), Status> {
    HANDLES.with(handle, |_| ()).ok_or(NOT_INITIALIZED)?;
    let elements = elements().and_then(|elements| c_int::try_from(elements).ok());
    out(to, elements.ok_or(INVALID_VALUE)?)
}

/// Writes bytes on the device and on the host, as the later ones count.
unsafe fn out_bytes(handle: u64, on_device: *mut usize, on_host: *mut usize, bytes: impl FnOnce() -> Option<(u64, u64)>) -> Result<(), Status> {
    HANDLES.with(handle, |_| ()).ok_or(NOT_INITIALIZED)?;
    let (device, host) = bytes().ok_or(INVALID_VALUE)?;
    out(on_device, device as usize)?;
    out(on_host, host as usize)
}

/// Bytes of an element of a `cudaDataType` that cuSOLVER computes with.
fn width(kind: c_int) -> Option<u64> {
    match kind {
        0 => Some(4),
        1 | 4 => Some(8),
        5 => Some(16),
        _ => None,
    }
}

/// What the later functions need more than the elements.
const MORE: u64 = 128;

/// Bytes of a Cholesky factorisation: of the lower half by tiles of 64, of the upper next to nothing.
fn potrf(upper: c_int, edge: u64, width: u64) -> u64 {
    if upper != 0 {
        return 32 * width;
    }
    let tiles = edge.div_ceil(64).max(1);
    let last = if edge - 64 * (tiles - 1).min(edge / 64) > 32 { tiles } else { 1 };
    (16 * (tiles * (tiles - 1) + last)).next_multiple_of(32)
}

/// Elements of a QR factorisation.
fn geqrf(columns: u64) -> u64 {
    1024 * (columns + 512).max(768)
}

/// Elements of eigenvalues by divide and conquer; at most 36 more or less for what its parts are aligned to.
fn syevd(edge: u64) -> u64 {
    (3 * edge * edge + 768 * edge + 65_536).max(4 * edge * edge + 127 * edge + 32_896) + 67
}

/// Elements of eigenvalues by Jacobi's method. From 4096 on another algorithm takes over: read at 4096 and 8192, and in between.
fn syevj(edge: u64) -> u64 {
    if edge >= 4096 {
        return 41_943_056 + (edge - 4096) * (109_051_968 - 41_943_056) / 4096;
    }
    let tiles = edge.div_ceil(32);
    edge * edge + edge + 1024 + 4 * tiles * tiles + 1025 * tiles
}

fn syevj_batched(edge: u64, batch: u64) -> u64 {
    let tiles = edge.div_ceil(32);
    1024 + 4 * tiles * tiles + batch * ((edge + 1) * (edge + 1) + 1024 * tiles)
}

/// Bytes of an LU factorisation, within 768 of what was read below 2048 rows, and within a fifth above: at most 120 KiB.
fn getrf(rows: u64, columns: u64, width: u64) -> u64 {
    let edge = rows.min(columns).next_multiple_of(32);
    let tall = if rows >= 2048 { 8192 * width } else { 0 };
    tall + if edge <= 256 { 16 * edge + 256 } else { 8 * edge + 4352 }
}

/// Elements of an explicit Q. Between 65 and 127 reflections up to a third less than was read.
fn orgqr(rows: u64, columns: u64, reflections: u64) -> u64 {
    const TILE: u64 = 128;
    let work = if reflections >= TILE { rows * TILE + TILE * TILE + 2 * columns.saturating_sub(TILE) * TILE } else { rows * reflections };
    33_024 + work.next_multiple_of(32)
}

/// Elements of a product with Q, within 0.5 %.
fn ormqr(is_right: bool, rows: u64, columns: u64, reflections: u64) -> u64 {
    let by_side = if is_right { 0 } else { 512 * columns };
    65_536 + by_side + 256 * rows + rows.max(columns) * (reflections + 1) + reflections * reflections
}

/// Elements of singular values by Jacobi's method: what was read of square matrices, within 32. Others are factorised (QR) first.
fn gesvdj(rows: u64, columns: u64) -> u64 {
    let edge = rows.min(columns);
    let tiles = edge.div_ceil(32);
    let square = (2 * edge * edge + 2048 * tiles + 4 * tiles * tiles + edge + 1030).next_multiple_of(32).max(3136);
    if rows == columns { square } else { square.max(geqrf(edge) + rows.max(columns)) }
}

/// Elements of singular values by QR iteration. `gesvd` was read, and is not described by anything as short.
fn gesvd(rows: u64, columns: u64) -> u64 {
    let (long, edge) = (rows.max(columns), rows.min(columns));
    3 * edge * edge + 65_536 + 256 * edge + if rows == columns { 0 } else { 768 << 10 } + edge * (long - edge)
}

/// Elements of approximate singular values of one matrix of a batch; twice the eigenvalues' where it has more than 32 columns.
fn gesvda(columns: u64) -> u64 {
    if columns > 32 { 2 * syevd(columns) + 4 * columns * columns + 6 * columns } else { 2 * columns * columns + 150 * columns + 4000 }
}

/// Elements of a symmetric indefinite factorisation, by the bytes of an element: never less than for 384 columns.
fn sytrf(edge: u64, width: u64) -> u64 {
    let least = match width {
        4 => 24_608,
        8 => 13_328,
        _ => 11_016,
    };
    (edge * if edge > 4096 { 128 } else { 64 } + 64).max(least)
}

/// Functions that say how many elements something needs; `to` is added to the arguments, which are those of the first sizes, as `c_int`.
macro_rules! sized {
    ($($name:ident($($argument:ident: $kind:ty),*) = $width:expr, $size:expr;)*) => { functions! { $(
        $name(handle: u64, $($argument: $kind,)* to: *mut c_int) {
            #[allow(dead_code, reason = "most sizes are in elements")]
            const WIDTH: u64 = $width;
            let _ = ($(&$argument,)*);
            out_elements(handle, to, || $size)
        }
    )* } };
}

type Matrix = *const c_void;

macro_rules! of_type {
    ($width:expr; $potrf:ident $getrf:ident $geqrf:ident $sytrf:ident $gesvd:ident $orgqr:ident $ormqr:ident $syevd:ident $syevj:ident $gesvdj:ident) => {
        sized! {
            $potrf(upper: c_int, n: c_int, a: Matrix, lda: c_int) = $width, Some((potrf(upper, edge(n.into())?, WIDTH) + MORE).div_ceil(32) * 32 / WIDTH);
            $getrf(m: c_int, n: c_int, a: Matrix, lda: c_int) = $width, Some(getrf(edge(m.into())?, edge(n.into())?, WIDTH) / WIDTH);
            $geqrf(m: c_int, n: c_int, a: Matrix, lda: c_int) = $width, edge(m.into()).and_then(|_| Some(geqrf(edge(n.into())?)));
            $sytrf(n: c_int, a: Matrix, lda: c_int) = $width, Some(sytrf(edge(n.into())?, WIDTH));
            $gesvd(m: c_int, n: c_int) = $width, { say_unanswered!(stringify!($gesvd)); Some(gesvd(edge(m.into())?, edge(n.into())?)) };
            $orgqr(m: c_int, n: c_int, k: c_int, a: Matrix, lda: c_int, tau: Matrix) = $width, Some(orgqr(edge(m.into())?, edge(n.into())?, edge(k.into())?));
            $ormqr(side: c_int, trans: c_int, m: c_int, n: c_int, k: c_int, a: Matrix, lda: c_int, tau: Matrix, c: Matrix, ldc: c_int) = $width,
                Some(ormqr(side != 0, edge(m.into())?, edge(n.into())?, edge(k.into())?));
            $syevd(job: c_int, upper: c_int, n: c_int, a: Matrix, lda: c_int, w: Matrix) = $width, Some(syevd(edge(n.into())?));
            // Their last arguments, the parameters, are not looked at.
            $syevj(job: c_int, upper: c_int, n: c_int, a: Matrix, lda: c_int, w: Matrix) = $width, Some(syevj(edge(n.into())?));
            $gesvdj(job: c_int, econ: c_int, m: c_int, n: c_int, a: Matrix, lda: c_int, s: Matrix, u: Matrix, ldu: c_int, v: Matrix, ldv: c_int) = $width,
                { if m != n { say_unanswered!(stringify!($gesvdj)); } Some(gesvdj(edge(m.into())?, edge(n.into())?)) };
        }
    };
}

of_type! { 4; cusolverDnSpotrf_bufferSize cusolverDnSgetrf_bufferSize cusolverDnSgeqrf_bufferSize cusolverDnSsytrf_bufferSize cusolverDnSgesvd_bufferSize
cusolverDnSorgqr_bufferSize cusolverDnSormqr_bufferSize cusolverDnSsyevd_bufferSize cusolverDnSsyevj_bufferSize cusolverDnSgesvdj_bufferSize }
of_type! { 8; cusolverDnDpotrf_bufferSize cusolverDnDgetrf_bufferSize cusolverDnDgeqrf_bufferSize cusolverDnDsytrf_bufferSize cusolverDnDgesvd_bufferSize
cusolverDnDorgqr_bufferSize cusolverDnDormqr_bufferSize cusolverDnDsyevd_bufferSize cusolverDnDsyevj_bufferSize cusolverDnDgesvdj_bufferSize }
of_type! { 8; cusolverDnCpotrf_bufferSize cusolverDnCgetrf_bufferSize cusolverDnCgeqrf_bufferSize cusolverDnCsytrf_bufferSize cusolverDnCgesvd_bufferSize
cusolverDnCungqr_bufferSize cusolverDnCunmqr_bufferSize cusolverDnCheevd_bufferSize cusolverDnCheevj_bufferSize cusolverDnCgesvdj_bufferSize }
of_type! { 16; cusolverDnZpotrf_bufferSize cusolverDnZgetrf_bufferSize cusolverDnZgeqrf_bufferSize cusolverDnZsytrf_bufferSize cusolverDnZgesvd_bufferSize
cusolverDnZungqr_bufferSize cusolverDnZunmqr_bufferSize cusolverDnZheevd_bufferSize cusolverDnZheevj_bufferSize cusolverDnZgesvdj_bufferSize }

/// Functions of a batch, whose number follows what the size goes to.
macro_rules! batched {
    ($($syevj:ident $gesvdj:ident $gesvda:ident)*) => { functions! { $(
        $syevj(handle: u64, _job: c_int, _upper: c_int, n: c_int, _a: Matrix, _lda: c_int, _w: Matrix, to: *mut c_int, _parameters: u64, batch: c_int) {
            out_elements(handle, to, || Some(syevj_batched(edge(n.into())?, edge(batch.into())?)))
        }
        /// The same for all matrices that it takes, which have at most 32 rows and columns.
        $gesvdj(handle: u64, _job: c_int, _m: c_int, _n: c_int, _a: Matrix, _lda: c_int, _s: Matrix, _u: Matrix, _ldu: c_int, _v: Matrix, _ldv: c_int, to: *mut c_int) {
            out_elements(handle, to, || Some(992))
        }
        $gesvda(
            handle: u64, _job: c_int, _rank: c_int, m: c_int, n: c_int, _a: Matrix, _lda: c_int, _stride_a: i64, _s: Matrix, _stride_s: i64, _u: Matrix, _ldu: c_int, _stride_u: i64,
            _v: Matrix, _ldv: c_int, _stride_v: i64, to: *mut c_int, batch: c_int,
        ) {
            if m != n {
                say_unanswered!(stringify!($gesvda));
            }
            out_elements(handle, to, || Some(gesvda(edge(n.into())?) * edge(batch.into())?))
        }
    )* } };
}
batched! {
    cusolverDnSsyevjBatched_bufferSize cusolverDnSgesvdjBatched_bufferSize cusolverDnSgesvdaStridedBatched_bufferSize
    cusolverDnDsyevjBatched_bufferSize cusolverDnDgesvdjBatched_bufferSize cusolverDnDgesvdaStridedBatched_bufferSize
    cusolverDnCheevjBatched_bufferSize cusolverDnCgesvdjBatched_bufferSize cusolverDnCgesvdaStridedBatched_bufferSize
    cusolverDnZheevjBatched_bufferSize cusolverDnZgesvdjBatched_bufferSize cusolverDnZgesvdaStridedBatched_bufferSize
}

functions! {
    cusolverDnXpotrf_bufferSize(
        handle: u64, _parameters: u64, upper: c_int, n: i64, kind: c_int, _a: Matrix, _lda: i64, _compute: c_int, on_device: *mut usize, on_host: *mut usize,
    ) {
        out_bytes(handle, on_device, on_host, || Some(((potrf(upper, edge(n)?, width(kind)?) + MORE).next_multiple_of(32), 0)))
    }
    cusolverDnXgeqrf_bufferSize(
        handle: u64, _parameters: u64, _m: i64, n: i64, kind: c_int, _a: Matrix, _lda: i64, _tau_kind: c_int, _tau: Matrix, _compute: c_int, on_device: *mut usize, on_host: *mut usize,
    ) {
        out_bytes(handle, on_device, on_host, || Some((geqrf(edge(n)?) * width(kind)? + MORE, 0)))
    }
    cusolverDnXsyevd_bufferSize(
        handle: u64, _parameters: u64, _job: c_int, _upper: c_int, n: i64, kind: c_int, _a: Matrix, _lda: i64, _w_kind: c_int, _w: Matrix, _compute: c_int, on_device: *mut usize,
        on_host: *mut usize,
    ) {
        out_bytes(handle, on_device, on_host, || Some((syevd(edge(n)?) * width(kind)? + MORE, 0)))
    }
    /// As often what one needs; what was read is less by 0.1 % at most.
    cusolverDnXsyevBatched_bufferSize(
        handle: u64, _parameters: u64, _job: c_int, _upper: c_int, n: i64, kind: c_int, _a: Matrix, _lda: i64, _w_kind: c_int, _w: Matrix, _compute: c_int, on_device: *mut usize,
        on_host: *mut usize, batch: i64,
    ) {
        out_bytes(handle, on_device, on_host, || Some(((syevd(edge(n)?) - 67) * width(kind)? * edge(batch)? + MORE, 0)))
    }
    /// Read from 512 on, within 600 bytes for a width of 4; below, at most 120 KB less than was read.
    cusolverDnXgeev_bufferSize(
        handle: u64, _parameters: u64, _left: c_int, _right: c_int, n: i64, kind: c_int, _a: Matrix, _lda: i64, _w_kind: c_int, _w: Matrix, _vl_kind: c_int, _vl: Matrix, _ldvl: i64,
        _vr_kind: c_int, _vr: Matrix, _ldvr: i64, _compute: c_int, on_device: *mut usize, on_host: *mut usize,
    ) {
        out_bytes(handle, on_device, on_host, || {
            let (edge, width) = (edge(n)?, width(kind)?);
            Some(((edge * edge + 4 * edge + 150).max(33_152) * width, (edge * edge * 9 / 4 + 128) * width))
        })
    }
    cusolverDnXsytrs_bufferSize(
        handle: u64, _upper: c_int, n: i64, _columns: i64, kind: c_int, _a: Matrix, _lda: i64, _pivots: Matrix, _b_kind: c_int, _b: Matrix, _ldb: i64, on_device: *mut usize,
        on_host: *mut usize,
    ) {
        out_bytes(handle, on_device, on_host, || edge(n).and(width(kind)).map(|_| (0, 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What cuSOLVER 12.0.4 said on an H100.
    #[test]
    fn sizes_are_those_of_a_card() {
        assert_eq!(
            [1, 64, 65, 160, 200, 513, 1024, 8192].map(|n| (potrf(0, n, 4) + MORE).next_multiple_of(32)),
            [160, 160, 192, 256, 352, 1312, 4224, 262_272]
        );
        assert_eq!([1, 300, 4096].map(geqrf), [786_432, 831_488, 4_718_592]);
        assert_eq!(
            [64, 128, 256, 512, 768, 1024, 2048, 4096].map(syevd),
            [127_043, 213_059, 458_819, 1_245_251, 2_489_795, 4_357_315, 17_070_275, 67_662_019]
        );
        assert_eq!([1, 32, 33, 100, 1024].map(syevj), [2055, 3109, 4212, 15_288, 1_087_520]);
        assert_eq!([(16, 1), (512, 64)].map(|(n, batch)| syevj_batched(n, batch)), [2341, 17_893_440]);
        assert_eq!([(32, 32), (400, 400), (1024, 1024)].map(|(m, n)| getrf(m, n, 4)), [768, 7680, 12_544]);
        assert_eq!([(17, 16, 16), (300, 300, 150), (4096, 4096, 2048)].map(|(m, n, k)| orgqr(m, n, k)), [33_312, 131_840, 1_589_504]);
        assert_eq!([1, 5, 64, 512, 1024].map(|n| gesvdj(n, n)), [3136, 3168, 13_408, 559_648, 2_168_864]);
        assert_eq!([(400, 4), (6000, 4), (1, 16)].map(|(n, width)| sytrf(n, width)), [25_664, 768_064, 11_016]);
    }
}
