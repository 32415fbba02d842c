//! Which of several variants to recommend.

use std::cmp::Ordering;

/// What a variant is judged by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Its recommended micro-batch; 0 when nothing fits.
    pub micro_batch: u64,
    /// Its measured speed, where it ran.
    pub samples_per_second: Option<f64>,
}

/// The order of the variants, best first, as positions in `standings`.
///
/// Those that ran come first, by speed; then those that did not, by micro-batch, which is all that is
/// known of them; last those that do not fit. Ties keep their order, so that of the request.
pub fn rank(standings: &[Standing]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..standings.len()).collect();
    order.sort_by(|a, b| better_first(&standings[*a], &standings[*b]));
    order
}

fn better_first(a: &Standing, b: &Standing) -> Ordering {
    let fits = |standing: &Standing| standing.micro_batch > 0;
    let speed = |standing: &Standing| standing.samples_per_second.unwrap_or(f64::NEG_INFINITY);
    fits(b)
        .cmp(&fits(a))
        .then(speed(b).total_cmp(&speed(a)))
        .then(b.micro_batch.cmp(&a.micro_batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_then_micro_batch_then_what_does_not_fit() {
        let standing = |micro_batch, samples_per_second| Standing {
            micro_batch,
            samples_per_second,
        };

        let order = rank(&[
            standing(0, None),
            standing(64, None),
            standing(128, None),
            standing(32, Some(900.0)),
            standing(256, Some(300.0)),
        ]);

        assert_eq!(order, [3, 4, 2, 1, 0]);
    }
}
