//! Sizes that depend on the batch.

use std::ops::{Add, Mul};

use super::piece::{Piece, Steps, positive, quotient};

/// The length of a dimension, a stride or a number of elements, as a function of the batch size.
///
/// Almost all are `c` or `c * b`; the product of two batched dimensions is the highest power that the
/// models batchfit reads produce. To a polynomial comes at most one function in whole steps, such as the half
/// of a batch, rounded down. Lengths that are equal for every batch are equal.
///
/// Large graphs have millions of them, so it is kept small: beside a function in whole steps, coefficients are
/// narrow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent(Form);

/// Coefficients of 1, b and b², and what comes to them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Form {
    Polynomial([i64; 3]),
    Stepped(Piece, [i32; 3]),
}

impl Extent {
    /// Zero.
    pub const ZERO: Extent = Extent::fixed(0);
    /// One.
    pub const ONE: Extent = Extent::fixed(1);
    /// The batch size itself.
    pub const BATCH: Extent = Extent::per_sample(1);
    /// More than any device holds, for what is too large or too intricate to be written.
    const TOO_LARGE: Extent = Extent::fixed(i64::MAX as u64);

    /// A length that does not depend on the batch.
    pub const fn fixed(length: u64) -> Extent {
        Extent::polynomial([narrow(length), 0, 0])
    }

    /// `per_sample * b`.
    pub const fn per_sample(per_sample: u64) -> Extent {
        Extent::polynomial([0, narrow(per_sample), 0])
    }

    /// A number that may be negative, as it stands in differences.
    pub const fn signed(number: i64) -> Extent {
        Extent::polynomial([number, 0, 0])
    }

    /// A polynomial of these coefficients of 1, b and b².
    pub(super) const fn polynomial(powers: [i64; 3]) -> Extent {
        Extent(Form::Polynomial(powers))
    }

    /// The sum of a polynomial and a piece; `None` where it cannot be written.
    pub(super) fn of_parts(powers: [i64; 3], piece: Option<Piece>) -> Option<Extent> {
        let Some(piece) = piece else {
            return Some(Extent::polynomial(powers));
        };
        let [c0, c1, c2] = powers.map(|power| i32::try_from(power).ok());
        Some(Extent(Form::Stepped(piece, [c0?, c1?, c2?])))
    }

    /// Coefficients of 1, b and b².
    pub(super) fn powers(self) -> [i64; 3] {
        match self.0 {
            Form::Polynomial(powers) => powers,
            Form::Stepped(_, powers) => powers.map(i64::from),
        }
    }

    pub(super) fn piece(self) -> Option<Piece> {
        match self.0 {
            Form::Polynomial(_) => None,
            Form::Stepped(piece, _) => Some(piece),
        }
    }

    /// The length, when it does not depend on the batch.
    pub const fn as_fixed(self) -> Option<u64> {
        match self.0 {
            Form::Polynomial([length, 0, 0]) if length >= 0 => Some(length.unsigned_abs()),
            Form::Polynomial(_) | Form::Stepped(..) => None,
        }
    }

    /// Whether it is a number below zero.
    pub fn is_negative(self) -> bool {
        matches!(self.0, Form::Polynomial([number, 0, 0]) if number < 0)
    }

    /// The value at a batch size; zero where it would be negative. Saturates: a size past `u64` fits nowhere
    /// anyway.
    pub fn at(self, batch: u64) -> u64 {
        if let Form::Polynomial(powers) = self.0
            && powers.iter().all(|power| *power >= 0)
        {
            let [c0, c1, c2] = powers.map(i64::unsigned_abs);
            return c0
                .saturating_add(c1.saturating_mul(batch))
                .saturating_add(c2.saturating_mul(batch).saturating_mul(batch));
        }
        let batch = i128::from(batch);
        let [c0, c1, c2] = self.powers().map(i128::from);
        let square = c2.saturating_mul(batch).saturating_mul(batch);
        let whole = c0
            .saturating_add(c1.saturating_mul(batch))
            .saturating_add(square);
        let value = whole.saturating_add(self.piece().map_or(0, |piece| piece.at(batch)));
        u64::try_from(value.max(0)).unwrap_or(u64::MAX)
    }

    /// The sum, or `None` when it is not of this form.
    pub fn checked_add(self, other: Extent) -> Option<Extent> {
        let (mine, theirs) = (self.powers(), other.powers());
        let mut powers = [0; 3];
        for (i, power) in powers.iter_mut().enumerate() {
            *power = mine[i].checked_add(theirs[i])?;
        }
        let piece = match (self.piece(), other.piece()) {
            (None, piece) | (piece, None) => piece,
            (Some(a), Some(b)) if a.steps == b.steps => {
                let sum = |a: i32, b: i32| i64::from(a) + i64::from(b);
                let factor = [0, 1].map(|i| sum(a.factor[i], b.factor[i]));
                a.with(factor, sum(a.square, b.square))?
            }
            (Some(_), Some(_)) => return None,
        };
        Extent::of_parts(powers, piece)
    }

    /// The difference, or `None` when it is not of this form. It may be negative.
    pub fn checked_sub(self, other: Extent) -> Option<Extent> {
        self.checked_add(other.checked_mul(Extent::signed(-1))?)
    }

    /// The product, or `None` when it has a higher power of the batch than this type holds or overflows.
    pub fn checked_mul(self, other: Extent) -> Option<Extent> {
        let (mine, theirs) = (self.powers(), other.powers());
        let mut powers = [0_i64; 3];
        for (i, a) in mine.iter().enumerate() {
            for (j, b) in theirs.iter().enumerate() {
                let product = a.checked_mul(*b)?;
                if product != 0 {
                    let power = powers.get_mut(i + j)?;
                    *power = power.checked_add(product)?;
                }
            }
        }
        let mut result = Extent::polynomial(powers);
        for (piece, by) in [(self.piece(), theirs), (other.piece(), mine)] {
            let Some(piece) = piece else { continue };
            result = result.checked_add(times(piece, by)?)?;
        }
        if let (Some(a), Some(b)) = (self.piece(), other.piece()) {
            // Only numbers times the same function multiply to what is of this form.
            let is_number = |piece: Piece| piece.factor[1] == 0 && piece.square == 0;
            if a.steps != b.steps || !is_number(a) || !is_number(b) {
                return None;
            }
            let square = i64::from(a.factor[0]).checked_mul(i64::from(b.factor[0]))?;
            let squared = Extent::of_parts([0; 3], a.with([0; 2], square)?)?;
            result = result.checked_add(squared)?;
        }
        Some(result)
    }

    /// The quotient, when `other` divides this for every batch size.
    pub fn checked_div(self, other: Extent) -> Option<Extent> {
        if self == other {
            return (self != Extent::ZERO).then_some(Extent::ONE);
        }
        let powers = other.powers();
        let degree = powers.iter().rposition(|c| *c != 0);
        let terms = powers.iter().filter(|c| **c != 0).count();
        if let (Some(degree), 1, None) = (degree, terms, other.piece()) {
            return self.divided(powers[degree], degree);
        }
        // By a sum: a number or a multiple of the batch, if it is one.
        let (mine, theirs) = (self.leading()?, other.leading()?);
        let by = mine
            .checked_rem(theirs)
            .filter(|rest| *rest == 0)
            .and_then(|_| mine.checked_div(theirs))?;
        let candidates = [[by, 0, 0], [0, by, 0]].map(Extent::polynomial);
        let fits = |quotient: &Extent| other.checked_mul(*quotient) == Some(self);
        // Or of the same kind, where this is a square.
        let square = other.checked_mul(Extent::polynomial([by, 0, 0]));
        candidates.into_iter().chain(square).find(fits)
    }

    /// The coefficient of the highest term.
    fn leading(self) -> Option<i64> {
        let piece = self.piece().map(|piece| {
            let [constant, per_sample] = piece.factor;
            [piece.square, per_sample, constant]
        });
        let of_piece = piece.into_iter().flatten().find(|c| *c != 0).map(i64::from);
        of_piece.or_else(|| self.powers().into_iter().rev().find(|c| *c != 0))
    }

    /// Divided by `by * b^degree`.
    fn divided(self, by: i64, degree: usize) -> Option<Extent> {
        let mut powers = [0_i64; 3];
        for (i, c) in self.powers().into_iter().enumerate() {
            if c == 0 {
                continue;
            }
            if i < degree || c.checked_rem(by)? != 0 {
                return None;
            }
            powers[i - degree] = c.checked_div(by)?;
        }
        let Some(piece) = self.piece() else {
            return Some(Extent::polynomial(powers));
        };
        let [constant, per_sample] = piece.factor.map(i64::from);
        let square = i64::from(piece.square);
        let all = [constant, per_sample, square];
        if all.iter().any(|c| c % by != 0)
            || (degree > 0 && (constant != 0 || square != 0))
            || degree > 1
        {
            return None;
        }
        let factor = match degree {
            0 => [constant / by, per_sample / by],
            _ => [per_sample / by, 0],
        };
        Extent::of_parts(powers, piece.with(factor, square / by)?)
    }

    /// The quotient rounded down, or `None` when it is not of this form.
    pub fn floor_div(self, by: u64) -> Option<Extent> {
        let by = i64::try_from(by).ok().filter(|by| *by > 0)?;
        if let Some(exact) = self.divided(by, 0) {
            return Some(exact);
        }
        let [constant, slope, 0] = self.powers() else {
            return None;
        };
        let Some(piece) = self.piece() else {
            return quotient(constant, slope, by);
        };
        // ⌊(c + s·b + ⌊(n·b + o) / d⌋) / by⌋ = ⌊((s·d + n)·b + c·d + o) / (d·by)⌋, and with a minus before the
        // inner quotient the same of d - 1 - o - n·b. Of several times an inner quotient, the factor is taken out.
        let Steps::Quotient {
            slope: n,
            offset: o,
            by: d,
        } = piece.steps
        else {
            return None;
        };
        let ([times, 0], 0) = (piece.factor, piece.square) else {
            return None;
        };
        let (n, o, d, times) = (i64::from(n), i64::from(o), i64::from(d), i64::from(times));
        let common = times.abs();
        if [constant, slope, by].iter().any(|c| c % common != 0) {
            return None;
        }
        let (constant, slope, by) = (constant / common, slope / common, by / common);
        let (n, o) = if times > 0 { (n, o) } else { (-n, d - 1 - o) };
        let whole = |c: i64, more: i64| c.checked_mul(d)?.checked_add(more);
        quotient(whole(constant, o)?, whole(slope, n)?, d.checked_mul(by)?)
    }

    /// The remainder of a division, or `None` when it is not of this form.
    pub fn remainder(self, by: u64) -> Option<Extent> {
        self.checked_sub(self.floor_div(by)?.checked_mul(Extent::fixed(by))?)
    }

    /// The larger of two lengths for every batch of one and more, or `None` when it is not of this form.
    ///
    /// A length in whole steps counts as no less than one: `max(1, b // 2)` is `b // 2`, which differs for the
    /// smallest batches only.
    pub fn larger(self, other: Extent) -> Option<Extent> {
        if let (Some(_), None) | (None, Some(_)) = (self.piece(), other.piece()) {
            let (stepped, plain) = if self.piece().is_some() {
                (self, other)
            } else {
                (other, self)
            };
            return plain.as_fixed().filter(|n| *n <= 1).map(|_| stepped);
        }
        let difference = self.checked_sub(other)?;
        let Form::Polynomial([constant, slope, 0]) = difference.0 else {
            return None;
        };
        other.checked_add(positive(constant, slope)?)
    }

    /// The smaller of two lengths for every batch of one and more, or `None` when it is not of this form.
    pub fn smaller(self, other: Extent) -> Option<Extent> {
        let difference = self.checked_sub(other)?;
        let Form::Polynomial([constant, slope, 0]) = difference.0 else {
            return None;
        };
        self.checked_sub(positive(constant, slope)?)
    }

    /// Whether two lengths are equal for so many batches that they are for all: the forms of this type that
    /// are equal for some dozens are.
    pub fn is_always(self, other: Extent) -> bool {
        self == other
            || [1, 2, 3, 5, 7, 8, 12, 60, 61, 997]
                .iter()
                .all(|b| self.at(*b) == other.at(*b))
    }
}

impl Default for Extent {
    fn default() -> Extent {
        Extent::ZERO
    }
}

/// A number as a coefficient; more than fits nowhere is as large as can be written.
const fn narrow(length: u64) -> i64 {
    if length > i64::MAX as u64 {
        i64::MAX
    } else {
        length.cast_signed()
    }
}

/// The product of a piece and a polynomial.
fn times(piece: Piece, [c0, c1, c2]: [i64; 3]) -> Option<Extent> {
    let [constant, per_sample] = piece.factor.map(i64::from);
    let square = i64::from(piece.square);
    let is_too_high = (c2 != 0) || (c1 != 0 && (per_sample != 0 || square != 0));
    if is_too_high {
        return None;
    }
    let factor = [
        constant.checked_mul(c0)?,
        per_sample
            .checked_mul(c0)?
            .checked_add(constant.checked_mul(c1)?)?,
    ];
    Extent::of_parts([0; 3], piece.with(factor, square.checked_mul(c0)?)?)
}

impl From<u64> for Extent {
    fn from(length: u64) -> Extent {
        Extent::fixed(length)
    }
}

/// Is larger than any device where the sum cannot be written; graph validation refuses such shapes.
impl Add for Extent {
    type Output = Extent;
    fn add(self, other: Extent) -> Extent {
        self.checked_add(other).unwrap_or(Extent::TOO_LARGE)
    }
}

/// Is larger than any device where the product cannot be written; graph validation refuses such shapes.
impl Mul for Extent {
    type Output = Extent;
    fn mul(self, other: Extent) -> Extent {
        self.checked_mul(other).unwrap_or(Extent::TOO_LARGE)
    }
}

/// The product of all lengths.
pub fn numel(shape: &[Extent]) -> Extent {
    shape
        .iter()
        .fold(Extent::ONE, |product, length| product * *length)
}

/// Whether a tensor of this shape has more elements than any device holds, already for one sample.
///
/// Refusing these keeps the byte counts of everything else far from the end of `u64`.
pub fn is_oversize(shape: &[Extent]) -> bool {
    numel(shape).at(1) > 1 << 50
}

/// Row-major strides, as `empty(shape)` has them.
pub fn contiguous_strides(shape: &[Extent]) -> Vec<Extent> {
    let mut strides = vec![Extent::ONE; shape.len()];
    for i in (1..shape.len()).rev() {
        // PyTorch counts an empty dimension as one here.
        let length = Some(shape[i]).filter(|length| *length != Extent::ZERO);
        strides[i - 1] = strides[i] * length.unwrap_or(Extent::ONE);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest graphs have some millions of them.
    #[test]
    fn is_small() {
        assert_eq!(size_of::<Extent>(), 40);
    }

    #[test]
    fn evaluates_and_prints_as_a_polynomial() {
        let extent =
            Extent::per_sample(3) * Extent::BATCH + Extent::per_sample(2) + Extent::fixed(7);

        assert_eq!(extent.to_string(), "3b²+2b+7");
        assert_eq!(extent.at(10), 327);
    }

    #[test]
    fn divides_only_without_remainder() {
        let elements = Extent::per_sample(1024 * 768);

        assert_eq!(
            elements.checked_div(Extent::fixed(768)),
            Some(Extent::per_sample(1024))
        );
        assert_eq!(
            elements.checked_div(Extent::BATCH),
            Some(Extent::fixed(1024 * 768))
        );
        assert_eq!(elements.checked_div(Extent::fixed(5)), None);
        assert_eq!(Extent::fixed(4).checked_div(Extent::BATCH), None);
    }

    /// Lengths in whole steps, each with the same by whole numbers.
    #[test]
    fn steps_are_those_of_whole_numbers() {
        type Whole = fn(i64) -> i64;
        let b = Extent::BATCH;
        let of = |c0: i64, c1: i64| Extent::polynomial([c0, c1, 0]);
        let (half, upper) = (b.floor_div(2).unwrap(), of(1, 1).floor_div(2).unwrap());
        let cases: Vec<(Option<Extent>, Whole)> = vec![
            (Some(half), |b| b / 2),
            (b.checked_sub(upper), |b| b - (b + 1) / 2),
            (half.checked_add(upper), |b| b),
            (b.checked_mul(half), |b| b * (b / 2)),
            (half.checked_mul(half), |b| (b / 2) * (b / 2)),
            (half.checked_mul(upper), |b| (b / 2) * ((b + 1) / 2)),
            (half.floor_div(2), |b| b / 4),
            (upper.floor_div(3), |b| ((b + 1) / 2) / 3),
            (of(-1, 1).floor_div(2), |b| (b - 1) / 2),
            (of(5, 7).floor_div(3), |b| (7 * b + 5) / 3),
            (of(1, 4).floor_div(6), |b| (4 * b + 1) / 6),
            (b.remainder(3), |b| b % 3),
            (b.larger(Extent::fixed(3)), |b| b.max(3)),
            (b.smaller(Extent::fixed(10)), |b| b.min(10)),
            (of(-4, 2).larger(Extent::ZERO), |b| (2 * b - 4).max(0)),
            (of(-1, 1).larger(Extent::ZERO), |b| b - 1),
            (of(0, 24).checked_mul(half).unwrap().checked_div(b), |b| {
                24 * (b / 2)
            }),
            (
                of(24, 0).checked_mul(half).unwrap().checked_div(half),
                |_| 24,
            ),
            (half.checked_mul(half).unwrap().checked_div(half), |b| b / 2),
        ];

        for (index, (extent, whole)) in cases.into_iter().enumerate() {
            let extent = extent.unwrap_or_else(|| panic!("case {index}"));
            for batch in 1..200_i64 {
                let expected = whole(batch).unsigned_abs();
                assert_eq!(
                    extent.at(batch.unsigned_abs()),
                    expected,
                    "case {index}: {extent} at {batch}"
                );
            }
        }
        assert_eq!(half.checked_add(upper), Some(b));
        assert_eq!(b.checked_sub(upper), Some(half));
    }

    #[test]
    fn what_has_two_kinds_of_steps_is_too_large() {
        let (half, third) = (Extent::BATCH.floor_div(2), Extent::BATCH.floor_div(3));

        assert_eq!(half.unwrap().checked_add(third.unwrap()), None);
        assert!(is_oversize(&[half.unwrap() + third.unwrap()]));
        assert_eq!(Extent::fixed(u64::MAX).at(1), i64::MAX.unsigned_abs());
    }

    #[test]
    fn a_third_power_of_the_batch_is_refused() {
        let square = Extent::BATCH * Extent::BATCH;

        assert_eq!(square.checked_mul(Extent::BATCH), None);
    }
}
