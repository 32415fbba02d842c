//! How large a batch may be, by the bytes that others reserved: see Note [Told bytes].

use super::observations::Observations;

/// So many times the largest batch that ran is the next one at most, unless memory that grows in proportion would
/// still be within the limit.
const FARTHEST: u64 = 8;

/// What a line through the bytes says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extrapolation {
    /// This batch is within the limit, and nearer to it.
    Try(u64),
    /// Not even one sample more is: a batch of `low + 1` would reserve so many bytes.
    Full {
        /// By the line, or by more than the limit.
        bytes: u64,
    },
}

/// The next batch above `low`, the largest that is known to fit, by a line through what runs reserved. `None` where fewer
/// than two batches came with bytes, that one among them.
pub(super) fn next(seen: &Observations, low: u64, limit: u64) -> Option<Extrapolation> {
    let here = seen.bytes(low)?;
    let (other, there) = partner(seen, low)?;
    let left = limit.saturating_sub(here);
    let (samples, grown) = (low.abs_diff(other), grown((low, here), (other, there)));
    let farthest = low
        .saturating_mul(FARTHEST)
        .max(in_proportion(low, here, limit));
    if grown == 0 {
        // As flat as far as was observed: a size was rounded up, perhaps.
        return Some(Extrapolation::Try(farthest));
    }
    let step = divided(left, samples, grown);
    if step == 0 {
        let bytes = here.saturating_add(divided(grown, 1, samples));
        return Some(Extrapolation::Full {
            bytes: bytes.max(limit.saturating_add(1)),
        });
    }
    // From below: nine tenths of the way, and the last samples at once.
    let near = divided(step, 9, 10).max(1).max(step.min(5));
    // Rounding hides how much those that reserved as much really take: as many again.
    let mut alike = seen
        .points()
        .filter(|(batch, bytes)| *batch < low && *bytes == here);
    let near = alike
        .next()
        .map_or(near, |(first, _)| near.max(low - first));
    Some(Extrapolation::Try(low.saturating_add(near).min(farthest)))
}

/// What a batch may be when memory grows in proportion: nothing that takes a constant amount beside it takes more.
/// Where one batch alone came with bytes, this is all that is certain.
pub(super) fn in_proportion(batch: u64, bytes: u64, limit: u64) -> u64 {
    divided(limit, batch, bytes.max(1))
}

/// The batch that the line goes through besides `low`: the next one above that ran, though beyond the limit; otherwise the
/// largest up to half of it, since small differences would magnify the rounding of sizes; otherwise the smallest.
fn partner(seen: &Observations, low: u64) -> Option<(u64, u64)> {
    let above = seen.points().find(|(batch, _)| *batch > low);
    let half = seen.points().rfind(|(batch, _)| *batch <= low / 2);
    let smallest = seen.points().find(|(batch, _)| *batch < low);
    above.or(half).or(smallest)
}

/// What the larger batch of two reserves more than the smaller; nothing where that is less.
fn grown(one: (u64, u64), other: (u64, u64)) -> u64 {
    let (smaller, larger) = if one.0 < other.0 {
        (one, other)
    } else {
        (other, one)
    };
    larger.1.saturating_sub(smaller.1)
}

/// `a * b / c`, without overflow.
fn divided(a: u64, b: u64, c: u64) -> u64 {
    let quotient = u128::from(a) * u128::from(b) / u128::from(c.max(1));
    u64::try_from(quotient).unwrap_or(u64::MAX)
}
