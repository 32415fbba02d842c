//! Of batches that cost next to nothing to ask about the largest that meets a goal (Note [One tree for every limit]) and the smallest that is
//! fast; of variants the better ones (Note [Ranking]).

use std::cmp::Ordering;

use super::state::MAX_BATCH;

/// Where the rungs of each bisection lie within an octave, in thousandths of a power of two: fourth roots of two.
const RUNGS: [u64; 4] = [1000, 1189, 1414, 1682];

/// How many bisections find an edge: each costs about as many probes as the edge has binary digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bisections {
    /// One, where a probe takes tenths of a second.
    One,
    /// Four, whose second largest counts: three, where the largest two of them agree.
    Four,
}

/// Below so many samples a batch that does not meet the goal is passed over where the next one does: a sample is several percent there,
/// and skipping single holes leaves the edge as monotone as it was.
const HOLES_BELOW: u64 = 64;

/// The largest batch of at most `ceiling` that `meets` a goal, and the next one does not; 0 where none was found.
///
/// Which batches are asked about depends on earlier answers and on the ceiling alone. So where whatever meets the goal under one
/// limit meets it under a larger one too, a larger limit never ends at a smaller batch, holes or not.
///
/// # Errors
///
/// The first that `meets` returns.
pub fn edge<E>(
    ceiling: u64,
    bisections: Bisections,
    mut meets: impl FnMut(u64) -> Result<bool, E>,
) -> Result<u64, E> {
    let ceiling = ceiling.min(MAX_BATCH);
    let mut meets =
        |batch| Ok(meets(batch)? || (batch < HOLES_BELOW.min(ceiling) && meets(batch + 1)?));
    if ceiling == 0 || meets(ceiling)? {
        return Ok(ceiling);
    }
    let mut largest = bisection(RUNGS[0], ceiling, &mut meets)?;
    if bisections == Bisections::One {
        return Ok(largest);
    }
    let mut second = 0;
    for (index, thousandths) in RUNGS.iter().enumerate().skip(1) {
        let found = bisection(*thousandths, ceiling, &mut meets)?;
        second = second.max(found.min(largest));
        largest = largest.max(found);
        // Whatever the last one finds, this is the second largest.
        if index + 2 == RUNGS.len() && second == largest {
            break;
        }
    }
    Ok(second)
}

/// From the highest rung below the ceiling, which does not meet the goal, down to one that does; from there by halves.
fn bisection<E>(
    thousandths: u64,
    ceiling: u64,
    meets: &mut impl FnMut(u64) -> Result<bool, E>,
) -> Result<u64, E> {
    let (mut low, mut high) = (0, ceiling);
    for octave in (0..=MAX_BATCH.ilog2()).rev() {
        let rung = (thousandths << octave) / 1000;
        if rung >= high {
            continue;
        }
        if meets(rung)? {
            low = rung;
            break;
        }
        high = rung;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if meets(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// The share of the best speed that is enough: beyond it, a larger batch costs memory and changes the training for little.
pub const ENOUGH: f64 = 0.95;

/// How closely a curve is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplingDensity {
    /// Down to batches that are half as fast as the best, and to the very batch: where a speed costs next to nothing.
    Closely,
    /// Down to the first that is too slow, and to a quarter: where each speed is a training run.
    Sparingly,
}

impl SamplingDensity {
    /// Batches below one with less than this share of the best speed are not looked at.
    fn gives_up(self) -> f64 {
        match self {
            SamplingDensity::Closely => 0.5,
            SamplingDensity::Sparingly => ENOUGH,
        }
    }

    /// How near a batch that is fast enough may be to one that is not.
    fn grain(self, batch: u64) -> u64 {
        match self {
            SamplingDensity::Closely => 1,
            SamplingDensity::Sparingly => (batch / 4).max(1),
        }
    }
}

/// The smallest batch that is fast enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Knee {
    /// The batch.
    pub batch: u64,
    /// Its share of the best speed that was seen.
    pub share: f64,
}

/// The smallest batch of those up to `largest` whose speed is at least [`ENOUGH`] of the best; `None` where nothing fits or
/// `speed`, in samples a second, is not known.
///
/// The curve is looked at in `largest` and the powers of two below it, then between the last that is too slow and the first that is
/// fast enough. Curves rise, but for steps where kernels change; a knee between two such steps may be missed.
pub fn knee<E>(
    largest: u64,
    look: SamplingDensity,
    mut speed: impl FnMut(u64) -> Result<Option<f64>, E>,
) -> Result<Option<Knee>, E> {
    let powers = (0..u64::BITS).map(|power| 1 << power);
    let mut batches: Vec<u64> = powers.take_while(|batch| *batch < largest).collect();
    batches.extend((largest > 0).then_some(largest));
    let Some(curve) = curve(&batches, look, &mut speed)? else {
        return Ok(None);
    };
    let Some(first) = enough(&curve) else {
        return Ok(None);
    };
    let best = best(&curve);
    let mut found = curve[first];
    // The first that was looked at is a batch of one where that is fast enough.
    let mut slow = first.checked_sub(1).map_or(0, |before| curve[before].0);
    while found.0 - slow > look.grain(found.0) {
        let middle = slow + (found.0 - slow) / 2;
        let Some(at) = speed(middle)? else {
            return Ok(None);
        };
        if at >= ENOUGH * best {
            found = (middle, at);
        } else {
            slow = middle;
        }
    }
    Ok(Some(Knee {
        batch: found.0,
        share: found.1 / best,
    }))
}

/// The first of these batches, which rise, whose speed is at least [`ENOUGH`] of the best of all; `None` where there is none or a
/// speed is not known.
pub fn smallest_enough<E>(
    batches: &[u64],
    look: SamplingDensity,
    mut speed: impl FnMut(u64) -> Result<Option<f64>, E>,
) -> Result<Option<Knee>, E> {
    let curve = curve(batches, look, &mut speed)?.unwrap_or_default();
    let best = best(&curve);
    Ok(enough(&curve).map(|first| Knee {
        batch: curve[first].0,
        share: curve[first].1 / best,
    }))
}

/// The speeds of batches, which rise, from the largest down until one is so slow that none below it matters.
fn curve<E>(
    batches: &[u64],
    look: SamplingDensity,
    speed: &mut impl FnMut(u64) -> Result<Option<f64>, E>,
) -> Result<Option<Vec<(u64, f64)>>, E> {
    let (mut curve, mut best) = (Vec::new(), 0.0_f64);
    for batch in batches.iter().rev() {
        let Some(at) = speed(*batch)? else {
            return Ok(None);
        };
        curve.push((*batch, at));
        best = best.max(at);
        if at < look.gives_up() * best {
            break;
        }
    }
    curve.reverse();
    Ok(Some(curve))
}

fn best(curve: &[(u64, f64)]) -> f64 {
    curve.iter().map(|(_, speed)| *speed).fold(0.0, f64::max)
}

/// The place of the first that is fast enough.
fn enough(curve: &[(u64, f64)]) -> Option<usize> {
    let enough = ENOUGH * best(curve);
    curve
        .iter()
        .position(|(_, speed)| *speed >= enough && *speed > 0.0)
}

/// Which of these no other beats, each a batch and its samples a second: none has both a larger batch and more speed, or as much of
/// one and more of the other. `None` for what does not fit, a batch of zero, and what has no speed: they beat nothing either.
pub fn unbeaten(variants: &[(u64, Option<f64>)]) -> Vec<Option<bool>> {
    let beats = |(batch, speed): (u64, f64), (other, slower): (u64, f64)| {
        batch >= other && speed >= slower && (batch > other || speed > slower)
    };
    let known =
        |(batch, speed): &(u64, Option<f64>)| Some((*batch, (*speed)?)).filter(|_| *batch > 0);
    let is_unbeaten = |one: &(u64, Option<f64>)| {
        let one = known(one)?;
        let mut others = variants.iter().filter_map(known);
        Some(!others.any(|other| beats(other, one)))
    };
    variants.iter().map(is_unbeaten).collect()
}

/// What a variant is judged by.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
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
    use std::convert::Infallible;

    use super::*;

    fn float(batch: u64) -> f64 {
        f64::from(u32::try_from(batch).unwrap())
    }

    /// A step of a fixed time, and so much for each sample.
    fn rising(batch: u64) -> Option<f64> {
        (batch > 0).then(|| float(batch) / (0.010 + 0.001 * float(batch)))
    }

    fn best_batch(
        largest: u64,
        look: SamplingDensity,
        speed: impl Fn(u64) -> Option<f64>,
    ) -> (Option<Knee>, usize) {
        let mut asked = 0;
        let knee = knee(largest, look, |batch| {
            asked += 1;
            Ok::<_, Infallible>(speed(batch))
        });
        (knee.unwrap(), asked)
    }

    #[test]
    fn the_knee_is_the_smallest_batch_that_is_fast_enough() {
        let (knee, _) = best_batch(1000, SamplingDensity::Closely, rising);
        let knee = knee.unwrap();

        let share = |batch| rising(batch).unwrap() / rising(1000).unwrap();
        assert!(share(knee.batch) >= ENOUGH && share(knee.batch - 1) < ENOUGH);
        assert!((knee.share - share(knee.batch)).abs() < 1e-9);
    }

    #[test]
    fn where_each_speed_is_a_training_run_there_are_few_and_the_knee_is_near() {
        let (exact, _) = best_batch(1000, SamplingDensity::Closely, rising);
        let (near, asked) = best_batch(1000, SamplingDensity::Sparingly, rising);
        let (exact, near) = (exact.unwrap(), near.unwrap());

        assert!(asked <= 8, "{asked}");
        assert!(near.share >= ENOUGH);
        assert!(
            (exact.batch..=exact.batch * 4 / 3).contains(&near.batch),
            "{exact:?} {near:?}"
        );
    }

    #[test]
    fn there_is_a_knee_where_one_batch_fits_and_none_where_nothing_does_or_nothing_is_known() {
        for look in [SamplingDensity::Closely, SamplingDensity::Sparingly] {
            let at = |largest, speed: fn(u64) -> Option<f64>| {
                best_batch(largest, look, speed).0.map(|knee| knee.batch)
            };

            assert_eq!(at(1, rising), Some(1));
            assert_eq!(at(0, rising), None);
            assert_eq!(at(8, |_| None), None);
            assert_eq!(at(8, |_| Some(0.0)), None);
            // All are as fast: one sample will do.
            assert_eq!(at(100, |_| Some(7.0)), Some(1));
        }
    }

    #[test]
    fn a_curve_that_falls_at_its_end_has_its_knee_before() {
        let falling = |batch: u64| Some([10.0 * float(batch), 500.0][usize::from(batch > 96)]);

        let (knee, _) = best_batch(100, SamplingDensity::Closely, falling);

        assert!((60..=64).contains(&knee.unwrap().batch), "{knee:?}");
    }

    #[test]
    fn of_given_batches_the_first_that_is_fast_enough_is_taken() {
        let of = |batches: &[u64]| {
            let speed = |batch| Ok::<_, Infallible>(rising(batch));
            let knee = smallest_enough(batches, SamplingDensity::Closely, speed);
            knee.unwrap().map(|knee| knee.batch)
        };

        assert_eq!(of(&[1, 50, 100, 250, 500]), Some(250));
        assert_eq!(of(&[3]), Some(3));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn what_is_larger_and_faster_beats() {
        let at = |batch, speed| (batch, Some(speed));
        let (slow, fast) = (at(16, 90.0), at(8, 100.0));
        let variants = [fast, slow, at(8, 90.0), at(0, 999.0), (32, None), slow];

        let expected = [Some(true), Some(true), Some(false), None, None, Some(true)];
        assert_eq!(unbeaten(&variants), expected);
    }

    /// One that fits, without a target, and recomputes nothing.
    fn plain(at_once: u64) -> RankKey {
        RankKey {
            at_once,
            ..RankKey::default()
        }
    }

    fn recomputing(recomputes: f64, at_once: u64) -> RankKey {
        RankKey {
            recomputes,
            ..plain(at_once)
        }
    }

    fn short(shortfall: u64, mut standing: RankKey) -> RankKey {
        standing.shortfall = shortfall;
        standing
    }

    fn fast(samples_per_second: f64, mut standing: RankKey) -> RankKey {
        standing.samples_per_second = Some(samples_per_second);
        standing
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
