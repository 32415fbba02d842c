//! One ATen operator to one [`Op`].

mod activation;
mod indexed;
mod layout;
mod loss;
mod plane;
mod pointwise;

use crate::aten::{Arguments, Length, Operand};
use crate::graph::ValueId;
use crate::ops::Op;
use crate::program::Placement;
use crate::shape::{DType, Extent, Window, result_type};

/// An operation and its operands.
pub(crate) type Lowered = (Op, Vec<ValueId>);

/// Operators of this file; other families have their own lists.
const SUPPORTED: &[&str] = &[
    "aten._grouped_mm.default",
    "aten.add.Tensor",
    "aten.add_.Tensor",
    "aten.addmm.default",
    "aten.arange.default",
    "aten.baddbmm.default",
    "aten.bmm.default",
    "aten.cat.default",
    "aten.conv1d.default",
    "aten.embedding.default",
    "aten.linear.default",
    "aten.log_softmax.int",
    "aten.matmul.default",
    "aten.mm.default",
    "aten.mul.Tensor",
    "aten.neg.default",
    "aten.pow.Tensor_Scalar",
    "aten.rms_norm.default",
    "aten.scaled_dot_product_attention.default",
    "aten.softmax.int",
    "aten.square.default",
    "transformers.grouped_mm_fallback.default",
    "aten.to.device",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "transformers.grouped_mm_fallback.default",
];

/// Makes several results, each by an operation of its own; the walk over nodes does that.
pub(crate) const BROADCAST_TENSORS: &str = "aten.broadcast_tensors.default";

/// Every operator that [`lower`] knows, some without their overload.
pub(crate) fn supported() -> impl Iterator<Item = &'static str> {
    let listed = [
        SUPPORTED,
        layout::NAMES,
        indexed::NAMES,
        loss::NAMES,
        plane::NAMES,
    ];
    listed
        .into_iter()
        .flatten()
        .copied()
        .chain(activation::names())
        .chain(pointwise::names())
        .chain([BROADCAST_TENSORS])
}

/// What a node does, or `None` for an operator that is not [`supported`]. `typed` gives a value's
/// dtype and shape.
pub(crate) fn lower(
    target: &str,
    args: &Arguments<'_>,
    typed: impl Fn(ValueId) -> (DType, Vec<Extent>),
) -> Result<Option<Lowered>, String> {
    let shape = |id: ValueId| typed(id).1;
    if let Some(lowered) = indexed::lower(target, args, &typed)? {
        return Ok(Some(lowered));
    }
    if let Some(lowered) = loss::lower(target, args, shape)? {
        return Ok(Some(lowered));
    }
    if let Some(lowered) = weighted(target, args, shape)? {
        return Ok(Some(lowered));
    }
    if let Some(lowered) = elementwise(target, args, &typed)? {
        return Ok(Some(lowered));
    }
    if let Some(lowered) = creation(target, args, &typed)? {
        return Ok(Some(lowered));
    }
    if let Some(lowered) = layout::lower(target, args, &typed)? {
        return Ok(Some(lowered));
    }
    if let Some(lowered) = plane::lower(target, args, &typed)? {
        return Ok(Some(lowered));
    }
    if let Some(lowered) = activation::lower(target, args)? {
        return Ok(Some(lowered));
    }
    pointwise::lower(target, args)
}

/// Whether `other` is a number of a higher kind than the elements of `self`.
fn raises_type(args: &Arguments<'_>, typed: impl Fn(ValueId) -> (DType, Vec<Extent>)) -> bool {
    let dtype = args.tensor("self").map(|input| typed(input).0);
    match (dtype, args.number_kind("other")) {
        (Ok(dtype), Some(number)) => result_type(&[(dtype, false)], Some(number)) != dtype,
        _ => false,
    }
}

/// Layers: what has parameters, pools, attends or scores.
fn weighted(
    target: &str,
    args: &Arguments<'_>,
    shape: impl Fn(ValueId) -> Vec<Extent>,
) -> Result<Option<Lowered>, String> {
    let lowered = match target {
        "aten.linear.default" => (Op::Linear, with_bias(args, &["input", "weight"])?),
        "aten.addmm.default" => {
            args.always("beta", 1.0)?;
            args.always("alpha", 1.0)?;
            let operands = [
                args.tensor("self")?,
                args.tensor("mat1")?,
                args.tensor("mat2")?,
            ];
            (Op::Addmm, operands.to_vec())
        }
        "aten.matmul.default" => (Op::Matmul, all(args, &["self", "other"])?),
        // Of two matrices, which is what `matmul` makes of them.
        "aten.mm.default" => (Op::Matmul, all(args, &["self", "mat2"])?),
        "aten.bmm.default" => (Op::Bmm, all(args, &["self", "mat2"])?),
        "aten.baddbmm.default" => {
            let is_one = |name: &str| args.always(name, 1.0).is_ok();
            let scaled = [!is_one("beta"), !is_one("alpha")];
            let operands = all(args, &["self", "batch1", "batch2"])?;
            (Op::Baddbmm { scaled }, operands)
        }
        "aten.rms_norm.default" => {
            let dims = args.lengths("normalized_shape")?.len();
            let mut operands = vec![args.tensor("input")?];
            operands.extend(args.optional_tensor("weight")?);
            (Op::RmsNorm { dims }, operands)
        }
        "transformers.grouped_mm_fallback.default" | "aten._grouped_mm.default" => {
            let operands = if target.starts_with("aten") {
                ["self", "mat2", "offs"]
            } else {
                ["input", "weight", "offs"]
            };
            (Op::GroupedMatmul, all(args, &operands)?)
        }
        "aten.conv1d.default" => {
            let operands = with_bias(args, &["input", "weight"])?;
            let window = flat_convolution(args, &shape(operands[1]))?;
            (Op::Conv2d(window), operands)
        }
        "aten.embedding.default" => {
            args.absent("sparse")?;
            args.absent("scale_grad_by_freq")?;
            // A negative index stands for none.
            let padding = u64::try_from(args.int("padding_idx", Some(-1))?).ok();
            (
                Op::Embedding { padding },
                all(args, &["weight", "indices"])?,
            )
        }
        "aten.scaled_dot_product_attention.default" => {
            let scale = args.has("scale").then(|| args.number("scale"));
            let op = Op::Attention {
                scale: scale.transpose()?,
                causal: args.flag("is_causal", false)?,
                dropout: args.number_or("dropout_p", 0.0)?,
                grouped: args.flag("enable_gqa", false)?,
            };
            let mut operands = all(args, &["query", "key", "value"])?;
            operands.extend(args.optional_tensor("attn_mask")?);
            (op, operands)
        }
        _ => return Ok(None),
    };
    Ok(Some(lowered))
}

/// Functions of each element.
fn elementwise(
    target: &str,
    args: &Arguments<'_>,
    typed: impl Fn(ValueId) -> (DType, Vec<Extent>),
) -> Result<Option<Lowered>, String> {
    let placement = if target.contains("_.") {
        Placement::InPlace
    } else {
        Placement::New
    };
    let lowered = match target {
        "aten.neg.default" => (Op::MulScalar(-1.0), vec![args.tensor("self")?]),
        "aten.softmax.int" | "aten.log_softmax.int" => {
            let input = args.tensor("self")?;
            let op = Op::Softmax {
                dim: args.dim("dim", None, typed(input).1.len())?,
                log: target.contains("log"),
                dtype: args.dtype("dtype")?,
            };
            (op, vec![input])
        }
        // A number that changes the type of whole elements makes another kind of sum.
        "aten.add.Tensor" | "aten.mul.Tensor" if raises_type(args, &typed) => return Ok(None),
        "aten.add.Tensor" | "aten.add_.Tensor" => {
            args.always("alpha", 1.0)?;
            with_other(args, Op::Add(placement), |n| Op::AddScalar(n, placement))?
        }
        "aten.mul.Tensor" => with_other(args, Op::Mul, Op::MulScalar)?,
        "aten.square.default" => (Op::PowScalar(2.0), vec![args.tensor("self")?]),
        "aten.pow.Tensor_Scalar" => (
            Op::PowScalar(args.number("exponent")?),
            vec![args.tensor("self")?],
        ),
        _ => return Ok(None),
    };
    Ok(Some(lowered))
}

/// What makes a tensor of another kind: ranges, casts, joins.
fn creation(
    target: &str,
    args: &Arguments<'_>,
    typed: impl Fn(ValueId) -> (DType, Vec<Extent>),
) -> Result<Option<Lowered>, String> {
    let lowered = match target {
        "aten.cat.default" => {
            let mut tensors = args.tensors("tensors")?;
            // PyTorch skips empty lists, with which Hugging Face's caches begin.
            if tensors.len() > 1 {
                tensors.retain(|id| typed(*id).1 != [Extent::ZERO]);
            }
            let first = tensors.first().ok_or("it joins no tensors")?;
            let dim = args.dim("dim", Some(0), typed(*first).1.len())?;
            (Op::Cat { dim }, tensors)
        }
        "aten.arange.default" => {
            let dtype = args.dtype("dtype")?;
            if dtype.is_some_and(|dtype| dtype != DType::Int64) {
                return indexed::create(target, args, typed);
            }
            let end = match args.length("end")? {
                Some(Length::Number(end)) => u64::try_from(end)
                    .map(Extent::fixed)
                    .map_err(|_| format!("its argument \"end\" is {end}"))?,
                Some(Length::Batched(end)) => end,
                None => return Err("it has no argument \"end\"".into()),
            };
            (Op::Arange(end), Vec::new())
        }
        "aten.to.dtype" | "aten.to.dtype_layout" | "aten.to.device" => {
            let input = args.tensor("self")?;
            let dtype = args.dtype("dtype")?.unwrap_or(typed(input).0);
            (Op::Cast(dtype), vec![input])
        }
        _ => return Ok(None),
    };
    Ok(Some(lowered))
}

fn all(args: &Arguments<'_>, names: &[&str]) -> Result<Vec<ValueId>, String> {
    names.iter().map(|name| args.tensor(name)).collect()
}

fn with_bias(args: &Arguments<'_>, names: &[&str]) -> Result<Vec<ValueId>, String> {
    let mut operands = all(args, names)?;
    operands.extend(args.optional_tensor("bias")?);
    Ok(operands)
}

/// A convolution of one dimension, as one of planes of height one.
fn flat_convolution(args: &Arguments<'_>, weight: &[Extent]) -> Result<Window, String> {
    let width = match weight {
        [_, _, width] => width.as_fixed(),
        _ => None,
    };
    let one = |name: &str, default: u64| -> Result<u64, String> {
        Ok(args.pair(name, Some([default; 2]))?[1])
    };
    Ok(Window {
        kernel: [1, width.ok_or_else(|| format!("its weight is {weight:?}"))?],
        stride: [1, one("stride", 1)?],
        padding: [0, one("padding", 0)?],
        dilation: [1, one("dilation", 1)?],
        groups: args.count("groups", Some(1))?,
        ceil_mode: false,
    })
}

fn with_other(
    args: &Arguments<'_>,
    tensors: Op,
    scalar: impl Fn(f64) -> Op,
) -> Result<Lowered, String> {
    let input = args.tensor("self")?;
    Ok(match args.operand("other")? {
        Operand::Tensor(other) => (tensors, vec![input, other]),
        Operand::Number(number) => (scalar(number), vec![input]),
    })
}

fn convolution(args: &Arguments<'_>, weight: &[Extent]) -> Result<Window, String> {
    let kernel = match weight {
        [_, _, height, width] => height.as_fixed().zip(width.as_fixed()),
        _ => None,
    };
    let (height, width) = kernel.ok_or_else(|| format!("its weight is {weight:?}"))?;
    let dilation = args.pair("dilation", Some([1, 1]))?;
    let padding = match args.text("padding", "") {
        Ok("valid") => [0, 0],
        // Half of what the kernel spans; an even span would be padded on one side more.
        Ok("same") => {
            let spans = [height, width].map(|n| n.saturating_sub(1));
            let spans = [spans[0] * dilation[0], spans[1] * dilation[1]];
            if spans.iter().any(|span| span % 2 == 1) {
                return Err("it pads an even kernel to the same size".into());
            }
            spans.map(|span| span / 2)
        }
        _ => args.pair("padding", Some([0, 0]))?,
    };
    Ok(Window {
        kernel: [height, width],
        stride: args.pair("stride", Some([1, 1]))?,
        padding,
        dilation,
        groups: args.count("groups", Some(1))?,
        ceil_mode: false,
    })
}

fn pooling(args: &Arguments<'_>) -> Result<Window, String> {
    let kernel = args.pair("kernel_size", None)?;
    Ok(Window {
        kernel,
        stride: args.pair("stride", Some(kernel))?,
        padding: args.pair("padding", Some([0, 0]))?,
        dilation: args.pair("dilation", Some([1, 1]))?,
        groups: 1,
        ceil_mode: args.flag("ceil_mode", false)?,
    })
}
