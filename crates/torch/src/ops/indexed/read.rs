//! Reading look-ups, sorts and choices.

use super::Indexed;
use super::extremes::Choice;
use crate::aten::{Arguments, ValueId};
use crate::ops::{Read, Reader};
use crate::shape::{DType, Extent, numel};

/// Operators by their names.
pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[(
    "aten._is_all_true.default aten.all.default aten.all.dim aten.any.default aten.any.dim aten.argmax.default aten.argmin.default \
         aten.argsort.default aten.cumsum.default aten.gather.default aten.histc.default aten.index.Tensor aten.index_add.default \
         aten.index_add_.default aten.index_put.default aten.index_put_.default aten.index_select.default aten.kthvalue.default \
         aten.max.dim aten.median.dim aten.nanmedian.dim aten.min.dim aten.mode.default aten.one_hot.default \
         aten.repeat_interleave.self_int aten.scatter.src aten.scatter.value aten.scatter_.src aten.scatter_.value \
         aten.scatter_add.default aten.scatter_add_.default aten.sort.default aten.topk.default aten.tril.default aten.triu.default",
    read,
)];

#[expect(clippy::too_many_lines, reason = "an arm for each operator")]
fn read(args: &Arguments<'_>) -> Result<Read, String> {
    let target = args.target;
    let input = args.tensor("self")?;
    let rank = args.shape(input).len();
    if let Some(written) = writing(target, args, (input, rank))? {
        return Ok(written);
    }
    let dim = |name: &str, default: Option<i64>| args.dim(name, default, rank);
    let keep = || args.flag("keepdim", false);
    let mut operands = vec![input];
    let indexed = match target {
        "aten.gather.default" => {
            operands.push(args.tensor("index")?);
            Indexed::Gather {
                dim: dim("dim", None)?,
            }
        }
        "aten.index.Tensor" => {
            let indices = args.optional_tensors("indices")?;
            operands.extend(indices.iter().flatten());
            let (marked, rows) = marks(args, &indices);
            match rows {
                None => Indexed::Index(marked),
                Some(rows) => Indexed::IndexMasked { marked, rows },
            }
        }
        "aten.index_select.default" => {
            operands.push(args.tensor("index")?);
            let dim = dim("dim", None)?;
            Indexed::Select { dim }
        }
        "aten.max.dim"
        | "aten.min.dim"
        | "aten.median.dim"
        | "aten.nanmedian.dim"
        | "aten.mode.default"
        | "aten.kthvalue.default" => Indexed::Extreme {
            choice: match target {
                "aten.max.dim" => Choice::Largest,
                "aten.min.dim" => Choice::Smallest,
                "aten.median.dim" => Choice::Median,
                "aten.nanmedian.dim" => Choice::NanMedian,
                "aten.mode.default" => Choice::Mode,
                _ => Choice::Kth(args.count("k", None)?),
            },
            dim: dim("dim", Some(-1))?,
            keep: keep()?,
        },
        "aten.argmax.default" | "aten.argmin.default" => Indexed::ArgExtreme {
            largest: target == "aten.argmax.default",
            dim: if args.has("dim") {
                Some(dim("dim", None)?)
            } else {
                None
            },
            keep: keep()?,
        },
        "aten.any.default" | "aten.all.default" | "aten._is_all_true.default" => Indexed::Truth {
            all: !target.starts_with("aten.any"),
            dims: (0..rank).collect(),
            keep: false,
        },
        "aten.any.dim" | "aten.all.dim" => Indexed::Truth {
            all: !target.starts_with("aten.any"),
            dims: vec![dim("dim", None)?],
            keep: keep()?,
        },
        "aten.topk.default" => Indexed::TopK {
            count: args.count("k", None)?,
            dim: dim("dim", Some(-1))?,
            largest: args.flag("largest", true)?,
        },
        "aten.sort.default" => Indexed::Sort {
            dim: dim("dim", Some(-1))?,
            descending: args.flag("descending", false)?,
        },
        "aten.argsort.default" => Indexed::ArgSort {
            dim: dim("dim", Some(-1))?,
            descending: args.flag("descending", false)?,
        },
        "aten.histc.default" => Indexed::Histogram {
            bins: args.count("bins", Some(100))?,
            range: [args.number_or("min", 0.0)?, args.number_or("max", 0.0)?],
        },
        "aten.one_hot.default" => Indexed::OneHot {
            classes: args.count("num_classes", None)?,
        },
        "aten.repeat_interleave.self_int" => Indexed::RepeatInterleave {
            times: args.count("repeats", None)?,
            // Without a dimension it repeats the elements of the flattened tensor.
            dim: match (args.has("dim"), rank) {
                (false, 1) => 0,
                (false, _) => return Err(format!("it flattens {rank} dimensions")),
                (true, _) => dim("dim", None)?,
            },
        },
        "aten.cumsum.default" => Indexed::CumulativeSum {
            dim: if rank == 0 { 0 } else { dim("dim", None)? },
            dtype: args.dtype("dtype")?,
        },
        _ => Indexed::Triangle {
            upper: target == "aten.triu.default",
            diagonal: args.int("diagonal", Some(0))?,
        },
    };
    Ok((indexed.into(), operands))
}

/// The dimensions that are looked up in, and how many places truth values may choose.
fn marks(args: &Arguments<'_>, indices: &[Option<ValueId>]) -> (Vec<bool>, Option<Extent>) {
    let mut marked = Vec::new();
    let mut most: Option<Extent> = None;
    for index in indices {
        match index.map(|index| args.typed(index)) {
            None => marked.push(false),
            Some((DType::Bool, shape)) => {
                marked.extend(shape.iter().map(|_| true));
                most = most.or(Some(numel(&shape)));
            }
            Some(_) => marked.push(true),
        }
    }
    (marked, most.map(|most| args.rows(most)))
}

/// What writes at looked-up places of `input`.
fn writing(
    target: &str,
    args: &Arguments<'_>,
    (input, rank): (ValueId, usize),
) -> Result<Option<Read>, String> {
    let mut operands = vec![input];
    let indexed = match target {
        "aten.index_put.default" | "aten.index_put_.default" => {
            let indices = args.optional_tensors("indices")?;
            operands.extend(indices.iter().flatten());
            operands.push(args.tensor("values")?);
            let (marked, rows) = marks(args, &indices);
            // A node that makes no rows does not say how many places it writes to: as many as it has values.
            let written = args.shape(operands[operands.len() - 1]);
            let rows = match written.first() {
                Some(count) if *count != Extent::ONE && rows.is_some() => {
                    let dims = marked.iter().rev().skip_while(|marked| !**marked).count();
                    let rest = args.shape(input).len().saturating_sub(dims);
                    if written.len() > rest {
                        Some(*count)
                    } else {
                        rows
                    }
                }
                _ => rows,
            };
            Indexed::Put {
                accumulate: args.flag("accumulate", false)?,
                fresh: !target.contains("_."),
                marked,
                rows,
            }
        }
        "aten.index_add.default" | "aten.index_add_.default" => {
            operands.push(args.tensor("index")?);
            operands.push(args.tensor("source")?);
            Indexed::Add {
                dim: args.dim("dim", None, rank)?,
                fresh: !target.contains("_."),
                alpha: Some(args.number_or("alpha", 1.0)?)
                    .filter(|_| args.always("alpha", 1.0).is_err()),
            }
        }
        "aten.scatter.src"
        | "aten.scatter.value"
        | "aten.scatter_.src"
        | "aten.scatter_.value"
        | "aten.scatter_add.default"
        | "aten.scatter_add_.default" => {
            operands.push(args.tensor("index")?);
            operands.extend(args.optional_tensor("src")?);
            Indexed::Scatter {
                dim: args.dim("dim", None, rank)?,
                adds: target.contains("scatter_add"),
                value: args
                    .has("value")
                    .then(|| args.number("value"))
                    .transpose()?,
                in_place: target.contains("_."),
            }
        }
        _ => return Ok(None),
    };
    Ok(Some((indexed.into(), operands)))
}
