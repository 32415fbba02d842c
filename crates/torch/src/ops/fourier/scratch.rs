//! cuFFT's scratch memory. See Note [Scratch of transforms].

use super::Direction;
use crate::shape::DType;

/// Tenths of the bytes of the whole complex signal that a plan for these lengths takes.
pub(super) fn tenths(direction: Direction, dtype: DType, lengths: &[u64]) -> u64 {
    let of = |length: &u64| of_length(direction, dtype, *length);
    lengths.iter().map(of).max().unwrap_or(0)
}

fn of_length(direction: Direction, dtype: DType, length: u64) -> u64 {
    let largest = largest_prime_factor(length);
    // Bluestein's algorithm works on a longer signal.
    let is_rough = largest > 127;
    let longest = if dtype == DType::Complex128 {
        12_288
    } else {
        24_576
    };
    match direction {
        Direction::Complex if is_rough && length > 4096 => 41,
        Direction::Complex if length > longest => 10,
        Direction::Complex => 0,
        Direction::FromReal if is_rough => 25,
        Direction::FromReal if length.is_power_of_two() && length <= 16_384 => 0,
        Direction::FromReal if length < 1200 => 0,
        Direction::ToReal if is_rough && length > 9000 => 25,
        Direction::ToReal if length.is_power_of_two() && length <= 16_384 => 0,
        Direction::ToReal if largest <= 11 && length < 1200 => 0,
        Direction::FromReal | Direction::ToReal => 5,
    }
}

/// Lengths are below 2^31, so this tries fewer than 2^16 divisors.
fn largest_prime_factor(mut length: u64) -> u64 {
    let (mut largest, mut divisor) = (1, 2);
    while divisor * divisor <= length {
        while length.is_multiple_of(divisor) {
            largest = divisor;
            length /= divisor;
        }
        divisor += 1;
    }
    largest.max(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded on an H200: in tenths of batch times length complex numbers.
    #[test]
    fn plans_take_what_was_recorded() {
        let of = |direction, length| tenths(direction, DType::Complex64, &[length]);

        assert_eq!(of(Direction::Complex, 1009), 0);
        assert_eq!(of(Direction::Complex, 48_000), 10);
        assert_eq!(of(Direction::Complex, 10_007), 41);
        assert_eq!(of(Direction::FromReal, 400), 0);
        assert_eq!(of(Direction::FromReal, 2000), 5);
        assert_eq!(of(Direction::FromReal, 2048), 0);
        assert_eq!(of(Direction::ToReal, 252), 0);
        assert_eq!(of(Direction::ToReal, 62), 5);
    }
}
