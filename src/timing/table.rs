//! The measured kernels: how many times as long as the ceilings allow each took, by class and sizes.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

/// Most numbers that a class is interpolated by.
pub(super) const MOST_FEATURES: usize = 7;

/// How many of the nearest measurements count.
const NEIGHBOURS: usize = 12;

/// How much a slope is drawn to zero, beside the spread of the neighbours' sizes: without it, neighbours that hardly differ in a size
/// would say much about it.
const PULL: f64 = 0.03;

/// How far, as a logarithm, a kernel may lie outside of what its neighbours took.
const BEYOND: f64 = 0.3;

/// What was measured, by `tests/record/times.py` on an H200; the file says with which versions.
const MEASURED: &str = include_str!("h200.txt");

/// The card that it was measured on, as the driver names it.
pub(super) const MEASURED_ON: &str = "NVIDIA H200";

/// Measured kernels of all classes.
static TABLE: LazyLock<Table> = LazyLock::new(|| Table::of(MEASURED));

/// Sizes as they are compared: logarithms, each with the weight that its class gives it.
type Place = [f64; MOST_FEATURES];

/// Where a kernel was measured, and the logarithm of how many times as long as the ceilings allow it took.
type Point = (Place, f64);

/// The kernels of a class: read when somebody first asks, since a model has few of all classes.
#[derive(Debug, Default)]
struct Class {
    weights: Place,
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
/// only how well it is used. Chosen so that each measured kernel is best foretold by the others.
fn weights(class: &str) -> Place {
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
        foretold(&at, class.points().iter()).map(f64::exp)
    }
}

/// What measurements say of a place: by the nearest of them, as a logarithm. `None` without any.
fn foretold<'a>(at: &Place, points: impl Iterator<Item = &'a Point>) -> Option<f64> {
    let mut nearest: [(f64, Option<&Point>); NEIGHBOURS] = [(f64::INFINITY, None); NEIGHBOURS];
    for point in points {
        let apart = at.iter().zip(&point.0).map(|(a, b)| (a - b) * (a - b));
        let distance: f64 = apart.sum();
        if distance < nearest[NEIGHBOURS - 1].0 {
            let place = nearest.partition_point(|(other, _)| *other <= distance);
            nearest[place..].rotate_right(1);
            nearest[place] = (distance, Some(point));
        }
    }
    let found = nearest.iter().filter_map(|(distance, point)| {
        let (place, ratio) = (*point)?;
        // A measurement at the very place counts as one that is a hundredth away.
        Some((1.0 / distance.max(1e-4), place, *ratio))
    });
    plane(at, &found.collect::<Vec<_>>())
}

/// What neighbours, each with a weight, say of a place: the height there of the plane that fits them best, which slopes as little as it
/// can. `None` without neighbours.
fn plane(at: &Place, neighbours: &[(f64, &Place, f64)]) -> Option<f64> {
    let total: f64 = neighbours.iter().map(|(weight, ..)| weight).sum();
    if neighbours.is_empty() {
        return None;
    }
    let mean = |of: &dyn Fn(&Place, f64) -> f64| {
        let each = neighbours.iter();
        each.map(|(weight, place, ratio)| weight * of(place, *ratio))
            .sum::<f64>()
            / total
    };
    let height = mean(&|_, ratio| ratio);
    let centre: Place = std::array::from_fn(|size| mean(&|place, _| place[size]));
    let mut equations = [[0.0; MOST_FEATURES]; MOST_FEATURES];
    let mut slopes = Place::default();
    for (weight, place, ratio) in neighbours {
        let share = weight / total;
        let away: Place = std::array::from_fn(|size| place[size] - centre[size]);
        for (row, slope) in slopes.iter_mut().enumerate() {
            *slope += share * away[row] * (ratio - height);
            for (entry, other) in equations[row].iter_mut().zip(&away) {
                *entry += share * away[row] * other;
            }
        }
    }
    for (size, row) in equations.iter_mut().enumerate() {
        row[size] += PULL;
    }
    solve(&mut equations, &mut slopes);
    let off: f64 = (0..MOST_FEATURES)
        .map(|size| slopes[size] * (at[size] - centre[size]))
        .sum();
    let ratios = || neighbours.iter().map(|(_, _, ratio)| *ratio);
    let least = ratios().fold(f64::INFINITY, f64::min) - BEYOND;
    let most = ratios().fold(f64::NEG_INFINITY, f64::max) + BEYOND;
    Some((height + off).clamp(least, most))
}

/// Solves equations whose matrix is symmetric and positive, by elimination: `right` becomes what solves them.
fn solve(equations: &mut [Place; MOST_FEATURES], right: &mut Place) {
    for pivot in 0..MOST_FEATURES {
        let (above, below) = equations.split_at_mut(pivot + 1);
        let row = &above[pivot];
        for (index, other) in below.iter_mut().enumerate() {
            let factor = other[pivot] / row[pivot];
            for (entry, with) in other.iter_mut().zip(row) {
                *entry -= factor * with;
            }
            right[pivot + 1 + index] -= factor * right[pivot];
        }
    }
    for row in (0..MOST_FEATURES).rev() {
        let known: f64 = (row + 1..MOST_FEATURES)
            .map(|column| equations[row][column] * right[column])
            .sum();
        right[row] = (right[row] - known) / equations[row][row];
    }
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

fn place(features: &[f64], weights: &Place) -> Place {
    let mut place = Place::default();
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

        assert!((at - 2.0).abs() < 0.01, "{at}");
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
    fn equations_are_solved() {
        let mut equations = [Place::default(); MOST_FEATURES];
        for (index, row) in equations.iter_mut().enumerate() {
            *row = [1.0; MOST_FEATURES];
            row[index] = 3.0;
        }
        // Of ones: each row sums to its own three and the ones beside it.
        let mut right = [9.0; MOST_FEATURES];

        solve(&mut equations, &mut right);

        assert!(
            right.iter().all(|one| (one - 1.0).abs() < 1e-9),
            "{right:?}"
        );
    }

    /// Run by hand, with `--ignored --nocapture`: its table is in the notes.
    #[test]
    #[ignore = "prints how well each measured kernel is foretold by the others of its class"]
    fn kernels_are_foretold_by_others() {
        let mut kinds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (name, class) in &measured().classes {
            let points = class.points();
            let off = points.iter().enumerate().filter_map(|(left, point)| {
                let others = points.iter().enumerate();
                let others = others.filter_map(|(index, one)| (index != left).then_some(one));
                Some((foretold(&point.0, others)? - point.1).exp_m1().abs())
            });
            let kind = name.split(' ').next().unwrap();
            kinds.entry(kind).or_default().extend(off);
        }
        for (kind, mut off) in kinds {
            off.sort_by(f64::total_cmp);
            let at = |percent: usize| 100.0 * off[off.len() * percent / 100];
            let (middle, most) = (at(50), at(90));
            println!(
                "{kind:12} {:5} kernels, median {middle:5.1} %, p90 {most:5.1} %",
                off.len()
            );
        }
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
