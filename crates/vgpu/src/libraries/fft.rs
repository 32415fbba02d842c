//! cuFFT: plans, and what they need.
//!
//! The sizes were read from cuFFT 12.0 (CUDA 13.0) on an H100 on 2026-11-28, for 1 to 64 transforms of 52 lengths and 20 shapes of two and
//! three dimensions. Shapes needed nothing, lengths up to 16384 hardly anything, longer ones a copy.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::names::{done, functions};
use crate::status::{check, out};

/// `cufftResult`.
type Status = c_int;
const INVALID_PLAN: Status = 1;
const INVALID_VALUE: Status = 4;
const INVALID_SIZE: Status = 8;

/// A plan is a number; those given out end before this one.
static NEXT: AtomicI32 = AtomicI32::new(1);

/// The longest transform that one kernel does.
const LONGEST: u64 = 16_384;
/// The largest prime factor that is not detoured by a convolution (Bluestein), in long transforms.
const LARGEST_PRIME: u64 = 127;
/// Prime lengths up to here have kernels of their own.
const LONGEST_PRIME: u64 = 4096;

/// What is left of a number without its prime factors up to `largest`.
fn without_factors(mut number: u64, largest: u64) -> u64 {
    for factor in 2..=largest {
        while number.is_multiple_of(factor) {
            number /= factor;
        }
    }
    number
}

/// Bytes of one transform of a length; `complex` are those of a complex number, `is_real` that one side is real.
fn line(length: u64, complex: u64, is_real: bool) -> u64 {
    if without_factors(length, LARGEST_PRIME) > 1 && length > LONGEST_PRIME {
        // A convolution of at least twice the length, whose own is made of small primes.
        let convolution = (2 * length - 1..).find(|&longer| without_factors(longer, 5) == 1).unwrap_or(2 * length);
        return convolution * complex * if is_real { 1 } else { 2 } + if is_real { length * complex / 2 } else { 0 };
    }
    if length <= LONGEST { 0 } else { length * complex / if is_real { 2 } else { 1 } }
}

/// Whether a plan was given out.
fn check_plan(plan: c_int) -> Result<(), Status> {
    check(plan >= 1 && plan < NEXT.load(Ordering::Relaxed), INVALID_PLAN)
}

functions! {
    cufftCreate(plan: *mut c_int) { out(plan, NEXT.fetch_add(1, Ordering::Relaxed)) }
    cufftXtMakePlanMany(
        plan: c_int, rank: c_int, lengths: *const i64, _in_embed: *const i64, _in_stride: i64, _in_distance: i64, input: c_int, _out_embed: *const i64, _out_stride: i64, _out_distance: i64,
        output: c_int, batch: i64, bytes: *mut usize, _execution: c_int,
    ) {
        check_plan(plan)?;
        check((1..=3).contains(&rank) && !lengths.is_null() && !bytes.is_null(), INVALID_VALUE)?;
        let (Ok(first), Ok(batch)) = (u64::try_from(lengths.read_unaligned()), u64::try_from(batch)) else {
            return Err(INVALID_SIZE);
        };
        check((1..=1 << 32).contains(&first) && batch > 0, INVALID_SIZE)?;
        // `CUDA_R_32F`, `CUDA_R_64F`, `CUDA_C_32F`, `CUDA_C_64F`; half precision is the rest.
        let complex = match input {
            0 | 4 => 8,
            1 | 5 => 16,
            _ => 4,
        };
        let needed = if rank == 1 { line(first, complex, input != output).saturating_mul(batch) } else { 0 };
        out(bytes, needed as usize)
    }
    cufftXtExec(plan: c_int, _input: *const c_void, _output: *const c_void, _direction: c_int) { check_plan(plan) }
}

done! { cufftDestroy cufftSetAutoAllocation cufftSetStream cufftSetWorkArea }

#[cfg(test)]
mod tests {
    use super::line;

    /// What cuFFT 12.0 said on an H100, for one of 64 transforms.
    #[test]
    fn long_lines_take_a_copy_and_awkward_ones_a_convolution() {
        assert_eq!([1009, 16_384, 65_536].map(|length| line(length, 8, false)), [0, 0, 524_288]);
        assert_eq!([4097, 10_007, 100_003].map(|length| line(length, 8, false)), [138_240, 324_000, 3_240_000]);
        assert_eq!(line(131_072, 8, true), 524_288);
    }
}
