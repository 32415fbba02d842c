//! What is deliberately left free.

use crate::units::Bytes;

/// How memory grows around the largest batch, and what there is of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySlope {
    /// What the allocator may reserve.
    pub limit: Bytes,
    /// How much the peak grows with each sample.
    pub per_sample: Bytes,
}

/// A batch that leaves headroom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The largest batch to recommend, or 0. It must still be seen to fit: memory use has holes.
    pub batch: u64,
    /// What was asked to be left free.
    pub headroom: Bytes,
}

/// The largest batch to recommend, given the largest that fits without retries.
///
/// `prediction_error` of the limit is left free, the share by which predictions were seen to be wrong; the
/// caller says where that number is from. At least one sample is kept where one fits.
#[must_use]
pub fn keep_headroom(
    max_batch_without_retries: u64,
    slope: MemorySlope,
    prediction_error: f64,
) -> Kept {
    let headroom = share(slope.limit, prediction_error);
    let samples = headroom.0.div_ceil(slope.per_sample.0.max(1));
    let batch = max_batch_without_retries
        .saturating_sub(samples)
        .max(max_batch_without_retries.min(1));
    Kept { batch, headroom }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the share is clamped to 0..=1, and a byte more or less of headroom does not matter"
)]
fn share(limit: Bytes, error: f64) -> Bytes {
    Bytes((limit.0 as f64 * error.clamp(0.0, 1.0)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOPE: MemorySlope = MemorySlope {
        limit: Bytes::gib(10),
        per_sample: Bytes::mib(64),
    };

    #[test]
    fn without_an_error_nothing_is_kept_free() {
        let kept = keep_headroom(100, SLOPE, 0.0);

        assert_eq!((kept.batch, kept.headroom), (100, Bytes::ZERO));
    }

    #[test]
    fn the_stated_error_is_kept_free_in_whole_samples() {
        // 2% of 10 GiB is 204.8 MiB: four samples of 64 MiB.
        assert_eq!(keep_headroom(100, SLOPE, 0.02).batch, 96);
    }

    #[test]
    fn one_sample_is_kept_where_one_fits() {
        let kept = |max| keep_headroom(max, SLOPE, 0.5).batch;

        assert_eq!([kept(0), kept(1), kept(3)], [0, 1, 1]);
    }
}
