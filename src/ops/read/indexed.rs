//! Operators that make tensors, or look elements up by position.

use super::Lowered;
use crate::aten::{Arguments, Length};
use crate::graph::ValueId;
use crate::ops::{Create, CreatedType, Indexed, Op, Place};
use crate::shape::{DType, Extent, Number};

/// The operators of this file.
pub(super) const NAMES: &[&str] = &[
    "aten.all.default",
    "aten.all.dim",
    "aten.amax.default",
    "aten.amin.default",
    "aten.any.default",
    "aten.any.dim",
    "aten.arange.start",
    "aten.arange.start_step",
    "aten.argmax.default",
    "aten.argmin.default",
    "aten.argsort.default",
    "aten.cumsum.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.full.default",
    "aten.full_like.default",
    "aten.histc.default",
    "aten.index.Tensor",
    "aten.index_add.default",
    "aten.index_add_.default",
    "aten.index_put.default",
    "aten.index_put_.default",
    "aten.index_select.default",
    "aten.max.default",
    "aten.max.dim",
    "aten.min.default",
    "aten.min.dim",
    "aten.new_empty.default",
    "aten.new_full.default",
    "aten.new_ones.default",
    "aten.new_zeros.default",
    "aten.one_hot.default",
    "aten.ones.default",
    "aten.ones_like.default",
    "aten.rand.default",
    "aten.rand_like.default",
    "aten.randn.default",
    "aten.randn_like.default",
    "aten.repeat_interleave.self_int",
    "aten.scalar_tensor.default",
    "aten.scatter.src",
    "aten.scatter.value",
    "aten.scatter_.src",
    "aten.scatter_.value",
    "aten.scatter_add.default",
    "aten.scatter_add_.default",
    "aten.sort.default",
    "aten.topk.default",
    "aten.tril.default",
    "aten.triu.default",
    "aten.zeros.default",
    "aten.zeros_like.default",
];

/// What a node does, or `None` for an operator of another family.
pub(super) fn lower(
    target: &str,
    args: &Arguments<'_>,
    typed: impl Fn(ValueId) -> (DType, Vec<Extent>),
) -> Result<Option<Lowered>, String> {
    if !NAMES.contains(&target) {
        return Ok(None);
    }
    if let Some(created) = create(target, args, &typed)? {
        return Ok(Some(created));
    }
    let input = args.tensor("self")?;
    let rank = typed(input).1.len();
    if let Some(written) = writing(target, args, (input, rank))? {
        return Ok(Some(written));
    }
    let dim = |name: &str, default: Option<i64>| args.dim(name, default, rank);
    let keep = || args.flag("keepdim", false);
    let mut operands = vec![input];
    let indexed = match target {
        "aten.index.Tensor" => {
            let indices = args.optional_tensors("indices")?;
            operands.extend(indices.iter().flatten());
            Indexed::Index(indices.iter().map(Option::is_some).collect())
        }
        "aten.index_select.default" => {
            operands.push(args.tensor("index")?);
            let dim = dim("dim", None)?;
            Indexed::Select { dim }
        }
        "aten.max.dim" | "aten.min.dim" => Indexed::Extreme {
            dim: dim("dim", None)?,
            keep: keep()?,
        },
        "aten.argmax.default" | "aten.argmin.default" => Indexed::ArgExtreme {
            dim: if args.has("dim") {
                Some(dim("dim", None)?)
            } else {
                None
            },
            keep: keep()?,
        },
        "aten.any.default" | "aten.all.default" => Indexed::Truth {
            dims: (0..rank).collect(),
            keep: false,
        },
        "aten.any.dim" | "aten.all.dim" => Indexed::Truth {
            dims: vec![dim("dim", None)?],
            keep: keep()?,
        },
        "aten.amax.default" | "aten.amin.default" | "aten.max.default" | "aten.min.default" => {
            return Err("its gradient is not supported".into());
        }
        "aten.topk.default" => Indexed::TopK {
            count: args.count("k", None)?,
            dim: dim("dim", Some(-1))?,
        },
        "aten.sort.default" => Indexed::Sort {
            dim: dim("dim", Some(-1))?,
        },
        "aten.argsort.default" => Indexed::ArgSort {
            dim: dim("dim", Some(-1))?,
        },
        "aten.histc.default" => Indexed::Histogram {
            bins: args.count("bins", Some(100))?,
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
        _ => Indexed::Triangle,
    };
    Ok(Some((Op::Indexed(indexed), operands)))
}

/// What writes at looked-up places of `input`.
fn writing(
    target: &str,
    args: &Arguments<'_>,
    (input, rank): (ValueId, usize),
) -> Result<Option<Lowered>, String> {
    let mut operands = vec![input];
    let indexed = match target {
        "aten.index_put.default" | "aten.index_put_.default" => {
            let indices = args.optional_tensors("indices")?;
            operands.extend(indices.iter().flatten());
            operands.push(args.tensor("values")?);
            Indexed::Put {
                accumulate: args.flag("accumulate", false)?,
                fresh: !target.contains("_."),
                marked: indices.iter().map(Option::is_some).collect(),
            }
        }
        "aten.index_add.default" | "aten.index_add_.default" => {
            operands.push(args.tensor("index")?);
            operands.push(args.tensor("source")?);
            Indexed::Add {
                fresh: !target.contains("_."),
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
                in_place: target.contains("_."),
            }
        }
        _ => return Ok(None),
    };
    Ok(Some((Op::Indexed(indexed), operands)))
}

/// New tensors; the first operand of some gives only its type and shape.
pub(super) fn create(
    target: &str,
    args: &Arguments<'_>,
    typed: impl Fn(ValueId) -> (DType, Vec<Extent>),
) -> Result<Option<Lowered>, String> {
    let Some((name, _)) = target.strip_prefix("aten.").and_then(|t| t.split_once('.')) else {
        return Ok(None);
    };
    let known = [
        "arange",
        "empty",
        "full",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "rand",
        "randn",
        "scalar_tensor",
        "zeros",
        "empty_like",
        "full_like",
        "ones_like",
        "rand_like",
        "randn_like",
        "zeros_like",
    ];
    let Some(name) = known.into_iter().find(|known| *known == name) else {
        return Ok(None);
    };
    let written = args.dtype("dtype")?;
    let like = name.ends_with("_like") || name.starts_with("new_");
    let (dtype, operands) = match written {
        Some(dtype) if dtype.is_float() => (CreatedType::OfModel(dtype), Vec::new()),
        Some(dtype) => (CreatedType::Fixed(dtype), Vec::new()),
        None if like => {
            let operand = args.tensor("self")?;
            (CreatedType::OfOperand(typed(operand).0), vec![operand])
        }
        None => (CreatedType::Fixed(default_type(name, args)), Vec::new()),
    };
    let shape = if name.ends_with("_like") {
        typed(args.tensor("self")?).1
    } else if name == "arange" {
        vec![range(args)?]
    } else if name == "scalar_tensor" {
        Vec::new()
    } else {
        let lengths = args.lengths("size")?;
        let lengths = lengths.into_iter().collect::<Option<Vec<_>>>();
        lengths.ok_or("its argument \"size\" contains -1")?
    };
    let place = if name == "scalar_tensor" {
        Place::Host
    } else {
        Place::Card
    };
    let create = Create {
        name,
        shape,
        dtype,
        place,
    };
    Ok(Some((Op::Create(create), operands)))
}

/// The type where none is written: that of the numbers given for ranges and fills, else float32.
fn default_type(name: &str, args: &Arguments<'_>) -> DType {
    let real = |name: &str| args.number_kind(name) == Some(Number::Real);
    match (name, args.number_kind("fill_value")) {
        ("arange", _) if !["start", "end", "step"].into_iter().any(real) => DType::Int64,
        ("full", Some(Number::Truth)) => DType::Bool,
        ("full", Some(Number::Whole)) => DType::Int64,
        _ => DType::Float32,
    }
}

/// How many elements a range has.
fn range(args: &Arguments<'_>) -> Result<Extent, String> {
    let start = args.length("start");
    let end = args.length("end");
    let step = args.number_or("step", 1.0)?;
    if let (Ok(Some(Length::Number(0)) | None), Ok(Some(Length::Batched(end)))) = (&start, &end)
        && (step - 1.0).abs() < f64::EPSILON
    {
        return Ok(*end);
    }
    let span = args.number("end")? - args.number_or("start", 0.0)?;
    let count = (span / step).ceil();
    if !(0.0..1e15).contains(&count) {
        return Err("its range is empty or too long".into());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number in range"
    )]
    Ok(Extent::fixed(count as u64))
}
