//! The measured kernels: how many times as long as the ceilings allow each took, by class and sizes.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

/// Most numbers that a class is interpolated by.
pub(super) const MOST_FEATURES: usize = 7;

/// How many of the nearest measurements count.
const NEIGHBOURS: usize = 6;

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
        Some("depthwise") => [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0],
        Some("attention") => [1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0],
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
        let mut nearest = [(f64::INFINITY, 0.0_f64); NEIGHBOURS];
        for (point, ratio) in class.points() {
            let apart = at.iter().zip(point).map(|(a, b)| (a - b) * (a - b));
            let distance: f64 = apart.sum();
            if distance < nearest[NEIGHBOURS - 1].0 {
                let place = nearest.partition_point(|(other, _)| *other <= distance);
                nearest[place..].rotate_right(1);
                nearest[place] = (distance, *ratio);
            }
        }
        // A measurement at the very place counts as one that is a hundredth away.
        let found = nearest.iter().filter(|(distance, _)| distance.is_finite());
        let weighed = found.map(|(distance, ratio)| (1.0 / distance.max(1e-4), ratio));
        let (sum, total) = weighed.fold((0.0, 0.0), |(sum, total), (weight, ratio)| {
            (sum + weight * ratio, total + weight)
        });
        (total > 0.0).then(|| (sum / total).exp())
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
