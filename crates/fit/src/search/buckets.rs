//! Samples of different lengths: how many of them make a batch, and which are put together.

use std::ops::Range;

/// A length: its tokens, the samples that have it, and the largest batch of them that is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthBatch {
    /// Tokens of a sample, or pixels; at least one.
    pub units: u64,
    /// Samples.
    pub count: u64,
    /// The largest safe batch; 0 where nothing fits.
    pub batch: u64,
}

/// The most tokens of a batch such that as many samples as they hold, whole ones, are at no length more than are safe there.
/// `None` where a length has no safe batch.
///
/// `budget / units` samples of a length are at most `batch` as long as the budget is below `(batch + 1) * units`.
pub fn budget(lengths: &[LengthBatch]) -> Option<u64> {
    let below = |one: &LengthBatch| {
        let samples = (one.batch > 0).then(|| one.batch.saturating_add(1))?;
        Some(samples.saturating_mul(one.units) - 1)
    };
    let all: Option<Vec<u64>> = lengths.iter().map(below).collect();
    all?.into_iter().min()
}

/// Puts lengths, the shortest first, into at most `most` buckets whose samples are padded to the longest of each, such that all
/// samples together are padded least.
///
/// Exact, by dynamic programming over where the last bucket begins: `most` times the square of the number of lengths.
pub fn buckets(lengths: &[LengthBatch], most: usize) -> Vec<Range<usize>> {
    let count = lengths.len();
    let most = most.clamp(1, count.max(1));
    // Samples before each length.
    let mut samples = vec![0_u128; count + 1];
    for (index, one) in lengths.iter().enumerate() {
        samples[index + 1] = samples[index] + u128::from(one.count);
    }
    let padded = |from: usize, to: usize| {
        (samples[to] - samples[from]).saturating_mul(u128::from(lengths[to - 1].units))
    };
    // Tokens of the first so many lengths, and where the last of their buckets begins.
    let mut before: Vec<u128> = vec![u128::MAX; count + 1];
    before[0] = 0;
    let mut begins = Vec::new();
    for _ in 0..most {
        // Nothing in no bucket, and then each further length in the best last one.
        let mut best = vec![0];
        let mut begin = vec![0];
        for to in 1..=count {
            let ways = before[..to].iter().enumerate();
            let tokens = ways.map(|(from, tokens)| (tokens.saturating_add(padded(from, to)), from));
            let (tokens, from) = tokens.min().unwrap_or((u128::MAX, 0));
            best.push(tokens);
            begin.push(from);
        }
        begins.push(begin);
        before = best;
    }
    let mut found = Vec::new();
    let mut to = count;
    for begin in begins.iter().rev() {
        if to == 0 {
            break;
        }
        found.push(begin[to]..to);
        to = begin[to];
    }
    found.reverse();
    found
}

/// What of the tokens of these samples is padding, from 0 to 1, where they are padded to the longest of them.
pub fn padding(lengths: &[LengthBatch]) -> f64 {
    let longest = lengths.iter().map(|one| one.units).max().unwrap_or(0);
    let sum = |of: &dyn Fn(&LengthBatch) -> f64| lengths.iter().map(of).sum::<f64>();
    let real = sum(&|one| one.units as f64 * one.count as f64);
    let padded = sum(&|one| longest as f64 * one.count as f64);
    if padded == 0.0 {
        return 0.0;
    }
    1.0 - real / padded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(units: u64, count: u64, batch: u64) -> LengthBatch {
        LengthBatch {
            units,
            count,
            batch,
        }
    }

    #[test]
    fn a_budget_holds_no_more_samples_than_are_safe_at_any_length() {
        let lengths = [of(64, 1, 240), of(128, 1, 119), of(512, 1, 30)];

        // 120 of 128 would be one too many.
        assert_eq!(budget(&lengths), Some(120 * 128 - 1));
        assert_eq!(budget(&[of(64, 1, 4), of(128, 1, 0)]), None);
        assert_eq!(budget(&[]), None);
    }

    #[test]
    fn padding_is_what_is_not_real() {
        assert!((padding(&[of(1, 1, 1), of(3, 1, 1)]) - 1.0 / 3.0).abs() < 1e-12);
        assert!(padding(&[of(7, 3, 1)]).abs() < 1e-12);
    }

    fn tokens(lengths: &[LengthBatch], buckets: &[Range<usize>]) -> u64 {
        let of_one = |range: &Range<usize>| {
            let bucket = &lengths[range.clone()];
            let samples: u64 = bucket.iter().map(|one| one.count).sum();
            samples * bucket.last().map_or(0, |one| one.units)
        };
        buckets.iter().map(of_one).sum()
    }

    /// The least that any way of cutting comes to.
    fn least(lengths: &[LengthBatch], most: usize) -> u64 {
        let cuts = lengths.len() - 1;
        let ways = (0..1_u32 << cuts).filter(|way| way.count_ones() < u32::try_from(most).unwrap());
        let buckets = ways.map(|way| {
            let mut begin = 0;
            let mut buckets = Vec::new();
            for cut in 0..cuts {
                if (way >> cut) & 1 == 1 {
                    buckets.push(begin..cut + 1);
                    begin = cut + 1;
                }
            }
            buckets.push(begin..lengths.len());
            tokens(lengths, &buckets)
        });
        buckets.min().unwrap()
    }

    proptest! {
        /// Buckets follow each other, hold every length once, and no other way of cutting pads less.
        #[test]
        fn buckets_pad_least(
            lengths in prop::collection::btree_map(1_u64..1000, 1_u64..100, 1..9),
            most in 1_usize..6,
        ) {
            let lengths: Vec<LengthBatch> =
                lengths.into_iter().map(|(units, count)| of(units, count, 1)).collect();

            let found = buckets(&lengths, most);

            prop_assert!(found.len() <= most);
            prop_assert_eq!(found.first().unwrap().start, 0);
            prop_assert_eq!(found.last().unwrap().end, lengths.len());
            prop_assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(found.iter().all(|bucket| !bucket.is_empty()));
            prop_assert_eq!(tokens(&lengths, &found), least(&lengths, most));
        }

        /// One token more would be too many at some length.
        #[test]
        fn a_budget_is_the_largest(lengths in prop::collection::vec((1_u64..1000, 1_u64..500), 1..9)) {
            let lengths: Vec<LengthBatch> =
                lengths.into_iter().map(|(units, batch)| of(units, 1, batch)).collect();

            let found = budget(&lengths).unwrap();

            let is_safe = |budget: u64| lengths.iter().all(|one| budget / one.units <= one.batch);
            prop_assert!(is_safe(found) && !is_safe(found + 1));
        }
    }
}
