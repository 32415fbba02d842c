//! Scratch memory of reductions that several blocks share per output.

use crate::program::Capability;

/// Bytes of an accumulator: float32 for every type that is trained in.
pub(super) const ACCUMULATOR: u64 = 4;

/// Which dimension a reduction runs along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Along {
    /// The fastest-moving one.
    Row,
    /// Another: neighbouring outputs lie side by side.
    Column,
}

/// Scratch memory of a reduction that several blocks share per output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scratch {
    /// Partial results.
    pub buffer: u64,
    /// Counters of finished blocks.
    pub semaphores: u64,
}

/// What the sum over the rows of a matrix takes: the gradient of a bias.
pub fn scratch_of_columns(card: &Capability, columns: u64, rows: u64) -> Scratch {
    scratch(card, Along::Column, columns, rows)
}

/// The launch geometry of PyTorch's reduction kernel, as far as it decides the scratch memory.
///
/// See Note [Reduction scratch].
pub(super) fn scratch(card: &Capability, along: Along, outputs: u64, inputs: u64) -> Scratch {
    let power = |n: u64| 1_u64 << n.max(1).ilog2();
    let vector = match along {
        Along::Row => 1,
        Along::Column => [4, 2, 1]
            .into_iter()
            .find(|v| outputs.is_multiple_of(*v))
            .unwrap_or(1),
    };
    let (first, second) = match along {
        Along::Row => (if inputs >= 128 { inputs / 4 } else { inputs }, outputs),
        Along::Column => (outputs / vector, inputs),
    };
    let most = 512 / vector;
    let (a, b) = (power(first).min(most), power(second).min(most));
    let by = b.min(most / a.min(32));
    let bx = a.min(most / by);
    let mut step = if along == Along::Row { bx } else { 1 };
    let mut values = inputs.div_ceil(step);
    let split = values >= (16 * by).min(256);
    if split {
        step *= by;
        values = inputs.div_ceil(step);
    }
    let in_block = match (along, split) {
        (Along::Column, true) => bx,
        (Along::Column, false) => bx * by,
        (Along::Row, true) => 1,
        (Along::Row, false) => by,
    };
    let grid = (outputs / vector).div_ceil(in_block);
    let target = card.multiprocessors * (card.threads_per_multiprocessor / (bx * by));
    if !split || values < 256 || grid > target {
        return Scratch::default();
    }
    let blocks = target
        .div_ceil(grid)
        .min(values.div_ceil(16))
        .max(values.div_ceil(256));
    if blocks <= 1 {
        return Scratch::default();
    }
    let width = if along == Along::Column {
        bx * vector
    } else {
        1
    };
    Scratch {
        buffer: ACCUMULATOR * outputs * blocks * width,
        semaphores: 4 * grid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Capability = Capability::of((9, 0), 132);

    /// Measured on an H200 with PyTorch 2.11.
    #[test]
    fn scratch_equals_what_pytorch_was_seen_to_take() {
        for (along, outputs, inputs, buffer, semaphores) in [
            (Along::Column, 768, 4096, 25_165_824, 24),
            (Along::Column, 512, 4096, 16_777_216, 16),
            (Along::Row, 1, 2_097_152, 1024, 4),
            (Along::Row, 1, 512_000, 252, 4),
        ] {
            let expected = Scratch { buffer, semaphores };
            assert_eq!(
                scratch(&H200, along, outputs, inputs),
                expected,
                "{outputs}"
            );
        }
    }

    #[test]
    fn short_reductions_take_none() {
        assert_eq!(scratch(&H200, Along::Row, 2048, 49), Scratch::default());
        assert_eq!(scratch(&H200, Along::Column, 768, 8), Scratch::default());
    }

    #[test]
    fn reductions_split_as_pytorch_splits_them_on_every_card() {
        let recorded = include_str!("../../../../../tests/golden/reductions/cards.txt");
        let mut shapes: Vec<(u64, u64)> = Vec::new();
        let mut capabilities = 0;
        for line in recorded.lines().filter(|line| !line.starts_with('#')) {
            if let Some(listed) = line.strip_prefix("shapes ") {
                let sides = |shape: &str| {
                    let (rows, columns) = shape.split_once('x').unwrap();
                    (rows.parse().unwrap(), columns.parse().unwrap())
                };
                shapes = listed.split(' ').map(sides).collect();
                continue;
            }
            let words: Vec<&str> = line.split(' ').collect();
            let (major, minor) = words[0].split_once('.').unwrap();
            let compute = (major.parse().unwrap(), minor.parse().unwrap());
            let card = Capability {
                compute,
                multiprocessors: words[1].parse().unwrap(),
                threads_per_multiprocessor: words[2].parse().unwrap(),
            };
            assert_eq!(words.len() - 3, shapes.len());
            for (&(rows, columns), answers) in shapes.iter().zip(&words[3..]) {
                let expected: Vec<u64> = answers.split(',').map(|it| it.parse().unwrap()).collect();
                let found = [
                    scratch(&card, Along::Column, columns, rows),
                    scratch(&card, Along::Row, rows, columns),
                    scratch(&card, Along::Row, 1, rows * columns),
                ];
                let found = found.map(|scratch| scratch.buffer + scratch.semaphores);
                assert_eq!(found, *expected, "{card:?} {rows}x{columns}");
            }
            capabilities += 1;
        }
        assert!(capabilities > 0);
    }
}
