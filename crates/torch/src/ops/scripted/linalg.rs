//! Decompositions of matrices and what is solved with them.
//!
//! The lines are those of an H200 with CUDA 13 (`tests/golden/calls/linalg.json.gz`): batches go through cuBLAS, which takes an array of
//! pointers for each operand, single matrices through cuSOLVER. The scratch memory of cuSOLVER follows no rule that is known; rows
//! that rest on it take at least what it took for any of the matrices of up to 1,100 rows that were recorded, and say so.

use super::Row;
use super::read::{factorized, solved};

/// What a user is told of rows whose scratch memory is estimated.
const CUSOLVER: &str = "scratch memory of cuSOLVER";
/// The same of rows whose statements in between are.
const BETWEEN: &str = "what is made in between, and scratch memory of cuSOLVER";

/// `lu_solve` with pivots turned into permutations, in the gradients of determinants and in inverses.
macro_rules! solve_with_pivots {
    () => {
        "+n:i8 +Ln:i8 single!( -n:i8 ) single!( +n:i8 ) single?( +n:i8 ) +Ln:i8 +Lnn +L:i8 +L:i8 -L:i8 -L:i8 +L:i8 +L:i8 -L:i8 -L:i8 -Lnn -Ln:i8 -n:i8 -Ln:i8"
    };
}

/// Scratch memory of `getrf`: of cuSOLVER for one matrix, pointers for a batch.
macro_rules! factored {
    () => {
        "single?( +#8704 -#8704 ) single!( +L:i8 -L:i8 )"
    };
}

/// `svd_backward` with a gradient of vectors.
macro_rules! svd_vectors {
    () => {
        "+Lkk +Lkk -Lkk +Lkk +Lkk -Lkk +Lk +Lkk -Lk +Lkk +Lkk +Lkk +Lkk -Lkk -Lkk -Lkk -Lkk +Lkk +Lkk -Lkk -Lkk +Lmn -Lkk +Lmn +Lkk +Lmn +Lmn +Lmn -Lmn -Lmn -Lmn -Lkk g0=Lmn -Lmn -Lmn -Lkk -Lkk"
    };
}

/// `cholesky_backward` and `lu_backward` in `FunctionsManual.cpp`: products, halves, two triangular systems.
const TWO_SYSTEMS: &str = "blas +Lnn +Lnn -Lnn +Lnn +Lnn +Lnn -Lnn -Lnn -Lnn +Lnn~ +L:i8 +L:i8 -L:i8 -L:i8 -Lnn g0=Lnn~ +L:i8 +L:i8 -L:i8 -L:i8 -Lnn~";

#[rustfmt::skip] // A row a line.
pub(super) const ROWS: &[Row] = &[
    Row::new(&["aten._linalg_solve_ex.default"], &[("A", "Lnn"), ("B", "B")], concat!("blas y0=Y~ y1!=Lnn~ y2=Ln:i4 y3=L:i4 ", factored!(), " +L:i8 +L:i8 -L:i8 -L:i8")).attributes(&["left", "check_errors"]).more(solved).backward(
        &["A=0", "LU=y1?01", "pivots=y2?01", "result=y0?0"],
        "blas 1?( g1=Y~ ) 1!( +Y~ ) +L:i8 +L:i8 -L:i8 -L:i8 0?( +Znn g0=Znn -Znn ) 1!( -Y~ )",
    ),
    Row::new(&["aten.linalg_lu_solve.default"], &[("LU", "Lnn"), ("pivots", "Ln"), ("B", "Mnr")], "blas y0=Xnr~ +L:i8 +L:i8 -L:i8 -L:i8").attributes(&["left", "adjoint"]).backward(
        &["LU=0", "pivots=1", "result=y0?0"],
        "blas g2=Xnr~ +L:i8 +L:i8 -L:i8 -L:i8 0?( +Lnn +Lnn g0=Lnn -Lnn -Lnn )",
    ),
    Row::new(&["aten.linalg_inv_ex.default"], &[("A", "Lnn")], concat!("blas y0=Lnn~ y1=L:i4 +Lnn +Ln:i4 ", factored!(), " ", solve_with_pivots!(), " -Ln:i4 -Lnn")).attributes(&["check_errors"]).backward(
        &["inverse=y0"],
        "blas +Lnn +Lnn g0=Lnn -Lnn -Lnn",
    ),
    Row::new(&["aten._linalg_det.default"], &[("A", "Lnn")], concat!("blas y0=L y1!=Lnn~ y2=Ln:i4 +L:i4 ", factored!(), " +L +n:i4 +Ln:b1 +L:i8 +Ln:i8 -Ln:i8 -Ln:b1 -n:i4 -L:i8 -L -L:i4")).backward(
        &["A=0", "LU=y1", "pivots=y2", "result=y0"],
        concat!("blas +L +Lnn +Ln:b1 +. +. +Ln -. -. +Lnn +Lnn -Lnn -Ln -Ln:b1 g0=Lnn~ ", solve_with_pivots!(), " -Lnn -Lnn -L"),
    ),
    Row::new(&["aten._linalg_slogdet.default"], &[("A", "Lnn")], concat!("blas y0!=L y1=L y2!=Lnn~ y3=Ln:i4 +L:i4 ", factored!(), " +n:i4 +Ln:b1 +L:i8 +Ln:i8 -Ln:i8 -Ln:b1 -n:i4 +Ln +L -L -Ln -L:i8 +Ln -Ln -L:i4")).backward(
        &["A=0", "LU=y2", "pivots=y3", "sign=y0"],
        concat!("blas +Lnn g0=Lnn~ ", solve_with_pivots!(), " -Lnn"),
    ),
    Row::new(&["aten.linalg_solve_triangular.default"], &[("self", "Lnn"), ("B", "Mpq")], "blas y0=Xpq~ +L:i8 +L:i8 -L:i8 -L:i8").attributes(&["upper", "left", "unitriangular"]).backward(
        &["self=0", "result=y0?0"],
        "blas 1?( g1=Xpq~ ) 1!( +Xpq~ ) +L:i8 +L:i8 -L:i8 -L:i8 0?( +Xnn +Xnn -Xnn g0=Xnn -Xnn ) 1!( -Xpq~ )",
    ),
    Row::new(&["aten.triangular_solve.default"], &[("self", "Mpq"), ("A", "Lnn")], "blas y0=Xpq~ y1!=Lnn~ +L:i8 +L:i8 -L:i8 -L:i8").attributes(&["upper", "transpose", "unitriangular"]).backward(
        &["A=1", "solution=y0"],
        "blas 0?( g0=Xpq~ ) 0!( +Xpq~ ) +L:i8 +L:i8 -L:i8 -L:i8 1?( +Xnn +Xnn -Xnn g1=Xnn -Xnn ) 0!( -Xpq~ )",
    ),
    Row::new(&["aten.linalg_lu_factor_ex.default"], &[("A", "Lmn")], concat!("blas y0=Lmn~ y1=Lk:i4 y2=L:i4 ", factored!())).attributes(&["pivot", "check_errors"]).backward(
        &["LU=y0", "pivots=y1"],
        "blas +Lmn +Lmn +Lmn +m:i8 +Lm:i8 -m:i8 -Lm:i8 +Lmn +Lmn -Lmn +Lmn +Lmn +Lmn -Lmn -Lmn -Lmn +Lmn +L:i8 +L:i8 -L:i8 -L:i8 -Lmn +Lmn +L:i8 +L:i8 -L:i8 -L:i8 -Lmn g0=Lmn -Lmn -Lmn -Lmn -Lmn",
    ),
    Row::new(&["aten.linalg_lu.default"], &[("A", "Lmn")], concat!("blas y0!=Lmm y1=Lmk y2=Lkn +Lmn~ +Lk:i4 +L:i4 ", factored!(), " -Lmn~ +m:i8 +Lm:i8 -m:i8 -Lm:i8 -L:i4 -Lk:i4")).attributes(&["pivot"]).backward(
        &["L=y1", "P=y0", "U=y2"],
        "blas +Lmn +Lmn -Lmn +Lmn +Lmn +Lmn -Lmn -Lmn -Lmn +Lmn~ +L:i8 +L:i8 -L:i8 -L:i8 -Lmn g0=Lmn~ +L:i8 +L:i8 -L:i8 -L:i8 -Lmn~",
    ),
    Row::new(&["aten.linalg_ldl_factor_ex.default"], &[("self", "Lnn")], "y0!=Lnn~ y1=Ln:i4 y2=L:i4 +Lnn -Lnn").estimate(CUSOLVER),
    Row::new(&["aten.linalg_cholesky_ex.default"], &[("self", "Lnn")], "y0=Lnn~ y1=L:i4 single?( +#5056 -#5056 ) single!( +L:i8 -L:i8 )").attributes(&["upper", "check_errors"]).backward(&["L=y0"], TWO_SYSTEMS),
    Row::new(&["aten.cholesky_solve.default"], &[("self", "Mnr"), ("input2", "Lnn")], "blas y0=Xnr~ +Xnn -Xnn").attributes(&["upper"]).backward(
        &["input2=1", "result=y0?1", "self=0"],
        "blas 0?( g0=Xnr~ ) 0!( +Xnr~ ) +Xnn -Xnn 1?( +Xnn +Xnn -Xnn +Xnn g1=Xnn -Xnn -Xnn ) 0!( -Xnr~ )",
    ),
    Row::new(&["aten.cholesky_inverse.default"], &[("self", "Lnn")], "blas y0=Lnn~ +Lnn +L:i4 -L:i4 -Lnn").attributes(&["upper"]).backward(
        &["result=y0", "self=0"],
        "blas +Lnn +Lnn +Lnn -Lnn -Lnn +Lnn g0=Lnn -Lnn -Lnn",
    ),
    // `linalg_qr_backward`: what both factors' gradients have in common, then one triangular system.
    Row::new(&["aten.linalg_qr.default"], &[("A", "Lmn")], "y0=Lmq~ y1=Lqn~ +Lk +.:i4 +#3145856 +mn -mn -#3145856 -.:i4 +.:i4 +#131072 +mn -mn -#131072 -.:i4 -Lk").attributes(&["mode"]).more(factorized).backward(
        &["Q=y0", "R=y1"],
        "blas +Lqq +Lqq +Lqq -Lqq -Lqq +Lqq +Lqq +Lmn -Lqq -Lqq -Lqq +Lmn -Lmn g0=Lmn~ +L:i8 +L:i8 -L:i8 -L:i8 -Lmn",
    ).estimate(CUSOLVER),
    Row::new(&["aten.geqrf.default"], &[("self", "Lmn")], "y0!=Lmn~ y1!=Lk +#3145856 +mn -mn -#3145856").estimate(CUSOLVER),
    Row::new(&["aten.linalg_householder_product.default", "aten.orgqr.default"], &[("input", "Lmn"), ("tau", "Lt")], "y0=Lmn~ +.:i4 +#131072 +mn -mn -#131072 -.:i4").backward(
        &["input=0", "result=y0", "tau=1"],
        "blas +Lmn +Lmn +Lmm +Lmm +Lmn g0=Lmn g1=Lt -Lmn -Lmm -Lmm -Lmn -Lmn",
    ).estimate(BETWEEN),
    // Vectors are made where values alone were asked for, too, if those are trained (`linalg_svdvals` in `BatchLinearAlgebra.cpp`).
    // `svd_backward`: with a gradient of singular values alone, `U * gS @ Vh`.
    Row::new(
        &["aten._linalg_svd.default"],
        &[("A", "Lmn")],
        "uv?( y0=Lmu~ y2=Lvn~ y1=Lk +L:i4 +Lmn~ +#3145984 +2mn -2mn -#3145984 -Lmn~ +L:b1 -L:b1 -L:i4 ) uv!( 0?( y0=Lmk~ y2=Lkn~ y1=Lk +L:i4 +Lmn~ +#3145984 +2mn -2mn -#3145984 -Lmn~ +L:b1 -L:b1 -L:i4 ) 0!( y1=Lk y0=0 y2=0 +L:i4 +Lmn~ +mk +kn +#3145984 +2mn -2mn -#3145984 -kn -mk -Lmn~ -L:i4 ) )",
    ).attributes(&["full_matrices", "compute_uv"]).more(factorized).backward(
        &["S=y1", "U=y0", "Vh=y2"],
        concat!("blas y0?( ", svd_vectors!(), " ) y0!( y2?( ", svd_vectors!(), " ) y2!( +Lmk g0=Lmn -Lmk ) )"),
    ).estimate(CUSOLVER),
    // `linalg_eig_backward` of a symmetric matrix: `V (gL + (V^H gV) / E) V^H`. Matrices of up to 32 rows are done all at once.
    Row::new(
        &["aten._linalg_eigh.default"],
        &[("A", "Lnn")],
        "uv?( y1=Lnn~ y0=Ln +L:i4 small?( +Lw -Lw ) small!( +5nn -5nn ) +L:b1 -L:b1 -L:i4 ) uv!( 0?( y1=Lnn~ y0=Ln +L:i4 small?( +Lw -Lw ) small!( +5nn -5nn ) +L:b1 -L:b1 -L:i4 ) 0!( y1=0 y0=Ln +Lnn~ +L:i4 small?( +Lw -Lw ) small!( +5nn -5nn ) +L:b1 -L:b1 -L:i4 -Lnn~ ) )",
    ).attributes(&["UPLO", "compute_v"]).more(factorized).backward(
        &["eigenvalues=y0", "eigenvectors=y1"],
        "blas y1?( +Lnn +Lnn +Lnn -Lnn +Lnn -Lnn +Lnn g0=Lnn -Lnn -Lnn -Lnn ) y1!( +Lnn g0=Lnn -Lnn )",
    ).estimate(CUSOLVER),
    // The buffers of powers for the longest of its Taylor polynomials; the gradient is that of a matrix of four blocks.
    Row::new(&["aten.linalg_matrix_exp.default"], &[("self", "Lnn")], "blas +Lnn +Ln +L -L -Ln -Lnn +Lnn +#100 +5Lnn +. +Lnn -Lnn -. +5Lnn -5Lnn -#100 +Lnn +Lnn y0=Lnn -Lnn -Lnn -5Lnn -Lnn").backward(
        &["self=0"],
        "blas +4Lnn +4Lnn -4Lnn +4Lnn +#100 +54Lnn +. +4Lnn -4Lnn -. +54Lnn -54Lnn -#100 +4Lnn +4Lnn +4Lnn -4Lnn -4Lnn -54Lnn -4Lnn g0=Lnn -4Lnn",
    ).estimate("what is made in between"),
    Row::new(
        &["aten.linalg_pinv.atol_rtol_tensor", "aten.linalg_pinv.atol_rtol_float"],
        &[("self", "Lmn")],
        "blas +Lmk~ +Lkn~ +Lk +L:i4 +Lmn~ +#3145984 +2mn -2mn -#3145984 -Lmn~ -L:i4 +Lk +Lk:b1 +Lk -Lk:b1 -Lk +Lkn y0=Lnm -Lkn -Lk -Lmk~ -Lk -Lkn~",
    ).attributes(&["hermitian"]).backward(
        &["result=y0", "self=0"],
        "blas +Lnn +Lnm +Lmm +Lmn +Lmn +Lmn +Lmm +Lmn +Lmn +Lmn +Lmn +Lmn g0=Lmn~ -Lmn -Lmn -Lmn -Lmn -Lmn -Lmm -Lmn -Lmn -Lmn -Lmm -Lnm -Lnn",
    ).estimate(CUSOLVER),
    Row::new(&["aten.linalg_lstsq.default"], &[("self", "Lmn"), ("b", "Mmr")], "blas y0=Xnr y1!=0 y2=0:i8 y3!=0 +Lmn~ +Lk +#3145856 +2mn -2mn -#3145856 -Lk -Lmn~").attributes(&["rcond", "driver"]).backward(
        &["b=1", "self=0", "solution=y0"],
        "blas +Lnm +Lmn +Lmn -Lmn -Lmn 0?( +Lnm +Lnm +Lnn +Lnm -Lnm g0=Lmn -Lnm -Lnm -Lnn ) 1?( g1=Mmr ) -Lnm",
    ).estimate(BETWEEN),
];
