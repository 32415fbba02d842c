//! Operations on planes: pools, interpolation, padding. They have one operand and no parameters.

use serde::Serialize;

use crate::shape::Extent;
use crate::shape::Window;

/// What is done to each plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Resample {
    /// `avg_pool2d`.
    AvgPool(Window),
    /// `adaptive_max_pool2d` to this height and width.
    AdaptiveMaxPool([u64; 2]),
    /// `upsample_nearest2d`, `upsample_bilinear2d` and the like.
    Interpolate {
        /// Lengths of the last dimensions of the result.
        to: Vec<u64>,
        /// Whether elements are repeated, not mixed.
        nearest: bool,
    },
    /// `im2col` (`unfold`): every window's elements as one column.
    Unfold(Window),
    /// `col2im` (`fold`): columns of this many elements for each channel, added up in planes of this size.
    Fold {
        /// Elements of a window.
        window: u64,
        /// Height and width of the result.
        to: [u64; 2],
    },
    /// `glu` along a dimension, which halves it.
    Glu(usize),
    /// `pixel_shuffle` by this factor.
    PixelShuffle(u64),
    /// `pixel_unshuffle` by this factor.
    PixelUnshuffle(u64),
    /// `pad` with a constant: elements added before and after each of the last dimensions, the last one
    /// first. Negative ones are taken away.
    PadConstant(Vec<[i64; 2]>),
    /// `pad` with what is there already, reflected or repeated.
    PadCopied(Vec<[i64; 2]>),
}

impl Resample {
    /// The name a PyTorch user knows it by.
    pub fn name(&self) -> &'static str {
        match self {
            Resample::AvgPool(_) => "avg_pool2d",
            Resample::AdaptiveMaxPool(_) => "adaptive_max_pool2d",
            Resample::Interpolate { .. } => "interpolate",
            Resample::Unfold(_) => "im2col",
            Resample::Fold { .. } => "col2im",
            Resample::Glu(_) => "glu",
            Resample::PixelShuffle(_) => "pixel_shuffle",
            Resample::PixelUnshuffle(_) => "pixel_unshuffle",
            Resample::PadConstant(_) | Resample::PadCopied(_) => "pad",
        }
    }

    /// The shape of the result, or what does not fit.
    pub fn shape(&self, x: &[Extent]) -> Result<Vec<Extent>, String> {
        match self {
            Resample::AvgPool(window) => {
                let (lead, sides) = planes(x)?;
                let side = |axis: usize| window.side(axis, sides[axis]).map(Extent::fixed);
                Ok([lead, &[side(0)?, side(1)?]].concat())
            }
            Resample::AdaptiveMaxPool(to) => {
                let (lead, _) = planes(x)?;
                Ok([lead, &to.map(Extent::fixed)].concat())
            }
            Resample::Interpolate { to, .. } => {
                let kept = x.len().checked_sub(to.len()).filter(|kept| *kept >= 2);
                let kept = kept.ok_or_else(|| format!("{x:?} has no planes for {to:?}"))?;
                let to: Vec<Extent> = to.iter().copied().map(Extent::fixed).collect();
                Ok([&x[..kept], &to].concat())
            }
            Resample::Unfold(window) => {
                let [lead @ .., channels, height, width] = x else {
                    return Err(format!("the input {x:?} has no planes"));
                };
                let area = window.kernel[0].checked_mul(window.kernel[1]);
                let column = area.and_then(|area| channels.checked_mul(Extent::fixed(area)));
                let columns = window
                    .side(0, *height)?
                    .checked_mul(window.side(1, *width)?);
                let size = column.zip(columns.map(Extent::fixed));
                let (column, columns) = size.ok_or("it is too large")?;
                Ok([lead, &[column, columns]].concat())
            }
            Resample::Fold { window, to } => {
                let [lead @ .., column, _] = x else {
                    return Err(format!("the input {x:?} has no columns"));
                };
                let channels = column.checked_div(Extent::fixed(*window));
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
            Resample::PadConstant(amounts) | Resample::PadCopied(amounts) => padded(x, amounts),
        }
    }
}

/// The leading dimensions, and height and width.
fn planes(x: &[Extent]) -> Result<(&[Extent], [Extent; 2]), String> {
    match x {
        [lead @ .., height, width] if !lead.is_empty() => Ok((lead, [*height, *width])),
        _ => Err(format!("the input {x:?} has no planes")),
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
        let fixed = length
            .as_fixed()
            .and_then(|length| i64::try_from(length).ok());
        let padded = fixed.and_then(|length| length.checked_add(*before)?.checked_add(*after));
        let padded = padded.and_then(|length| u64::try_from(length).ok());
        *length = padded
            .map(Extent::fixed)
            .ok_or_else(|| format!("{x:?} cannot be padded by {amounts:?}"))?;
    }
    Ok(result)
}
