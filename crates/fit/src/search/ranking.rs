//! Which of several variants to recommend: see Note [Ranking].

use std::cmp::Ordering;

/// What a variant is judged by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankKey {
    /// Variants are compared within a group alone; the group with the lowest number comes first, whatever is in it.
    pub group: usize,
    /// Samples of its recommended micro-step, over all GPUs that train together; 0 when nothing fits.
    pub at_once: u64,
    /// How many samples its optimizer step lacks of the target; 0 without one.
    pub shortfall: u64,
    /// The share of the forward pass that it computes twice, from 0 to 1.
    pub recomputes: f64,
    /// Its measured speed, where it ran.
    pub samples_per_second: Option<f64>,
}

/// The order of the variants, best first, as positions in `keys`. Ties keep their order, so that of the request.
pub fn rank(keys: &[RankKey]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    crate::order::by(&mut order, |a, b| better_first(&keys[*a], &keys[*b]));
    order
}

fn better_first(a: &RankKey, b: &RankKey) -> Ordering {
    let fits = |standing: &RankKey| standing.at_once > 0;
    let speed = |standing: &RankKey| standing.samples_per_second.unwrap_or(f64::NEG_INFINITY);
    a.group
        .cmp(&b.group)
        .then(fits(b).cmp(&fits(a)))
        .then(a.shortfall.cmp(&b.shortfall))
        .then(speed(b).total_cmp(&speed(a)))
        .then(a.recomputes.total_cmp(&b.recomputes))
        .then(b.at_once.cmp(&a.at_once))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that fits, without a target, and recomputes nothing.
    fn plain(at_once: u64) -> RankKey {
        RankKey {
            group: 0,
            at_once,
            shortfall: 0,
            recomputes: 0.0,
            samples_per_second: None,
        }
    }

    fn recomputing(recomputes: f64, at_once: u64) -> RankKey {
        RankKey {
            recomputes,
            ..plain(at_once)
        }
    }

    fn short(shortfall: u64, standing: RankKey) -> RankKey {
        RankKey {
            shortfall,
            ..standing
        }
    }

    fn fast(samples_per_second: f64, standing: RankKey) -> RankKey {
        RankKey {
            samples_per_second: Some(samples_per_second),
            ..standing
        }
    }

    fn in_group(group: usize, standing: RankKey) -> RankKey {
        RankKey { group, ..standing }
    }

    #[test]
    fn the_better_one_comes_first_whichever_was_asked_for_first() {
        #[rustfmt::skip] // A row a line.
        let table = [
            ("what fits before what does not", plain(1), plain(0)),
            ("the larger micro-batch", plain(64), plain(32)),
            ("without recomputation, though it would gain", plain(20), recomputing(0.97, 64)),
            ("less recomputation", recomputing(0.5, 30), recomputing(0.97, 64)),
            ("the larger micro-batch among those that recompute as much", recomputing(0.97, 64), recomputing(0.97, 48)),
            ("recomputation where nothing else fits", recomputing(0.97, 1), plain(0)),
            ("recomputation where all else stops short of the target", recomputing(0.97, 8), short(24, plain(4))),
            ("what comes closer to the target", short(1, plain(9)), short(2, plain(99))),
            ("what was measured, before what was not", fast(1.0, plain(1)), plain(64)),
            ("the measured speed, whatever is recomputed", fast(900.0, recomputing(0.97, 64)), fast(800.0, plain(16))),
            ("the target before speed", fast(800.0, plain(16)), short(1, fast(900.0, plain(15)))),
            ("the first group, even where nothing of it fits", in_group(0, plain(0)), in_group(1, fast(900.0, plain(64)))),
        ];
        for (why, better, worse) in table {
            assert_eq!(rank(&[better, worse]), [0, 1], "{why}");
            assert_eq!(rank(&[worse, better]), [1, 0], "{why}");
        }
    }

    #[test]
    fn equals_keep_the_order_of_the_request() {
        let same = short(3, recomputing(0.5, 7));

        assert_eq!(rank(&[same, plain(7), same, plain(7)]), [1, 3, 0, 2]);
    }
}
