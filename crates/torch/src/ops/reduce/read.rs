//! Reading reductions.

use super::{Dims, Reduce, Reduction};
use crate::ops::prelude::*;

/// Operators by their names.
pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.mean.default aten.mean.dim", |args| {
        read(args, Reduction::Mean)
    }),
    ("aten.sum.default aten.sum.dim_IntList", |args| {
        read(args, Reduction::Sum)
    }),
    ("aten.nansum.default", |args| read(args, Reduction::NanSum)),
    ("aten.prod.default aten.prod.dim_int", |args| {
        read(args, Reduction::Product)
    }),
    (
        "aten.var.default aten.var.dim aten.var.correction aten.std.default aten.std.dim aten.std.correction aten.var_mean.default \
         aten.var_mean.dim aten.var_mean.correction aten.std_mean.default aten.std_mean.dim aten.std_mean.correction",
        spread,
    ),
    (
        "aten.logsumexp.default aten.special_logsumexp.default",
        |args| read(args, Reduction::LogSumExp),
    ),
    ("aten.amax.default aten.max.default", |args| {
        read(args, Reduction::Extreme { largest: true })
    }),
    ("aten.amin.default aten.min.default", |args| {
        read(args, Reduction::Extreme { largest: false })
    }),
    ("aten.aminmax.default", |args| read(args, Reduction::Both)),
    (
        "aten.count_nonzero.default aten.count_nonzero.dim_IntList",
        |args| read(args, Reduction::CountNonzero),
    ),
    ("aten.linalg_vector_norm.default", |args| {
        norm(args, "ord", false)
    }),
    ("aten.linalg_norm.default", |args| {
        // Without dimensions it is of the flattened tensor, with two a matrix norm.
        if args.has("ord") && args.whole_numbers("dim").is_ok_and(|dims| dims.len() > 1) {
            return Err("it is a matrix norm of an order other than Frobenius".into());
        }
        norm(args, "ord", false)
    }),
    (
        "aten.linalg_norm.ord_str aten.linalg_matrix_norm.str_ord",
        frobenius,
    ),
    ("aten.frobenius_norm.dim", |args| norm(args, "p", false)),
    (
        "aten.norm.Scalar aten.norm.ScalarOpt_dim aten.norm.ScalarOpt_dim_dtype aten.norm.ScalarOpt_dtype",
        |args| norm(args, "p", true),
    ),
];

fn read(args: &Arguments<'_>, function: Reduction) -> Result<Read, String> {
    let rank = args.shape(args.tensor("self")?).len();
    read_over(args, function, dims(args, rank)?)
}

fn read_over(args: &Arguments<'_>, function: Reduction, dims: Dims) -> Result<Read, String> {
    let reduce = Reduce {
        function,
        dims,
        keep: args.flag("keepdim", false)?,
        dtype: args.dtype("dtype")?,
    };
    Ok((reduce.into(), args.all(&["self"])?))
}

/// The dimensions that are named, one or several; an empty list names none.
fn dims(args: &Arguments<'_>, rank: usize) -> Result<Dims, String> {
    if rank == 0 || !args.has("dim") {
        return Ok(Dims::All);
    }
    let mut dims = match args.attribute("dim")? {
        Some(Constant::Whole(_)) => vec![args.dim("dim", None, rank)?],
        _ if args.whole_numbers("dim").is_ok_and(|dims| dims.is_empty()) => return Ok(Dims::All),
        _ => args.dims("dim", rank)?,
    };
    dims.sort_unstable();
    Ok(Dims::Named(dims))
}

/// `var`, `std`, and those with a mean: unbiased unless told (`correction` 1, `unbiased` true).
fn spread(args: &Arguments<'_>) -> Result<Read, String> {
    let biased = !args.flag("unbiased", true)?;
    let correction = args.number_or("correction", if biased { 0.0 } else { 1.0 })?;
    let function = Reduction::Spread {
        root: args.target.starts_with("aten.std"),
        with_mean: args.target.contains("_mean."),
        correction,
    };
    read(args, function)
}

fn norm(args: &Arguments<'_>, order: &str, is_older: bool) -> Result<Read, String> {
    let order = args.number_or(order, 2.0)?;
    read(args, Reduction::Norm { order, is_older })
}

/// Matrix norms by name: of those, Frobenius's is a norm of vectors.
fn frobenius(args: &Arguments<'_>) -> Result<Read, String> {
    match args.text("ord", "fro")? {
        "fro" => {}
        other => return Err(format!("its argument \"ord\" is {other:?}")),
    }
    let (order, is_older) = (2.0, false);
    if args.has("dim") || args.target.contains("ord_str") {
        return read(args, Reduction::Norm { order, is_older });
    }
    let rank = args.shape(args.tensor("self")?).len();
    let first = rank
        .checked_sub(2)
        .ok_or("it is a matrix norm of no matrix")?;
    let dims = Dims::Named(vec![first, first + 1]);
    read_over(args, Reduction::Norm { order, is_older }, dims)
}
