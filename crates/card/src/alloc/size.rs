//! Rounding of requests, and the size of the segment that a request would need. See Note [Rounding].

use crate::units::Bytes;

/// Every block is a multiple of this. PyTorch's `kMinBlockSize`.
pub const MIN_BLOCK: Bytes = Bytes(512);
/// The largest rounded size that the small pool serves. PyTorch's `kSmallSize`.
pub const SMALL_MAX: Bytes = Bytes::MIB;
/// The segment that the small pool takes. PyTorch's `kSmallBuffer`.
pub const SMALL_SEGMENT: Bytes = Bytes::mib(2);
/// Rounded sizes from here on get a segment of their own size. PyTorch's `kMinLargeAlloc`.
pub const MIN_EXACT: Bytes = Bytes::mib(10);
/// The segment for rounded sizes above [`SMALL_MAX`] and below [`MIN_EXACT`]. PyTorch's
/// `kLargeBuffer`, the default of `large_segment_size_mb`.
pub const LARGE_SEGMENT: Bytes = Bytes::mib(20);
/// Segments of their own size are multiples of this. PyTorch's `kRoundLarge`.
const ROUND_EXACT: Bytes = Bytes::mib(2);
/// A request of this much is refused before anything else happens. PyTorch's `one_exa_bytes`.
pub(super) const ABSURD: Bytes = Bytes(1 << 60);

/// The size of the block that a request needs with default settings; at most 512 more than `requested`.
///
/// [`super::CachingAllocator::malloc`] refuses 2^60 and more.
#[must_use]
pub const fn round_size(requested: Bytes) -> Bytes {
    if requested.0 < MIN_BLOCK.0 {
        return MIN_BLOCK;
    }
    round_up(requested, MIN_BLOCK)
}

/// The size of the segment that would be taken from the source for a block of `rounded` bytes, with
/// default settings.
#[must_use]
pub const fn segment_size(rounded: Bytes) -> Bytes {
    segment_size_with(rounded, LARGE_SEGMENT)
}

/// The same, with another `large_segment_size_mb`.
pub(super) const fn segment_size_with(rounded: Bytes, large: Bytes) -> Bytes {
    if rounded.0 <= SMALL_MAX.0 {
        SMALL_SEGMENT
    } else if rounded.0 < MIN_EXACT.0 {
        large
    } else {
        round_up(rounded, ROUND_EXACT)
    }
}

/// What `torch.cuda.set_per_process_memory_fraction` allows of `total` device memory, or `None` for a
/// fraction of one, which PyTorch takes as no limit.
///
/// Computed in double precision and truncated, as PyTorch does: half of an odd total loses a byte, and
/// a limit that was turned into a fraction and back can come out one byte smaller.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "PyTorch truncates the product to an integer; a negative fraction saturates to zero"
)]
pub fn limit_of_fraction(fraction: f64, total: Bytes) -> Option<Bytes> {
    (fraction < 1.0).then_some(Bytes((fraction * total.0 as f64) as u64))
}

/// Sizes beyond all memory are as good as the largest number.
pub(super) const fn round_up(size: Bytes, step: Bytes) -> Bytes {
    match size.round_up(step) {
        Some(rounded) => rounded,
        None => Bytes(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_beyond_all_memory_are_rounded_to_the_largest_number() {
        assert_eq!(round_size(Bytes(u64::MAX - 100)), Bytes(u64::MAX));
        assert_eq!(round_size(Bytes(1 << 62)), Bytes(1 << 62));
    }

    #[test]
    fn requests_round_to_512_and_never_to_nothing() {
        let rounded = [1, 511, 512, 513, 1_048_577].map(|n| round_size(Bytes(n)).0);

        assert_eq!(rounded, [512, 512, 512, 1024, 1_049_088]);
    }

    #[test]
    fn ten_mebibytes_after_rounding_is_an_exact_segment() {
        assert_eq!(
            segment_size(round_size(Bytes(10_485_248))),
            Bytes(20_971_520)
        );
        assert_eq!(
            segment_size(round_size(Bytes(10_485_249))),
            Bytes(10_485_760)
        );
        assert_eq!(
            segment_size(round_size(Bytes(10_485_761))),
            Bytes(12_582_912)
        );
    }

    #[test]
    fn a_fraction_of_one_is_no_limit_and_others_truncate() {
        assert_eq!(limit_of_fraction(1.0, Bytes(101)), None);
        assert_eq!(limit_of_fraction(0.5, Bytes(101)), Some(Bytes(50)));
    }
}
