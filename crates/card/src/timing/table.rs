//! The measured kernels: how many times as long as the ceilings allow each took, by class and sizes.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

/// Most numbers that a class is interpolated by.
pub(super) const MOST_FEATURES: usize = 7;

/// How many of the nearest measurements count.
const NEIGHBOURS: usize = 16;

/// How far apart measurements still tell of each other, in the units of [`Features`]: factors of two.
const REACH: f64 = 6.0;

/// How much of the spread of measurements is chance: two at the same place differ by as much.
const CHANCE: f64 = 0.003;

/// How steep a trend is taken to be beside that spread, before any measurement is seen: it goes on where the measurements end.
const TREND: f64 = 0.1;

/// How far, as a logarithm, a kernel may lie outside of what its neighbours took.
const BEYOND: f64 = 0.3;

/// What was measured, by `tests/record/times.py` on an H200; the file says with which versions.
const MEASURED: &str = include_str!("h200.txt");

/// The card that it was measured on, as the driver names it.
pub(super) const MEASURED_ON: &str = "NVIDIA H200";

/// Measured kernels of all classes.
static TABLE: LazyLock<Table> = LazyLock::new(|| Table::of(MEASURED));

/// Sizes as they are compared: logarithms, each with the weight that its class gives it.
type Features = [f64; MOST_FEATURES];

/// Where a kernel was measured, and the logarithm of how many times as long as the ceilings allow it took.
type Point = (Features, f64);

/// The kernels of a class: read when first needed, since a model has few of all classes.
#[derive(Debug, Default)]
struct Class {
    weights: Features,
    lines: &'static str,
    points: OnceLock<Vec<Point>>,
}

/// Classes by name.
#[derive(Debug, Default)]
pub(super) struct Table {
    classes: BTreeMap<&'static str, Class>,
}

/// The measured kernels.
pub(super) fn measured() -> &'static Table {
    &TABLE
}

/// How much it counts when sizes differ by a factor of two: the side of a window and its stride choose the algorithm, all else
/// only how well it is used. Chosen so that each measured kernel is best predicted by the others.
fn weights(class: &str) -> Features {
    match class.split(' ').next() {
        Some("convolution") => [1.0, 1.0, 1.0, 1.0, 1.0, 4.0, 4.0],
        // Windows are few in the grid, and weigh less than is best there: those between them are not to be left alone with one.
        Some("depthwise") => [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0],
        Some("attention") => [1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0],
        _ => [1.0; MOST_FEATURES],
    }
}

impl Table {
    /// The classes in the text that `times.py pack` writes: what stands before the first is about all of them.
    fn of(text: &'static str) -> Table {
        let classes = text.split("\nclass ").skip(1);
        let classes = classes.filter_map(|class| {
            let (name, lines) = class.split_once('\n')?;
            let class = Class {
                weights: weights(name),
                lines,
                points: OnceLock::new(),
            };
            Some((name, class))
        });
        Table {
            classes: classes.collect(),
        }
    }

    /// Whether a class was measured.
    pub(super) fn knows(&self, class: &str) -> bool {
        self.classes.contains_key(class)
    }

    /// How many times as long as the ceilings allow a kernel of a class and these sizes takes; `None` for a class that was
    /// not measured.
    pub(super) fn ratio(&self, class: &str, features: &[f64]) -> Option<f64> {
        let class = self.classes.get(class)?;
        let at = place(features, &class.weights);
        predicted(&at, class.points().iter()).map(f64::exp)
    }
}

/// What measurements say of a place: by the nearest of them, as a logarithm. `None` without any.
fn predicted<'a>(at: &Features, points: impl Iterator<Item = &'a Point>) -> Option<f64> {
    let mut nearest: [(f64, Option<&Point>); NEIGHBOURS] = [(f64::INFINITY, None); NEIGHBOURS];
    for point in points {
        let distance = squared(at, &point.0);
        if distance < nearest[NEIGHBOURS - 1].0 {
            let place = nearest.partition_point(|(other, _)| *other <= distance);
            nearest[place..].rotate_right(1);
            nearest[place] = (distance, Some(point));
        }
    }
    let found: Vec<&Point> = nearest.iter().filter_map(|(_, point)| *point).collect();
    likeliest(at, &found)
}

/// What neighbours say of a place, by how alike places are expected to be (kriging with an unknown mean; Cressie, Statistics for
/// Spatial Data, 1993, 3.2): the mean of them all, and at the place as much of what they are off from it as they are close, where
/// neighbours that say the same thing count once. `None` without neighbours.
fn likeliest(at: &Features, neighbours: &[&Point]) -> Option<f64> {
    let (least, most) = neighbours.iter().fold(
        (f64::INFINITY, f64::NEG_INFINITY),
        |(least, most), (_, ratio)| (least.min(*ratio), most.max(*ratio)),
    );
    // The lower half of a symmetric matrix becomes its Cholesky factor, a row at a time, and with it what solves three equations:
    // for the ratios, for ones and for how alike each is to the place.
    let mut factor = [[0.0; NEIGHBOURS]; NEIGHBOURS];
    let mut solved = [[0.0; 3]; NEIGHBOURS];
    let [mut ones, mut ones_by_ratios] = [0.0; 2];
    for (row, (place, ratio)) in neighbours.iter().enumerate() {
        for (column, (other, _)) in neighbours[..row].iter().enumerate() {
            let left = alike(place, other, at) - dot(&factor[row], &factor[column], column);
            factor[row][column] = left / factor[column][column];
        }
        let own = 1.0 + TREND * squared(place, at) + CHANCE;
        let pivot = (own - dot(&factor[row], &factor[row], row))
            .max(CHANCE)
            .sqrt();
        factor[row][row] = pivot;
        let mut right = [*ratio, 1.0, closeness(squared(place, at))];
        for (column, known) in solved[..row].iter().enumerate() {
            for (entry, known) in right.iter_mut().zip(known) {
                *entry -= factor[row][column] * known;
            }
        }
        solved[row] = right.map(|entry| entry / pivot);
        ones += solved[row][1] * solved[row][1];
        ones_by_ratios += solved[row][1] * solved[row][0];
    }
    if neighbours.is_empty() {
        return None;
    }
    let mean = ones_by_ratios / ones;
    let off: f64 = solved[..neighbours.len()]
        .iter()
        .map(|[ratio, one, near]| near * (ratio - mean * one))
        .sum();
    Some((mean + off).clamp(least - BEYOND, most + BEYOND))
}

/// How much of their spread two places have in common: by their distance, and by the trend, as seen from where it is asked for.
fn alike(one: &Features, other: &Features, from: &Features) -> f64 {
    let sides = one.iter().zip(other).zip(from);
    let trend: f64 = sides.map(|((a, b), from)| (a - from) * (b - from)).sum();
    closeness(squared(one, other)) + TREND * trend
}

/// By the square of a distance: smooth, one at nothing (the Matern function of order 3/2).
fn closeness(squared: f64) -> f64 {
    let far = (3.0 * squared).sqrt() / REACH;
    (1.0 + far) * (-far).exp()
}

fn squared(one: &Features, other: &Features) -> f64 {
    let sides = one.iter().zip(other);
    sides.map(|(a, b)| (a - b) * (a - b)).sum()
}

fn dot(one: &[f64; NEIGHBOURS], other: &[f64; NEIGHBOURS], count: usize) -> f64 {
    let pairs = one[..count].iter().zip(&other[..count]);
    pairs.map(|(a, b)| a * b).sum()
}

impl Class {
    /// Its kernels, a line each: sizes, then how many times as long it took.
    fn points(&self) -> &[Point] {
        self.points.get_or_init(|| {
            let lines = self.lines.lines();
            lines.filter_map(|line| self.point(line)).collect()
        })
    }

    fn point(&self, line: &str) -> Option<Point> {
        let numbers: Result<Vec<f64>, _> = line.split(' ').map(str::parse).collect();
        let numbers = numbers.ok()?;
        let (ratio, features) = numbers.split_last()?;
        Some((place(features, &self.weights), ratio.ln()))
    }
}

fn place(features: &[f64], weights: &Features) -> Features {
    let mut place = Features::default();
    for ((place, feature), weight) in place.iter_mut().zip(features).zip(weights) {
        *place = feature.max(1.0).log2() * weight;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_kernel_is_found_again_and_one_between_two_lies_between_them() {
        let table = Table::of("# of\nceilings x 1\nclass map any\n1024 2.0\n4096 8.0\n");

        let at = table.ratio("map any", &[1024.0]).unwrap();
        let between = table.ratio("map any", &[2048.0]).unwrap();

        assert!((at - 2.0).abs() < 0.02, "{at}");
        assert!((between - 4.0).abs() < 0.01, "{between}");
        assert_eq!(table.ratio("unheard of", &[1.0]), None);
    }

    #[test]
    fn beside_what_was_measured_a_trend_goes_on_and_not_far() {
        let table = Table::of("# of\nclass map any\n1024 1.0\n2048 2.0\n4096 4.0\n8192 8.0\n");

        let at = |size: f64| table.ratio("map any", &[size]).unwrap();

        assert!((9.0..9.9).contains(&at(10_000.0)), "{}", at(10_000.0));
        let most = 8.0 * BEYOND.exp();
        assert!((at(1e9) - most).abs() < 1e-6, "{}", at(1e9));
        assert!((2.8..2.9).contains(&at(2896.3)), "{}", at(2896.3));
    }

    #[test]
    fn neighbours_that_say_the_same_count_once() {
        let table =
            Table::of("# of\nclass map any\n1024 1.0\n4096 4.0\n4097 4.0\n4098 4.0\n4099 4.0\n");

        let between = table.ratio("map any", &[2048.0]).unwrap();

        assert!((1.9..2.1).contains(&between), "{between}");
    }

    #[test]
    fn the_measured_table_is_read_whole() {
        let points: usize = measured()
            .classes
            .values()
            .map(|class| class.points().len())
            .sum();
        let lines = MEASURED
            .lines()
            .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));

        assert_eq!(points, lines.count());
        assert!(points > 10_000);
        let head = MEASURED.split_once("\nclass ").unwrap().0;
        assert!(head.contains(&format!("gpu {MEASURED_ON}\n")), "{head}");
    }
}
