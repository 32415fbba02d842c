//! Quantities that must not be mixed up.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde::{Deserialize, Serialize};

/// A number of bytes of device memory.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Nothing.
    pub const ZERO: Bytes = Bytes(0);
    /// One mebibyte. Device memory is counted in powers of two everywhere in this crate.
    pub const MIB: Bytes = Bytes(1 << 20);
    /// One gibibyte.
    pub const GIB: Bytes = Bytes(1 << 30);

    /// `n` mebibytes.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// `n` gibibytes.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }

    /// The next multiple of `step`, or `None` past the end of `u64`.
    pub const fn round_up(self, step: Bytes) -> Option<Bytes> {
        match self.0.checked_next_multiple_of(step.0) {
            Some(n) => Some(Bytes(n)),
            None => None,
        }
    }

    /// The difference, or zero where it would be negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        self.0 -= other.0;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(parts: I) -> Bytes {
        Bytes(parts.map(|part| part.0).sum())
    }
}

impl fmt::Display for Bytes {
    /// Writes the largest unit that leaves a number of at least one: `11.96 GiB`, `512 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{} B", self.0),
            1024..0x10_0000 => write!(f, "{:.1} KiB", n / 1024.0),
            0x10_0000..0x4000_0000 => write!(f, "{:.1} MiB", n / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", n / 1_073_741_824.0),
        }
    }
}

/// A part of a limit, in millionths of it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Share(pub u32);

impl Share {
    /// All of it.
    pub const ALL: Share = Share(1_000_000);

    /// What part of `whole` this is, rounded up; all of it where it is more.
    pub fn of(part: Bytes, whole: Bytes) -> Share {
        let millionths = (u128::from(part.0) * u128::from(Share::ALL.0))
            .div_ceil(u128::from(whole.0.max(1)))
            .min(u128::from(Share::ALL.0));
        Share(u32::try_from(millionths).unwrap_or(Share::ALL.0))
    }

    /// So much of `whole`.
    pub fn bytes(self, whole: Bytes) -> Bytes {
        let bytes = u128::from(whole.0) * u128::from(self.0) / u128::from(Share::ALL.0);
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// As a fraction of one.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(Share::ALL.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_picks_the_unit_that_leaves_a_number_of_at_least_one() {
        let shown: Vec<String> = [511, 1024, 1 << 20, 12 << 30]
            .map(|n| Bytes(n).to_string())
            .to_vec();

        assert_eq!(shown, ["511 B", "1.0 KiB", "1.0 MiB", "12.00 GiB"]);
    }

    #[test]
    fn rounding_past_the_end_is_none() {
        assert_eq!(Bytes(u64::MAX).round_up(Bytes::MIB), None);
        assert_eq!(Bytes(1).round_up(Bytes::MIB), Some(Bytes::MIB));
    }
}
