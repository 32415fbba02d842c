//! How a size depends on the batch: what a few recorded sizes say about all others.

/// Sizes that are rounded are rounded to one of these, in bytes; the allocator itself rounds to 512.
const ROUNDED_TO: [u64; 9] = [512, 256, 128, 64, 32, 16, 8, 4, 2];

/// A size as a function of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// The same at every batch.
    Constant(u64),
    /// `per_sample * batch + constant`.
    Affine {
        /// Bytes for each sample.
        per_sample: u64,
        /// Bytes beside them.
        constant: i128,
    },
    /// `per_square * batch * batch + per_sample * batch`: what compares all samples with each other.
    Quadratic {
        /// Bytes for each pair of samples.
        per_square: u64,
        /// Bytes for each sample.
        per_sample: u64,
    },
    /// `per_sample * batch`, rounded up to a multiple.
    Rounded {
        /// Bytes for each sample.
        per_sample: u64,
        /// What it is rounded up to.
        to: u64,
    },
    /// A line through a recorded size, with a slope of `rise / run` bytes a sample.
    Line {
        /// The batch of the recorded size.
        batch: u64,
        /// The recorded size.
        bytes: u64,
        /// Bytes.
        rise: u64,
        /// Samples.
        run: u64,
    },
}

/// How a form was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Evidence {
    /// All recorded sizes are of the form, in whole bytes, and there are more of them than it has parameters.
    Solved,
    /// The form has as many parameters as there are recorded sizes, or does not pass through all of them.
    Extrapolated,
}

/// A recorded size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// The batch of the recording.
    pub batch: u64,
    /// Bytes asked for.
    pub bytes: u64,
}

/// What becomes of memory of which only one size is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alone {
    /// It is taken to be the same at every batch: parameters and states stay.
    Stays,
    /// It is taken to grow with the batch.
    Grows,
}

impl Form {
    /// Bytes at a batch. Saturates: what is past `u64` fits nowhere anyway.
    pub fn at(self, batch: u64) -> u64 {
        match self {
            Form::Constant(bytes) => bytes,
            Form::Affine {
                per_sample,
                constant,
            } => {
                let samples = i128::from(per_sample).saturating_mul(i128::from(batch));
                let bytes = samples.saturating_add(constant);
                u64::try_from(bytes.max(0)).unwrap_or(u64::MAX)
            }
            Form::Quadratic {
                per_square,
                per_sample,
            } => per_square
                .saturating_mul(batch)
                .saturating_add(per_sample)
                .saturating_mul(batch),
            Form::Rounded { per_sample, to } => {
                let bytes = per_sample.saturating_mul(batch);
                bytes.checked_next_multiple_of(to).unwrap_or(u64::MAX)
            }
            Form::Line {
                batch: from,
                bytes,
                rise,
                run,
            } => {
                let away = i128::from(batch) - i128::from(from);
                let more = away
                    .saturating_mul(i128::from(rise))
                    .div_euclid(i128::from(run.max(1)));
                u64::try_from(i128::from(bytes).saturating_add(more).max(0)).unwrap_or(u64::MAX)
            }
        }
    }

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Constant(_) => "constant",
            Form::Affine { constant: 0, .. } => "proportional",
            Form::Affine { .. } => "affine",
            Form::Quadratic { .. } => "quadratic",
            Form::Rounded { .. } => "rounded up",
            Form::Line { .. } => "line",
        }
    }
}

/// The form of recorded sizes, which are in the order of their batches and at least one.
pub(super) fn solve(points: &[Point], alone: Alone) -> (Form, Evidence) {
    let last = points[points.len() - 1];
    if points.len() == 1 {
        return (single(last, alone), Evidence::Extrapolated);
    }
    if points.iter().all(|point| point.bytes == last.bytes) {
        return (Form::Constant(last.bytes), Evidence::Solved);
    }
    exact(points).unwrap_or_else(|| (fallback(points), Evidence::Extrapolated))
}

fn single(point: Point, alone: Alone) -> Form {
    match alone {
        Alone::Stays => Form::Constant(point.bytes),
        Alone::Grows => Form::Line {
            batch: point.batch,
            bytes: point.bytes,
            rise: point.bytes,
            run: point.batch,
        },
    }
}

/// A form in whole bytes that all sizes are of.
fn exact(points: &[Point]) -> Option<(Form, Evidence)> {
    let last = points[points.len() - 1];
    let holds = |form: Form| {
        points
            .iter()
            .all(|point| form.at(point.batch) == point.bytes)
    };
    let more_than = |parameters: usize| {
        if points.len() > parameters {
            Evidence::Solved
        } else {
            Evidence::Extrapolated
        }
    };
    let affine = affine(points[points.len() - 2], last).filter(|form| holds(*form));
    // Through two sizes there always is a line; one that says that little takes less than nothing is not it.
    let is_chance = |form: &Form| {
        points.len() == 2 && matches!(form, Form::Affine { constant, .. } if *constant < 0)
    };
    if let Some(form) = affine.filter(|form| !is_chance(form)) {
        // A line through two sizes always exists; one through zero is hardly chance.
        let parameters = if matches!(form, Form::Affine { constant: 0, .. }) {
            1
        } else {
            2
        };
        return Some((form, more_than(parameters)));
    }
    let rounded = ROUNDED_TO.iter().find_map(|to| rounded(points, *to));
    if let Some(form) = rounded.filter(|form| holds(*form)) {
        return Some((form, Evidence::Solved));
    }
    let quadratic = quadratic(points[0], last).filter(|form| holds(*form))?;
    Some((quadratic, more_than(2)))
}

fn affine(a: Point, b: Point) -> Option<Form> {
    let (rise, run) = (b.bytes.checked_sub(a.bytes)?, b.batch - a.batch);
    let per_sample = rise.is_multiple_of(run).then_some(rise / run)?;
    let constant = i128::from(b.bytes) - i128::from(per_sample) * i128::from(b.batch);
    Some(Form::Affine {
        per_sample,
        constant,
    })
}

/// The number of bytes per sample with most factors of two that fits, since lengths are round numbers.
fn rounded(points: &[Point], to: u64) -> Option<Form> {
    if points.iter().any(|point| !point.bytes.is_multiple_of(to)) {
        return None;
    }
    let above = |point: &Point| point.bytes.saturating_sub(to) / point.batch + 1;
    let low = points.iter().map(above).max()?;
    let high = points.iter().map(|point| point.bytes / point.batch).min()?;
    if low > high {
        return None;
    }
    let roundest = |shift: u32| {
        let candidate = low.checked_next_multiple_of(1 << shift)?;
        (candidate <= high).then_some(candidate)
    };
    let per_sample = (0..u64::BITS).rev().find_map(roundest)?;
    Some(Form::Rounded { per_sample, to })
}

fn quadratic(a: Point, b: Point) -> Option<Form> {
    let each = |point: Point| {
        point
            .bytes
            .is_multiple_of(point.batch)
            .then(|| point.bytes / point.batch)
    };
    let (of_a, of_b) = (each(a)?, each(b)?);
    let (rise, run) = (of_b.checked_sub(of_a)?, b.batch - a.batch);
    let per_square = rise.is_multiple_of(run).then_some(rise / run)?;
    let per_sample = of_b.checked_sub(per_square.checked_mul(b.batch)?)?;
    Some(Form::Quadratic {
        per_square,
        per_sample,
    })
}

/// Sizes of no form. What stopped growing stays; a slope that was seen twice goes on; else the last slope does.
fn fallback(points: &[Point]) -> Form {
    let last = points[points.len() - 1];
    let slope = |pair: &[Point]| {
        let rise = pair[1].bytes.checked_sub(pair[0].bytes)?;
        Some((rise, pair[1].batch - pair[0].batch))
    };
    let slopes: Vec<_> = points.windows(2).filter_map(slope).collect();
    let same = |a: &(u64, u64), b: &(u64, u64)| {
        u128::from(a.0) * u128::from(b.1) == u128::from(b.0) * u128::from(a.1)
    };
    let is_seen_twice =
        |slope: &&(u64, u64)| slopes.iter().filter(|other| same(slope, other)).count() > 1;
    let falls = points
        .windows(2)
        .next_back()
        .is_some_and(|pair| pair[1].bytes <= pair[0].bytes);
    if falls {
        return Form::Constant(last.bytes);
    }
    let (rise, run) = match (slopes.iter().rev().find(is_seen_twice), slopes.last()) {
        (Some(twice), _) => *twice,
        (None, Some(latest)) => *latest,
        (None, None) => return Form::Constant(last.bytes),
    };
    // Nothing that takes more for a larger batch takes more than in proportion, in the long run.
    let is_steep =
        u128::from(rise) * u128::from(last.batch) > u128::from(last.bytes) * u128::from(run);
    let (rise, run) = if is_steep {
        (last.bytes, last.batch)
    } else {
        (rise, run)
    };
    Form::Line {
        batch: last.batch,
        bytes: last.bytes,
        rise,
        run,
    }
}

/// Whether memory of one size at one batch may be what had another size at a larger batch: the same, or more by at
/// most as much as the batch, or its square.
pub(super) fn may_be_same(small: Point, large: Point) -> bool {
    /// What rounding may add.
    const ROUNDING: u128 = 512;
    if small.bytes == large.bytes {
        return true;
    }
    if large.bytes < small.bytes {
        return false;
    }
    let [a, b] = [small.batch, large.batch].map(u128::from);
    let [x, y] = [small.bytes, large.bytes].map(u128::from);
    let square = |size: u128, batch: u128| size.checked_mul(batch)?.checked_mul(batch);
    let is_square = square(y, a).is_some_and(|area| Some(area) == square(x, b));
    y * a <= x * b + ROUNDING * a || is_square
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes at batches.
    type Sizes = &'static [(u64, u64)];

    fn points(sizes: &[(u64, u64)]) -> Vec<Point> {
        let point = |&(batch, bytes): &(u64, u64)| Point { batch, bytes };
        sizes.iter().map(point).collect()
    }

    fn form(sizes: &[(u64, u64)]) -> (Form, Evidence) {
        solve(&points(sizes), Alone::Grows)
    }

    #[test]
    fn forms_are_found_in_whole_bytes() {
        let affine = |per_sample, constant| Form::Affine {
            per_sample,
            constant,
        };

        let quadratic = Form::Quadratic {
            per_square: 4,
            per_sample: 8,
        };
        let rounded = Form::Rounded {
            per_sample: 160,
            to: 512,
        };
        let rows: [(Sizes, Form, Evidence); 7] = [
            (&[(2, 96), (4, 96)], Form::Constant(96), Evidence::Solved),
            (&[(2, 96), (4, 192)], affine(48, 0), Evidence::Solved),
            (&[(2, 100), (4, 196)], affine(48, 4), Evidence::Extrapolated),
            (
                &[(2, 100), (4, 196), (7, 340)],
                affine(48, 4),
                Evidence::Solved,
            ),
            (
                &[(2, 92), (4, 188), (7, 332)],
                affine(48, -4),
                Evidence::Solved,
            ),
            (&[(2, 32), (4, 96), (7, 252)], quadratic, Evidence::Solved),
            (&[(3, 512), (5, 1024), (8, 1536)], rounded, Evidence::Solved),
        ];
        for (sizes, expected, evidence) in rows {
            assert_eq!(form(sizes), (expected, evidence), "{sizes:?}");
        }
    }

    #[test]
    fn what_is_of_no_form_goes_on_as_it_last_did() {
        // Scratch memory of attention, whose number of splits has an upper bound.
        let plateau = [(18, 88_080_384), (32, 138_412_032), (72, 138_412_032)];
        assert_eq!(form(&plateau).0.at(315), 138_412_032);
        // The same slope twice, and then more at once.
        let jump = [
            (18, 41_889_936),
            (32, 57_344_144),
            (36, 61_759_632),
            (72, 107_790_480),
        ];
        assert_eq!(form(&jump).0.at(73), 107_790_480 + 1_103_872);
        assert_eq!(form(&[(2, 10), (4, 16), (8, 10)]).0.at(100), 10);
        assert_eq!(form(&[(2, 10), (4, 70)]).0.at(8), 140);
    }

    #[test]
    fn one_size_grows_or_stays() {
        let one = points(&[(8, 800)]);

        assert_eq!(solve(&one, Alone::Grows).0.at(12), 1200);
        assert_eq!(solve(&one, Alone::Stays).0.at(12), 800);
    }

    #[test]
    fn absurd_sizes_saturate() {
        let (form, _) = form(&[(1, u64::MAX / 4), (2, u64::MAX / 2)]);

        assert_eq!(form.at(u64::MAX), u64::MAX);
    }
}
