//! Operators on planes (pools, interpolation, padding) and normalizations.

use super::{Lowered, convolution, pooling, with_bias};
use crate::aten::Arguments;
use crate::graph::ValueId;
use crate::ops::{Einsum, Normalize, Op, Pool1d, Resample};
use crate::shape::{DType, Extent, Window};

/// Operators of this file.
pub(super) const NAMES: &[&str] = &[
    "aten._upsample_bicubic2d_aa.vec",
    "aten._upsample_bilinear2d_aa.vec",
    "aten._upsample_nearest_exact2d.vec",
    "aten.adaptive_avg_pool1d.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.adaptive_max_pool2d.default",
    "aten.addcmul.default",
    "aten.avg_pool1d.default",
    "aten.avg_pool2d.default",
    "aten.batch_norm.default",
    "aten.col2im.default",
    "aten.conv2d.padding",
    "aten.conv2d.default",
    "aten.conv_transpose2d.input",
    "aten.einsum.default",
    "aten.glu.default",
    "aten.group_norm.default",
    "aten.im2col.default",
    "aten.instance_norm.default",
    "aten.layer_norm.default",
    "aten.linalg_vector_norm.default",
    "aten.max_pool1d.default",
    "aten.max_pool2d.default",
    "aten.pad.default",
    "aten.pixel_shuffle.default",
    "aten.pixel_unshuffle.default",
    "aten.prelu.default",
    "aten.upsample_bicubic2d.vec",
    "aten.upsample_bilinear2d.vec",
    "aten.upsample_linear1d.vec",
    "aten.upsample_nearest1d.vec",
    "aten.upsample_nearest2d.vec",
];

/// What a node does, or `None` for an operator of another family.
pub(super) fn lower(
    target: &str,
    args: &Arguments<'_>,
    typed: impl Fn(ValueId) -> (DType, Vec<Extent>),
) -> Result<Option<Lowered>, String> {
    if let Some(op) = of_one(target, args, &typed)? {
        return Ok(Some((op, vec![args.tensor("self")?])));
    }
    let lowered = match target {
        "aten.conv2d.default" | "aten.conv2d.padding" => {
            let operands = with_bias(args, &["input", "weight"])?;
            let window = convolution(args, &typed(operands[1]).1)?;
            (Op::Conv2d(window), operands)
        }
        "aten.conv_transpose2d.input" => {
            if args.pair("output_padding", Some([0, 0]))? != [0, 0] {
                return Err("it pads its output, which is not supported".into());
            }
            let operands = with_bias(args, &["input", "weight"])?;
            let window = convolution(args, &typed(operands[1]).1)?;
            (Op::ConvTranspose2d(window), operands)
        }
        "aten.addcmul.default" => {
            let operands = [
                args.tensor("self")?,
                args.tensor("tensor1")?,
                args.tensor("tensor2")?,
            ];
            (Op::Addcmul, operands.to_vec())
        }
        "aten.prelu.default" => {
            let operands = [args.tensor("self")?, args.tensor("weight")?];
            (Op::Prelu, operands.to_vec())
        }
        "aten.einsum.default" => {
            let einsum = Einsum::parse(args.text("equation", "")?)?;
            (Op::Einsum(einsum), args.tensors("tensors")?)
        }
        "aten.batch_norm.default"
        | "aten.layer_norm.default"
        | "aten.group_norm.default"
        | "aten.instance_norm.default" => normalization(target, args)?,
        _ if target.contains("upsample") && NAMES.contains(&target) => {
            let input = args.tensor("input")?;
            let to = interpolated(args, &typed(input).1)?;
            let nearest = target.contains("nearest");
            (
                Op::Resample(Resample::Interpolate { to, nearest }),
                vec![input],
            )
        }
        _ => return Ok(None),
    };
    Ok(Some(lowered))
}

/// Operators of one tensor without parameters.
fn of_one(
    target: &str,
    args: &Arguments<'_>,
    typed: impl Fn(ValueId) -> (DType, Vec<Extent>),
) -> Result<Option<Op>, String> {
    let rank = || args.tensor("self").map(|id| typed(id).1.len());
    Ok(Some(match target {
        "aten.max_pool2d.default" => Op::MaxPool2d(pooling(args)?),
        "aten.avg_pool2d.default" => Op::Resample(Resample::AvgPool(pooling(args)?)),
        "aten.adaptive_avg_pool2d.default" => Op::AdaptiveAvgPool2d {
            output: args.pair("output_size", None)?,
        },
        "aten.adaptive_avg_pool1d.default" => {
            let [width, _] = args.pair("output_size", None)?;
            Op::Pool1d(Pool1d::AdaptiveAverage(width))
        }
        "aten.avg_pool1d.default" => Op::Pool1d(Pool1d::Average(row(pooling(args)?))),
        "aten.max_pool1d.default" => Op::Pool1d(Pool1d::Max(row(pooling(args)?))),
        "aten.adaptive_max_pool2d.default" => {
            let output = args.pair("output_size", None)?;
            Op::Resample(Resample::AdaptiveMaxPool(output))
        }
        "aten.pixel_shuffle.default" => {
            let factor = args.count("upscale_factor", None)?;
            Op::Resample(Resample::PixelShuffle(factor))
        }
        "aten.pixel_unshuffle.default" => {
            let factor = args.count("downscale_factor", None)?;
            Op::Resample(Resample::PixelUnshuffle(factor))
        }
        "aten.im2col.default" => Op::Resample(Resample::Unfold(pooling(args)?)),
        "aten.col2im.default" => {
            let [height, width] = args.pair("kernel_size", None)?;
            let to = args.pair("output_size", None)?;
            let window = height.saturating_mul(width).max(1);
            Op::Resample(Resample::Fold { window, to })
        }
        "aten.glu.default" => Op::Resample(Resample::Glu(args.dim("dim", Some(-1), rank()?)?)),
        "aten.linalg_vector_norm.default" => {
            args.always("ord", 2.0)?;
            Op::VectorNorm {
                dims: args.dims_or_all("dim", rank()?)?,
                keep: args.flag("keepdim", false)?,
            }
        }
        "aten.pad.default" => Op::Resample(padding(args)?),
        _ => return Ok(None),
    }))
}

/// A window along one dimension, read for two, of planes one high.
fn row(window: Window) -> Window {
    Window {
        kernel: [1, window.kernel[1]],
        stride: [1, window.stride[1]],
        padding: [0, window.padding[1]],
        dilation: [1, window.dilation[1]],
        ..window
    }
}

/// The lengths that an interpolation makes.
fn interpolated(args: &Arguments<'_>, from: &[Extent]) -> Result<Vec<u64>, String> {
    let fixed = |length: Extent| {
        let fixed = length.as_fixed().filter(|length| *length < 1 << 31);
        fixed.ok_or_else(|| format!("a side is {length}"))
    };
    if args.has("output_size") {
        let lengths = args.lengths("output_size")?.into_iter();
        let known = lengths.map(|length| length.ok_or("its \"output_size\" contains -1"));
        return known.map(|length| fixed(length?)).collect();
    }
    let factors = args.floats("scale_factors")?;
    let sides = from.len().checked_sub(factors.len());
    let sides =
        &from[sides.ok_or_else(|| format!("{from:?} has fewer than {factors:?} sides"))?..];
    let scaled = |(side, factor): (&Extent, &f64)| {
        let length = fixed(*side)? as f64 * factor;
        if (0.0..=2e9).contains(&length) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked to be small and not negative; PyTorch rounds down too"
            )]
            return Ok(length as u64);
        }
        Err(format!("it scales {side} by {factor}"))
    };
    sides.iter().zip(&factors).map(scaled).collect()
}

fn padding(args: &Arguments<'_>) -> Result<Resample, String> {
    let amounts = args.whole_numbers("pad")?;
    let (pairs, []) = amounts.as_chunks::<2>() else {
        return Err(format!("its argument \"pad\" is {amounts:?}"));
    };
    let pairs = pairs.to_vec();
    match args.text("mode", "constant")? {
        "constant" => Ok(Resample::PadConstant(pairs)),
        "reflect" | "replicate" => Ok(Resample::PadCopied(pairs)),
        other => Err(format!("its argument \"mode\" is {other:?}")),
    }
}

fn normalization(target: &str, args: &Arguments<'_>) -> Result<Lowered, String> {
    let given = |names: &[&str]| -> Result<Vec<ValueId>, String> {
        let present = names.iter().filter(|name| args.has(name));
        present.map(|name| args.tensor(name)).collect()
    };
    let momentum = || args.number_or("momentum", 0.1);
    let eps = args.number_or("eps", 1e-5)?;
    let (weight, bias) = (args.has("weight"), args.has("bias"));
    let names = ["input", "weight", "bias", "running_mean", "running_var"];
    Ok(match target {
        "aten.layer_norm.default" => {
            let dims = args.lengths("normalized_shape")?.len();
            (Op::LayerNorm { dims, eps }, given(&names[..3])?)
        }
        "aten.batch_norm.default" => {
            let training = args.flag("training", false)?;
            let operands = given(&names)?;
            if operands.len() == names.len() {
                let momentum = momentum()?;
                let op = Op::BatchNorm {
                    training,
                    momentum,
                    eps,
                };
                return Ok((op, operands));
            }
            if !training {
                return Err("it lacks a weight, a bias or statistics, outside of training".into());
            }
            (Op::Normalize(Normalize::Batch { weight, bias }), operands)
        }
        "aten.group_norm.default" => {
            let groups = args.count("num_groups", None)?;
            let op = Normalize::Group { groups };
            (Op::Normalize(op), given(&names[..3])?)
        }
        _ => {
            if !args.flag("use_input_stats", true)? || args.has("running_mean") {
                return Err("only instance norms without running statistics are supported".into());
            }
            (Op::Normalize(Normalize::Instance), given(&names[..3])?)
        }
    })
}
