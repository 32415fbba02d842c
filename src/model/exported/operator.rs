//! One ATen operator to one [`Op`].

use super::arguments::{Arguments, Length, Operand};
use crate::graph::{DType, Extent, Op, Placement, Unary, ValueId, Window, numel};

/// An operation and its operands.
pub(super) type Lowered = (Op, Vec<ValueId>);

/// Every operator that [`lower`] knows.
pub(super) const SUPPORTED: &[&str] = &[
    "aten._unsafe_view.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.add.Tensor",
    "aten.add_.Tensor",
    "aten.addmm.default",
    "aten.alias.default",
    "aten.arange.default",
    "aten.batch_norm.default",
    "aten.cat.default",
    "aten.contiguous.default",
    "aten.conv2d.default",
    "aten.cross_entropy_loss.default",
    "aten.dropout.default",
    "aten.embedding.default",
    "aten.expand.default",
    "aten.flatten.using_ints",
    "aten.gelu.default",
    "aten.hardtanh.default",
    "aten.hardtanh_.default",
    "aten.layer_norm.default",
    "aten.linear.default",
    "aten.max_pool2d.default",
    "aten.mul.Tensor",
    "aten.pad.default",
    "aten.pow.Tensor_Scalar",
    "aten.relu.default",
    "aten.relu6.default",
    "aten.relu6_.default",
    "aten.relu_.default",
    "aten.reshape.default",
    "aten.scaled_dot_product_attention.default",
    "aten.sigmoid.default",
    "aten.silu.default",
    "aten.slice.Tensor",
    "aten.split.Tensor",
    "aten.tanh.default",
    "aten.to.device",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.transpose.int",
    "aten.unsqueeze.default",
    "aten.view.default",
];

/// What a node does, or `None` for an operator that is not in [`SUPPORTED`]. `typed` gives a value's
/// dtype and shape.
pub(super) fn lower(
    target: &str,
    args: &Arguments<'_>,
    typed: impl Fn(ValueId) -> (DType, Vec<Extent>),
) -> Result<Option<Lowered>, String> {
    let shape = |id: ValueId| typed(id).1;
    if !SUPPORTED.contains(&target) {
        return Ok(None);
    }
    if let Some(lowered) = weighted(target, args, shape)? {
        return Ok(Some(lowered));
    }
    if let Some(lowered) = elementwise(target, args)? {
        return Ok(Some(lowered));
    }
    if let Some(lowered) = creation(target, args, &typed)? {
        return Ok(Some(lowered));
    }
    layout(target, args, shape)
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
        "aten.conv2d.default" => {
            let operands = with_bias(args, &["input", "weight"])?;
            (
                Op::Conv2d(convolution(args, &shape(operands[1]))?),
                operands,
            )
        }
        "aten.batch_norm.default" => {
            let op = Op::BatchNorm {
                training: args.flag("training", false)?,
                momentum: args.number_or("momentum", 0.1)?,
                eps: args.number_or("eps", 1e-5)?,
            };
            let names = ["input", "weight", "bias", "running_mean", "running_var"];
            (op, all(args, &names)?)
        }
        "aten.layer_norm.default" => {
            let op = Op::LayerNorm {
                dims: args.lengths("normalized_shape")?.len(),
                eps: args.number_or("eps", 1e-5)?,
            };
            (op, all(args, &["input", "weight", "bias"])?)
        }
        "aten.max_pool2d.default" => (Op::MaxPool2d(pooling(args)?), vec![args.tensor("self")?]),
        "aten.adaptive_avg_pool2d.default" => {
            let output = args.pair("output_size", None)?;
            (Op::AdaptiveAvgPool2d { output }, vec![args.tensor("self")?])
        }
        "aten.embedding.default" => {
            args.absent("sparse")?;
            args.absent("scale_grad_by_freq")?;
            (Op::Embedding, all(args, &["weight", "indices"])?)
        }
        "aten.scaled_dot_product_attention.default" => {
            args.absent("attn_mask")?;
            let op = Op::Attention {
                causal: args.flag("is_causal", false)?,
                dropout: args.number_or("dropout_p", 0.0)?,
                grouped: args.flag("enable_gqa", false)?,
            };
            (op, all(args, &["query", "key", "value"])?)
        }
        "aten.cross_entropy_loss.default" => {
            args.absent("weight")?;
            args.always("label_smoothing", 0.0)?;
            // torch.nn._reduction: 1 is the mean.
            args.always("reduction", 1.0)?;
            (Op::CrossEntropy, all(args, &["self", "target"])?)
        }
        _ => return Ok(None),
    };
    Ok(Some(lowered))
}

/// Functions of each element.
fn elementwise(target: &str, args: &Arguments<'_>) -> Result<Option<Lowered>, String> {
    let unary = |function, in_place| -> Result<Lowered, String> {
        Ok((Op::Unary { function, in_place }, vec![args.tensor("self")?]))
    };
    let placement = if target.contains("_.") {
        Placement::InPlace
    } else {
        Placement::New
    };
    let lowered = match target {
        "aten.relu.default" | "aten.relu_.default" => unary(Unary::Relu, placement)?,
        "aten.relu6.default" | "aten.relu6_.default" => unary(Unary::Relu6, placement)?,
        "aten.tanh.default" => unary(Unary::Tanh, Placement::New)?,
        "aten.silu.default" => unary(Unary::Silu, Placement::New)?,
        "aten.sigmoid.default" => unary(Unary::Sigmoid, Placement::New)?,
        "aten.gelu.default" => match args.text("approximate", "none")? {
            "none" => unary(Unary::Gelu, Placement::New)?,
            "tanh" => unary(Unary::GeluTanh, Placement::New)?,
            other => return Err(format!("its argument \"approximate\" is {other:?}")),
        },
        "aten.hardtanh.default" | "aten.hardtanh_.default" => {
            if !args.number_or("min_val", -1.0)?.eq(&0.0)
                || !args.number_or("max_val", 1.0)?.eq(&6.0)
            {
                return Err("only hardtanh between 0 and 6 (ReLU6) is supported".into());
            }
            unary(Unary::Relu6, placement)?
        }
        "aten.add.Tensor" | "aten.add_.Tensor" => {
            args.always("alpha", 1.0)?;
            with_other(args, Op::Add(placement), |n| Op::AddScalar(n, placement))?
        }
        "aten.mul.Tensor" => with_other(args, Op::Mul, Op::MulScalar)?,
        "aten.pow.Tensor_Scalar" => (
            Op::PowScalar(args.number("exponent")?),
            vec![args.tensor("self")?],
        ),
        "aten.dropout.default" => {
            let op = Op::Dropout {
                p: args.number("p")?,
                train: args.flag("train", true)?,
            };
            (op, vec![args.tensor("input")?])
        }
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
            let tensors = args.tensors("tensors")?;
            let first = tensors.first().ok_or("it joins no tensors")?;
            let dim = args.dim("dim", Some(0), typed(*first).1.len())?;
            (Op::Cat { dim }, tensors)
        }
        "aten.arange.default" => {
            if args
                .dtype("dtype")?
                .is_some_and(|dtype| dtype != DType::Int64)
            {
                return Err("only an int64 arange is supported".into());
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

/// Operators that only arrange elements: views and copies.
fn layout(
    target: &str,
    args: &Arguments<'_>,
    shape: impl Fn(ValueId) -> Vec<Extent>,
) -> Result<Option<Lowered>, String> {
    let input = args.tensor("self")?;
    let from = shape(input);
    let op = match target {
        "aten.view.default" | "aten._unsafe_view.default" => {
            Op::Reshape(resolve(&from, &args.lengths("size")?)?)
        }
        "aten.reshape.default" => Op::Reshape(resolve(&from, &args.lengths("shape")?)?),
        "aten.flatten.using_ints" => {
            let start = args.dim("start_dim", Some(0), from.len())?;
            let end = args.dim("end_dim", Some(-1), from.len())?;
            if start > end {
                return Err(format!("it flattens from dimension {start} to {end}"));
            }
            let mut to = from[..start].to_vec();
            to.push(numel(&from[start..=end]));
            to.extend_from_slice(&from[end + 1..]);
            Op::Reshape(to)
        }
        "aten.transpose.int" => Op::Transpose(
            args.dim("dim0", None, from.len())?,
            args.dim("dim1", None, from.len())?,
        ),
        "aten.unsqueeze.default" => Op::Unsqueeze(args.dim("dim", None, from.len() + 1)?),
        "aten.expand.default" => Op::Expand(expand(&from, &args.lengths("size")?)?),
        "aten.slice.Tensor" => slice(args, &from)?,
        "aten.split.Tensor" => Op::Split {
            size: args.count("split_size", None)?,
            dim: args.dim("dim", Some(0), from.len())?,
        },
        "aten.contiguous.default" => {
            args.no_channels_last()?;
            Op::Contiguous
        }
        "aten.alias.default" => Op::Alias,
        "aten.pad.default" => {
            let mode = args.text("mode", "constant")?;
            let pad = args.lengths("pad")?;
            let fixed = |length: &Option<Extent>| length.and_then(Extent::as_fixed);
            match pad.iter().map(fixed).collect::<Option<Vec<_>>>().as_deref() {
                Some([before, after]) if mode == "constant" && before.max(after) < &(1 << 31) => {
                    Op::PadLast {
                        before: *before,
                        after: *after,
                    }
                }
                _ => return Err("only constant padding of the last dimension is supported".into()),
            }
        }
        _ => return Ok(None),
    };
    Ok(Some((op, vec![input])))
}

fn all(args: &Arguments<'_>, names: &[&str]) -> Result<Vec<ValueId>, String> {
    names.iter().map(|name| args.tensor(name)).collect()
}

fn with_bias(args: &Arguments<'_>, names: &[&str]) -> Result<Vec<ValueId>, String> {
    let mut operands = all(args, names)?;
    operands.extend(args.optional_tensor("bias")?);
    Ok(operands)
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
    Ok(Window {
        kernel: [height, width],
        stride: args.pair("stride", Some([1, 1]))?,
        padding: args.pair("padding", Some([0, 0]))?,
        dilation: args.pair("dilation", Some([1, 1]))?,
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

/// The shape a `view` asks for, with its -1 worked out.
fn resolve(from: &[Extent], to: &[Option<Extent>]) -> Result<Vec<Extent>, String> {
    let known: Vec<Extent> = to.iter().copied().flatten().collect();
    if known.len() == to.len() {
        return Ok(known);
    }
    let rest = (known.len() + 1 == to.len())
        .then(|| numel(from).checked_div(numel(&known)))
        .flatten()
        .ok_or_else(|| format!("{from:?} cannot be viewed as {to:?}"))?;
    Ok(to.iter().map(|length| length.unwrap_or(rest)).collect())
}

/// The shape an `expand` asks for: -1 keeps a length.
fn expand(from: &[Extent], to: &[Option<Extent>]) -> Result<Vec<Extent>, String> {
    let added = to.len().checked_sub(from.len());
    let added =
        added.ok_or_else(|| format!("{from:?} cannot expand to {} dimensions", to.len()))?;
    to.iter()
        .enumerate()
        .map(|(i, length)| {
            let kept = i.checked_sub(added).map(|at| from[at]);
            length
                .or(kept)
                .ok_or_else(|| "it keeps the length of a new dimension".to_owned())
        })
        .collect()
}

fn slice(args: &Arguments<'_>, from: &[Extent]) -> Result<Op, String> {
    args.always("step", 1.0)?;
    let dim = args.dim("dim", Some(0), from.len())?;
    let length = from[dim];
    // As in Python: negative counts from the end, and both ends are clamped to the length.
    let clamp = |at: i64| -> Result<Extent, String> {
        let Some(length) = length.as_fixed() else {
            return match at {
                0 => Ok(Extent::ZERO),
                i64::MAX => Ok(length),
                _ => Err(format!("it slices a dimension of {length} at {at}")),
            };
        };
        let from_end = at.unsigned_abs();
        Ok(Extent::fixed(match u64::try_from(at) {
            Ok(at) => at.min(length),
            Err(_) => length.saturating_sub(from_end),
        }))
    };
    let start = match args.length("start")? {
        None => 0,
        Some(Length::Number(at)) => clamp(at)?
            .as_fixed()
            .ok_or("it starts at the end of the batch")?,
        Some(Length::Batched(at)) => return Err(format!("it starts at {at}")),
    };
    let end = match args.length("end")? {
        None => length,
        Some(Length::Number(at)) => clamp(at)?,
        Some(Length::Batched(at)) if at == length => length,
        Some(Length::Batched(at)) => return Err(format!("it ends at {at}, of {length}")),
    };
    Ok(Op::Slice { dim, start, end })
}
