//! Sizes that depend on the batch.

use std::fmt;
use std::ops::{Add, Mul};

use serde::Serialize;

/// The length of a dimension, a stride or a number of elements, as a polynomial of the batch size.
///
/// Almost all are `c` or `c * b`; the product of two batched dimensions is the highest power that the
/// models batchfit reads produce.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize)]
#[serde(transparent)]
pub struct Extent {
    /// Coefficients of 1, b and b².
    powers: [u64; 3],
}

impl Extent {
    /// Zero.
    pub const ZERO: Extent = Extent::fixed(0);
    /// One.
    pub const ONE: Extent = Extent::fixed(1);
    /// The batch size itself.
    pub const BATCH: Extent = Extent { powers: [0, 1, 0] };

    /// A length that does not depend on the batch.
    pub const fn fixed(length: u64) -> Extent {
        Extent {
            powers: [length, 0, 0],
        }
    }

    /// `per_sample * b`.
    pub const fn per_sample(per_sample: u64) -> Extent {
        Extent {
            powers: [0, per_sample, 0],
        }
    }

    /// The length, when it does not depend on the batch.
    pub const fn as_fixed(self) -> Option<u64> {
        match self.powers {
            [length, 0, 0] => Some(length),
            _ => None,
        }
    }

    /// The value at a batch size. Saturates: a size past `u64` fits nowhere anyway.
    pub fn at(self, batch: u64) -> u64 {
        let [c0, c1, c2] = self.powers;
        c0.saturating_add(c1.saturating_mul(batch))
            .saturating_add(c2.saturating_mul(batch).saturating_mul(batch))
    }

    /// The product, or `None` when it has a higher power of the batch than this type holds or overflows.
    pub fn checked_mul(self, other: Extent) -> Option<Extent> {
        let mut powers = [0_u64; 3];
        for (i, a) in self.powers.iter().enumerate() {
            for (j, b) in other.powers.iter().enumerate() {
                let product = a.checked_mul(*b)?;
                if product != 0 {
                    let power = powers.get_mut(i + j)?;
                    *power = power.checked_add(product)?;
                }
            }
        }
        Some(Extent { powers })
    }

    /// The quotient, when `other` divides this for every batch size.
    pub fn checked_div(self, other: Extent) -> Option<Extent> {
        let degree = other.powers.iter().rposition(|c| *c != 0)?;
        // Only monomials divide without a remainder polynomial here.
        if other.powers.iter().filter(|c| **c != 0).count() != 1 {
            return (self == other).then_some(Extent::ONE);
        }
        let by = other.powers[degree];
        let mut powers = [0_u64; 3];
        for (i, c) in self.powers.iter().enumerate() {
            if *c == 0 {
                continue;
            }
            if i < degree || c % by != 0 {
                return None;
            }
            powers[i - degree] = c / by;
        }
        Some(Extent { powers })
    }
}

impl From<u64> for Extent {
    fn from(length: u64) -> Extent {
        Extent::fixed(length)
    }
}

impl Add for Extent {
    type Output = Extent;
    fn add(self, other: Extent) -> Extent {
        let mut powers = self.powers;
        for (power, more) in powers.iter_mut().zip(other.powers) {
            *power = power.saturating_add(more);
        }
        Extent { powers }
    }
}

/// Saturates at the largest length, which fits nowhere; graph validation refuses such shapes first.
impl Mul for Extent {
    type Output = Extent;
    fn mul(self, other: Extent) -> Extent {
        self.checked_mul(other).unwrap_or(Extent {
            powers: [u64::MAX, 0, 0],
        })
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (power, c) in self
            .powers
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, c)| **c != 0)
        {
            if !first {
                f.write_str("+")?;
            }
            first = false;
            match (power, c) {
                (0, c) => write!(f, "{c}")?,
                (1, 1) => f.write_str("b")?,
                (1, c) => write!(f, "{c}b")?,
                (_, 1) => f.write_str("b²")?,
                (_, c) => write!(f, "{c}b²")?,
            }
        }
        if first { f.write_str("0") } else { Ok(()) }
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
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
        // PyTorch counts an empty dimension as one here; none of the graphs read has any.
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_third_power_of_the_batch_is_refused() {
        let square = Extent::BATCH * Extent::BATCH;

        assert_eq!(square.checked_mul(Extent::BATCH), None);
    }
}
