//! Operations on planes and volumes: interpolation, padding, shuffling. They have one operand and no parameters.

mod grid;
mod kernel;
mod run;
pub(in crate::ops) mod sampling;

use super::pool::window;
use crate::ops::prelude::*;
use crate::shape::Window;

/// What is done to each plane.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Resample {
    /// `upsample_nearest2d`, `upsample_bilinear2d` and the like.
    Interpolate(Interpolation),
    /// `im2col` (`unfold`): every window's elements as one column.
    Unfold(Window),
    /// `col2im` (`fold`): columns of this many elements for each channel, added up in planes of this size.
    Fold {
        /// The windows.
        window: Window,
        /// Height and width of the result.
        to: [u64; 2],
    },
    /// `glu` along a dimension, which halves it.
    Glu(usize),
    /// `pixel_shuffle` by this factor.
    PixelShuffle(u64),
    /// `pixel_unshuffle` by this factor.
    PixelUnshuffle(u64),
    /// `channel_shuffle` of so many groups.
    ChannelShuffle(u64),
    /// `pad` with a constant: elements added before and after each of the last dimensions, the last one
    /// first. Negative ones are taken away.
    PadConstant {
        /// So many.
        amounts: Vec<[i64; 2]>,
        /// The constant.
        value: f64,
    },
    /// `pad` with what is there already.
    PadCopied {
        /// As for a constant.
        amounts: Vec<[i64; 2]>,
        /// Whether elements are reflected, not the last one repeated.
        reflect: bool,
    },
}

/// An interpolation along the last dimensions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Interpolation {
    /// Lengths of these in the result.
    pub to: Vec<u64>,
    /// How elements are mixed.
    pub mode: Mode,
    /// Whether the outermost elements of both lie on one another.
    pub align_corners: bool,
    /// One by the factor for each dimension where the model's code says factors; else zero: lengths decide.
    pub ratios: Vec<f64>,
}

/// What an element of a result is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Mode {
    /// The element below it: `nearest`.
    Nearest,
    /// The element nearest to it: `nearest-exact`.
    NearestExact,
    /// Two along each dimension.
    Linear,
    /// Four along each dimension.
    Cubic,
    /// As many as come to lie on it, linearly less with their distance.
    LinearAntialias,
    /// As many as come to lie on it, by a cubic.
    CubicAntialias,
}

impl Mode {
    fn of(target: &str) -> Mode {
        match (target.ends_with("_aa.vec"), target) {
            (true, target) if target.contains("bicubic") => Mode::CubicAntialias,
            (true, _) => Mode::LinearAntialias,
            (false, target) if target.contains("nearest_exact") => Mode::NearestExact,
            (false, target) if target.contains("nearest") => Mode::Nearest,
            (false, target) if target.contains("bicubic") => Mode::Cubic,
            (false, _) => Mode::Linear,
        }
    }

    /// Whether elements are repeated, not mixed.
    pub(super) fn is_nearest(self) -> bool {
        matches!(self, Mode::Nearest | Mode::NearestExact)
    }
}

impl Resample {
    /// `pad` with zeros.
    pub fn constant(amounts: Vec<[i64; 2]>) -> Resample {
        Resample::PadConstant {
            amounts,
            value: 0.0,
        }
    }

    fn aten_name(&self) -> &'static str {
        match self {
            Resample::Interpolate(_) => "interpolate",
            Resample::Unfold(_) => "im2col",
            Resample::Fold { .. } => "col2im",
            Resample::Glu(_) => "glu",
            Resample::PixelShuffle(_) => "pixel_shuffle",
            Resample::PixelUnshuffle(_) => "pixel_unshuffle",
            Resample::ChannelShuffle(_) => "channel_shuffle",
            Resample::PadConstant { .. } | Resample::PadCopied { .. } => "pad",
        }
    }

    /// The shape of the result, or what does not fit.
    pub fn shape(&self, x: &[Extent]) -> Result<Vec<Extent>, String> {
        match self {
            Resample::Interpolate(Interpolation { to, .. }) => {
                let kept = x.len().checked_sub(to.len()).filter(|kept| *kept >= 2);
                let kept = kept.ok_or_else(|| format!("{x:?} has no planes for {to:?}"))?;
                let to: Vec<Extent> = to.iter().copied().map(Extent::fixed).collect();
                Ok([&x[..kept], &to].concat())
            }
            Resample::Unfold(window) => {
                let [lead @ .., channels, height, width] = x else {
                    return Err(format!("the input {x:?} has no planes"));
                };
                let area = window.kernel[1].checked_mul(window.kernel[2]);
                let column = area.and_then(|area| channels.checked_mul(Extent::fixed(area)));
                let columns = window
                    .side(1, *height)?
                    .checked_mul(window.side(2, *width)?);
                let size = column.zip(columns.map(Extent::fixed));
                let (column, columns) = size.ok_or("it is too large")?;
                Ok([lead, &[column, columns]].concat())
            }
            Resample::Fold { window, to } => {
                let [lead @ .., column, _] = x else {
                    return Err(format!("the input {x:?} has no columns"));
                };
                let area = window.kernel[1].saturating_mul(window.kernel[2]).max(1);
                let channels = column.checked_div(Extent::fixed(area));
                let channels = channels.ok_or_else(|| format!("{x:?} has other columns"))?;
                Ok([lead, &[channels], &to.map(Extent::fixed)].concat())
            }
            Resample::Glu(dim) => {
                let mut result = x.to_vec();
                let length = result
                    .get_mut(*dim)
                    .ok_or_else(|| format!("no dimension {dim}"))?;
                let half = length.checked_div(Extent::fixed(2));
                *length = half.ok_or_else(|| format!("{x:?} has no halves along {dim}"))?;
                Ok(result)
            }
            Resample::PixelShuffle(factor) | Resample::PixelUnshuffle(factor) => {
                shuffled(x, *factor, matches!(self, Resample::PixelShuffle(_)))
            }
            Resample::ChannelShuffle(_) => Ok(x.to_vec()),
            Resample::PadConstant { amounts, .. } | Resample::PadCopied { amounts, .. } => {
                padded(x, amounts)
            }
        }
    }
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    (
        "aten._upsample_bicubic2d_aa.vec aten._upsample_bilinear2d_aa.vec aten._upsample_nearest_exact1d.vec \
         aten._upsample_nearest_exact2d.vec aten._upsample_nearest_exact3d.vec aten.upsample_bicubic2d.vec \
         aten.upsample_bilinear2d.vec aten.upsample_linear1d.vec aten.upsample_nearest1d.vec aten.upsample_nearest2d.vec \
         aten.upsample_nearest3d.vec aten.upsample_trilinear3d.vec",
        interpolate,
    ),
    ("aten.pixel_shuffle.default", |args| {
        let factor = args.count("upscale_factor", None)?;
        of_one(args, Resample::PixelShuffle(factor))
    }),
    ("aten.pixel_unshuffle.default", |args| {
        let factor = args.count("downscale_factor", None)?;
        of_one(args, Resample::PixelUnshuffle(factor))
    }),
    ("aten.channel_shuffle.default", |args| {
        let groups = args.count("groups", None)?;
        of_one(args, Resample::ChannelShuffle(groups))
    }),
    ("aten.im2col.default", |args| {
        of_one(args, Resample::Unfold(window(args, 2)?))
    }),
    ("aten.col2im.default", |args| {
        let to = args.pair("output_size", None)?;
        let window = window(args, 2)?;
        of_one(args, Resample::Fold { window, to })
    }),
    ("aten.glu.default", |args| {
        let rank = args.shape(args.tensor("self")?).len();
        of_one(args, Resample::Glu(args.dim("dim", Some(-1), rank)?))
    }),
    ("aten.pad.default aten.constant_pad_nd.default", |args| {
        of_one(args, padding(args)?)
    }),
];

fn of_one(args: &Arguments<'_>, resample: Resample) -> Result<Read, String> {
    Ok((resample.into(), args.all(&["self"])?))
}

fn interpolate(args: &Arguments<'_>) -> Result<Read, String> {
    let input = args.tensor("input")?;
    let to = interpolated(args, &args.shape(input))?;
    let inverse = |factor: &f64| if *factor > 0.0 { 1.0 / factor } else { 0.0 };
    let ratios = if args.has("output_size") {
        vec![0.0; to.len()]
    } else {
        args.floats("scale_factors")?.iter().map(inverse).collect()
    };
    let interpolation = Interpolation {
        to,
        mode: Mode::of(args.target),
        align_corners: args.flag("align_corners", false)?,
        ratios,
    };
    Ok((Resample::Interpolate(interpolation).into(), vec![input]))
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
        "constant" => Ok(Resample::PadConstant {
            amounts: pairs,
            value: args.number_or("value", 0.0)?,
        }),
        mode @ ("reflect" | "replicate") => Ok(Resample::PadCopied {
            amounts: pairs,
            reflect: mode == "reflect",
        }),
        other => Err(format!("its argument \"mode\" is {other:?}")),
    }
}

impl Operator for Resample {
    fn name(&self) -> &'static str {
        self.aten_name()
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let shape = self.shape(&operands[0].1)?;
        Ok(vec![(operands[0].0, shape)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        eager.resample(self, &operands[0], &context.results[0])
    }
}

fn shuffled(x: &[Extent], factor: u64, outward: bool) -> Result<Vec<Extent>, String> {
    let problem = || format!("{x:?} cannot be shuffled by {factor}");
    let [lead @ .., channels, height, width] = x else {
        return Err(problem());
    };
    let by = Some(Extent::fixed(factor)).filter(|by| *by != Extent::ZERO);
    let by = by.ok_or_else(problem)?;
    let area = by.checked_mul(by).ok_or_else(problem)?;
    let sides = if outward {
        [
            channels.checked_div(area),
            height.checked_mul(by),
            width.checked_mul(by),
        ]
    } else {
        [
            channels.checked_mul(area),
            height.checked_div(by),
            width.checked_div(by),
        ]
    };
    let sides = sides.into_iter().collect::<Option<Vec<_>>>();
    Ok([lead, &sides.ok_or_else(problem)?].concat())
}

fn padded(x: &[Extent], amounts: &[[i64; 2]]) -> Result<Vec<Extent>, String> {
    let mut result = x.to_vec();
    if amounts.len() > x.len() {
        return Err(format!("{x:?} has fewer dimensions than {amounts:?}"));
    }
    for (length, [before, after]) in result.iter_mut().rev().zip(amounts) {
        if [*before, *after] == [0, 0] {
            continue;
        }
        let more = before.checked_add(*after).map(Extent::signed);
        let padded = more.and_then(|more| length.checked_add(more));
        *length = padded
            .filter(|length| !length.is_negative())
            .ok_or_else(|| format!("{x:?} cannot be padded by {amounts:?}"))?;
    }
    Ok(result)
}
