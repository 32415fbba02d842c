//! How fast batches and variants are: which is the smallest that is fast, and which are not beaten in everything.

/// The share of the best speed that is enough: beyond it, a larger batch costs memory and changes the training for little.
pub const ENOUGH: f64 = 0.95;

/// Most batches that a curve is looked at in.
const MOST_LOOKED_AT: u32 = 64;

/// The smallest batch of those up to `largest` whose speed is at least [`ENOUGH`] of the best, and that speed in samples a second; `None` where
/// nothing fits or nothing is known.
///
/// The curve is looked at in powers of two and in `largest`, then between the last that is too slow and the first that is fast enough. Curves
/// rise, but for steps where kernels change; a knee between two such steps may be missed.
pub fn knee(largest: u64, speed: impl Fn(u64) -> Option<f64>) -> Option<(u64, f64)> {
    if largest == 0 {
        return None;
    }
    let powers = (0..MOST_LOOKED_AT).map_while(|power| 1_u64.checked_shl(power));
    let mut batches: Vec<u64> = powers.take_while(|batch| *batch < largest).collect();
    batches.push(largest);
    let curve = batches.iter().map(|batch| Some((*batch, speed(*batch)?)));
    let curve: Vec<(u64, f64)> = curve.collect::<Option<_>>()?;
    let best = curve.iter().map(|(_, speed)| *speed).fold(0.0, f64::max);
    let enough = ENOUGH * best;
    let first = curve.iter().position(|(_, speed)| *speed >= enough)?;
    let mut found = curve[first];
    let mut slow = first.checked_sub(1).map_or(0, |before| curve[before].0);
    while found.0 - slow > 1 {
        let middle = slow + (found.0 - slow) / 2;
        let at = speed(middle)?;
        if at >= enough {
            found = (middle, at);
        } else {
            slow = middle;
        }
    }
    Some(found)
}

/// Which of these no other beats: none has both a larger batch and more speed, or as much of one and more of the other. What
/// does not fit, a batch of zero, and what has no speed is beaten by everything.
pub fn unbeaten(variants: &[(u64, Option<f64>)]) -> Vec<bool> {
    let beats = |(batch, speed): (u64, f64), (other, slower): (u64, f64)| {
        batch >= other && speed >= slower && (batch > other || speed > slower)
    };
    let known =
        |(batch, speed): &(u64, Option<f64>)| Some((*batch, (*speed)?)).filter(|_| *batch > 0);
    let is_unbeaten = |one: &(u64, Option<f64>)| {
        known(one).is_some_and(|one| {
            !variants
                .iter()
                .filter_map(known)
                .any(|other| beats(other, one))
        })
    };
    variants.iter().map(is_unbeaten).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of a fixed time, and so much for each sample.
    fn speed(batch: u64) -> f64 {
        let batch = f64::from(u32::try_from(batch).unwrap());
        batch / (0.010 + 0.001 * batch)
    }

    #[test]
    fn the_knee_is_the_smallest_batch_that_is_fast_enough() {
        let (batch, found) = knee(1000, |batch| Some(speed(batch))).unwrap();

        let enough = ENOUGH * speed(1000);
        assert!(found >= enough);
        assert!(speed(batch - 1) < enough);
    }

    #[test]
    fn there_is_a_knee_where_one_batch_fits_and_none_where_nothing_does() {
        assert_eq!(
            knee(1, |batch| Some(speed(batch))).map(|(batch, _)| batch),
            Some(1)
        );
        assert_eq!(knee(0, |batch| Some(speed(batch))), None);
        assert_eq!(knee(8, |_| None), None);
    }

    #[test]
    fn a_curve_that_falls_at_its_end_has_its_knee_before() {
        let falling = |batch: u64| {
            Some(if batch > 96 {
                500.0
            } else {
                10.0 * f64::from(u32::try_from(batch).unwrap())
            })
        };

        let (batch, _) = knee(100, falling).unwrap();

        assert!((60..=64).contains(&batch), "{batch}");
    }

    #[test]
    fn what_is_larger_and_faster_beats() {
        let variants = [
            (8, Some(100.0)),
            (16, Some(90.0)),
            (8, Some(90.0)),
            (0, Some(999.0)),
            (32, None),
            (16, Some(90.0)),
        ];

        assert_eq!(unbeaten(&variants), [true, true, false, false, false, true]);
    }
}
