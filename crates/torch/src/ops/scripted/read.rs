//! Reading operators of the tables, and what of their arguments decides on lengths.

use super::{Row, Scripted, TABLE};
use crate::ops::prelude::*;

/// Lengths by letters, and words that hold.
type Found = (Vec<(char, Vec<Extent>)>, Vec<&'static str>);

/// Lengths and words that follow from arguments.
type More = fn(&Arguments<'_>) -> Result<Found, String>;

/// Those that rows name.
pub(super) const MORE: &[(&str, More)] = &[
    ("drawn", drawn),
    ("factorized", factorized),
    ("factors", factors),
    ("one_dim", one_dim),
    ("padded", padded),
    ("pairs", pairs),
    ("pooled", pooled),
    ("solved", solved),
    ("turned", turned),
    ("unfolded", unfolded),
];

rows!(TABLE: Row, read by read);

/// Reads an operator of the tables.
fn read(args: &Arguments<'_>) -> Result<Read, String> {
    read_as(args.target, args)
}

/// Reads a call that another family leaves, by the row of this name.
pub(in crate::ops) fn read_as(name: &str, args: &Arguments<'_>) -> Result<Read, String> {
    let found = ROWS.get_key_value(name);
    let (target, row) = found.ok_or("it is in no table of scripts")?;
    let names: Vec<&str> = row.operands.iter().map(|(name, _)| *name).collect();
    let operands = args.all(&names)?;
    let more = MORE.iter().find(|(name, _)| row.more == Some(*name));
    let (lengths, holds) = match more {
        Some((_, more)) => more(args)?,
        None => (Vec::new(), Vec::new()),
    };
    let mut attributes = Vec::new();
    for name in &row.attributes {
        attributes.extend(args.attribute(name)?.map(|value| (*name, value)));
    }
    let op = Scripted {
        target,
        row,
        attributes,
        lengths,
        holds,
    };
    Ok((op.into(), operands))
}

/// Whether the factors of the summand and of the product are other than one.
fn factors(args: &Arguments<'_>) -> Result<Found, String> {
    let mut holds = Vec::new();
    if args.always("beta", 1.0).is_err() {
        holds.push("beta");
    }
    if args.always("alpha", 1.0).is_err() {
        holds.push("alpha");
    }
    // A bias is added by cuBLASLt, but to one row or column (`addmm_out_cuda_impl` in `Blas.cpp`).
    let is_one = |id| args.shape(id).contains(&Extent::fixed(1));
    let adds_bias = args.shape(args.tensor("self")?).len() == 1;
    if !holds.contains(&"beta") && adds_bias && !args.tensor("mat2").is_ok_and(is_one) {
        holds.push("lt");
    }
    Ok((Vec::new(), holds))
}

/// `r`: the length of the dimension that `dim` names.
fn one_dim(args: &Arguments<'_>) -> Result<Found, String> {
    let shape = args.shape(args.tensor("self")?);
    let dim = args.dim("dim", None, shape.len())?;
    Ok((vec![('r', vec![shape[dim]])], Vec::new()))
}

/// `u` and `v`: height and width of what is cut out for each region.
fn pooled(args: &Arguments<'_>) -> Result<Found, String> {
    let side = |name: &str| Ok::<_, String>(vec![Extent::fixed(args.count(name, None)?)]);
    Ok((
        vec![('u', side("pooled_height")?), ('v', side("pooled_width")?)],
        Vec::new(),
    ))
}

/// `R`: the lengths after turning by right angles.
fn turned(args: &Arguments<'_>) -> Result<Found, String> {
    let mut shape = args.shape(args.tensor("self")?);
    let dims = args.dims("dims", shape.len())?;
    let [first, second] = dims[..] else {
        return Err(format!("it turns {} dimensions", dims.len()));
    };
    let quarter = args.int("k", Some(1))?.rem_euclid(2) == 1;
    if quarter {
        shape.swap(first, second);
    }
    Ok((vec![('R', shape)], Vec::new()))
}

/// `s`: how many are drawn; whether several are drawn, and whether they are put back.
fn drawn(args: &Arguments<'_>) -> Result<Found, String> {
    let count = args.count("num_samples", None)?;
    let mut holds = Vec::new();
    if args.flag("replacement", false)? {
        holds.push("replaced");
    }
    if count > 1 {
        holds.push("several");
    }
    Ok((vec![('s', vec![Extent::fixed(count)])], holds))
}

/// `Y`: the lengths that windows are added up to; `d`: places along their dimension, none where they do not overlap.
fn unfolded(args: &Arguments<'_>) -> Result<Found, String> {
    let lengths = args.lengths("input_sizes")?;
    let whole: Vec<Extent> = lengths
        .into_iter()
        .collect::<Option<_>>()
        .ok_or("a length is left open")?;
    let dim = args.dim("dim", None, whole.len())?;
    let overlaps = args.count("step", None)? < args.count("size", None)?;
    let along = if overlaps { whole[dim] } else { Extent::ZERO };
    Ok((vec![('Y', whole), ('d', vec![along])], Vec::new()))
}

/// `p`: how many pairs of rows there are.
fn pairs(args: &Arguments<'_>) -> Result<Found, String> {
    let shape = args.shape(args.tensor("self")?);
    let rows = *shape.first().ok_or("it is a number")?;
    let less = rows.checked_sub(Extent::ONE).ok_or("it has no rows")?;
    let twice = rows
        .checked_mul(less)
        .ok_or("how many pairs there are depends on the batch")?;
    let pairs = twice
        .floor_div(2)
        .ok_or("how many pairs there are depends on the batch")?;
    Ok((vec![('p', vec![pairs])], Vec::new()))
}

/// `p`: the rows of vectors with their norms and ones.
fn padded(args: &Arguments<'_>) -> Result<Found, String> {
    let shape = args.shape(args.tensor("x1")?);
    let width = *shape.last().ok_or("it is a number")?;
    Ok((vec![('p', vec![width + Extent::fixed(2)])], Vec::new()))
}

/// `Y`: the lengths of a solution, and `Z` those of the batch that it is of; `B` is a matrix for each, or a vector.
fn solved(args: &Arguments<'_>) -> Result<Found, String> {
    let [system, right] = ["A", "B"].map(|name| args.tensor(name).map(|id| args.shape(id)));
    let (system, right) = (system?, right?);
    let lead = system.len().checked_sub(2).ok_or("it solves no matrix")?;
    // `linalg_solve_is_vector_rhs` in `LinearAlgebraUtils.h`.
    let is_vector =
        right.len() == 1 || (right.len() + 1 == system.len() && right[..] == system[..=lead]);
    let own = if is_vector { 1 } else { 2 };
    let at = right
        .len()
        .checked_sub(own)
        .ok_or("it has no right-hand side")?;
    let batch = broadcast(&system[..lead], &right[..at])?;
    let solution = [&batch[..], &right[at..]].concat();
    Ok((vec![('Y', solution), ('Z', batch)], Vec::new()))
}

/// How many numbers `syevjBatched` of cuSOLVER takes for each matrix of up to 32 rows, at most: 342,988 bytes for 24 rows.
const SMALL_EIGENVALUES: u64 = 85_760;

/// `q`: how many columns the first factor of `qr` has; `u` and `v` those of `svd`. Whether vectors are made at all.
fn factorized(args: &Arguments<'_>) -> Result<Found, String> {
    let shape = args.shape(args.tensor("A")?);
    let [.., rows, columns] = shape[..] else {
        return Err("it is no matrix".into());
    };
    let smaller = rows
        .smaller(columns)
        .ok_or("which of two lengths is smaller depends on the batch")?;
    let is_whole = args.text("mode", "reduced")? == "complete";
    let is_full = args.flag("full_matrices", false)?;
    let lengths = vec![
        ('q', vec![if is_whole { rows } else { smaller }]),
        ('u', vec![if is_full { rows } else { smaller }]),
        ('v', vec![if is_full { columns } else { smaller }]),
        ('w', vec![Extent::fixed(SMALL_EIGENVALUES)]),
    ];
    let mut holds = Vec::new();
    if args.flag("compute_uv", true)? && args.flag("compute_v", true)? {
        holds.push("uv");
    }
    if columns.as_fixed().is_some_and(|columns| columns <= 32) {
        holds.push("small");
    }
    Ok((lengths, holds))
}
