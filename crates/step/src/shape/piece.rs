//! The part of a length that is no polynomial of the batch: one division with a remainder, or one difference
//! that ends at zero.

use super::extent::Extent;

/// A function of the batch `b` in whole steps, as small as it can be written: lengths that are equal for every
/// batch are equal here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Steps {
    /// `⌊(slope·b + offset) / by⌋`, with `0 < slope < by` and `0 <= offset < by`.
    Quotient { slope: i32, offset: i32, by: i32 },
    /// `max(b - from, 0)` with `from > 1`.
    Beyond { from: i32 },
}

/// `(factor[0] + factor[1]·b)·F + square·F²` of one function `F` of the batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Piece {
    pub(super) steps: Steps,
    pub(super) factor: [i32; 2],
    pub(super) square: i32,
}

impl Steps {
    /// The value at a batch size.
    pub(super) fn at(self, batch: i128) -> i128 {
        match self {
            Steps::Quotient { slope, offset, by } => {
                (i128::from(slope) * batch + i128::from(offset)).div_euclid(i128::from(by))
            }
            Steps::Beyond { from } => (batch - i128::from(from)).max(0),
        }
    }

    /// It once, as a length.
    fn once(self, times: i32) -> Extent {
        let piece = Piece {
            steps: self,
            factor: [times, 0],
            square: 0,
        };
        Extent::of_parts([0; 3], Some(piece)).expect("zeros are narrow")
    }
}

impl Piece {
    /// The value at a batch size.
    pub(super) fn at(self, batch: i128) -> i128 {
        let value = self.steps.at(batch);
        let [constant, per_sample] = self.factor.map(i128::from);
        let factor = constant.saturating_add(per_sample.saturating_mul(batch));
        let square = i128::from(self.square).saturating_mul(value);
        factor.saturating_add(square).saturating_mul(value)
    }

    /// The same function of the batch with other factors; `None` where they do not fit, and no piece where they are
    /// zero.
    #[expect(clippy::option_option, reason = "no piece is an answer too")]
    pub(super) fn with(self, factor: [i64; 2], square: i64) -> Option<Option<Piece>> {
        let narrow = |n: i64| i32::try_from(n).ok();
        let piece = Piece {
            steps: self.steps,
            factor: [narrow(factor[0])?, narrow(factor[1])?],
            square: narrow(square)?,
        };
        let is_nothing = piece.factor == [0; 2] && piece.square == 0;
        Some((!is_nothing).then_some(piece))
    }
}

/// `⌊(constant + slope·b) / by⌋`.
pub(super) fn quotient(constant: i64, slope: i64, by: i64) -> Option<Extent> {
    if by <= 0 {
        return None;
    }
    let whole = [constant.div_euclid(by), slope.div_euclid(by), 0];
    let (offset, slope) = (constant.rem_euclid(by), slope.rem_euclid(by));
    if slope == 0 {
        return Some(Extent::polynomial(whole));
    }
    // Numerators move in steps of the common divisor.
    let common = gcd(slope, by);
    let (slope, offset, by) = (slope / common, offset / common, by / common);
    // What is left may be whole again: ⌊(2b + 1) / 2⌋.
    if by == 1 {
        return Extent::polynomial(whole).checked_add(Extent::polynomial([offset, slope, 0]));
    }
    let narrow = |n: i64| i32::try_from(n).ok();
    let of = |slope: i64, offset: i64| {
        Some(Steps::Quotient {
            slope: narrow(slope)?,
            offset: narrow(offset)?,
            by: narrow(by)?,
        })
    };
    // -⌊n / d⌋ = ⌊(d - 1 - n) / d⌋: of a quotient and what is missing to the whole, the smaller is written.
    let other = (by - slope, by - 1 - offset);
    let rest = if (slope, offset) <= other {
        of(slope, offset)?.once(1)
    } else {
        let turned = of(other.0, other.1)?.once(-1);
        // ⌊(s·b + o) / d⌋ = b - ⌊((d - s)·b + d - 1 - o) / d⌋.
        turned.checked_add(Extent::polynomial([0, 1, 0]))?
    };
    Extent::polynomial(whole).checked_add(rest)
}

/// `max(constant + slope·b, 0)`, for batches of one and more.
pub(super) fn positive(constant: i64, slope: i64) -> Option<Extent> {
    let whole = Extent::polynomial([constant, slope, 0]);
    let at_one = constant.checked_add(slope)?;
    if slope >= 0 && at_one >= 0 {
        return Some(whole);
    }
    if slope <= 0 && at_one <= 0 {
        return Some(Extent::ZERO);
    }
    if slope < 0 {
        // max(x, 0) = x + max(-x, 0).
        return whole.checked_add(positive(constant.checked_neg()?, slope.checked_neg()?)?);
    }
    // Below zero until b = -constant / slope.
    if constant % slope != 0 {
        return None;
    }
    let from = i32::try_from(constant.checked_neg()? / slope).ok()?;
    Some(Steps::Beyond { from }.once(i32::try_from(slope).ok()?))
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
