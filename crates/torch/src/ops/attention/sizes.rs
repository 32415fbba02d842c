//! Which implementation PyTorch chooses, and the sizes of the buffers of each.
//!
//! See Note [Attention backends].

use crate::ops::prelude::*;
use crate::program::{Architecture, Capability, Flash};

/// The implementations that PyTorch chooses among.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// cuDNN's fused kernel.
    Cudnn,
    /// `FlashAttention` 2.
    Flash,
    /// The memory-efficient kernel.
    Efficient,
    /// Plain operations.
    Math,
}

/// What the choice depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a question that PyTorch asks on its own"
)]
pub struct Problem {
    pub dtype: DType,
    pub positions: u64,
    pub keys: u64,
    /// Elements of a head of query and key.
    pub width: u64,
    /// Elements of a head of the value.
    pub value_width: u64,
    /// Whether there are fewer key heads than query heads.
    pub grouped: bool,
    /// Whether key heads are too few although that was not allowed: they broadcast.
    pub broadcast: bool,
    /// Whether neighbours in the last dimension are neighbours in memory, in every operand and the mask.
    pub dense_rows: bool,
    pub causal: bool,
    pub dropout: bool,
    pub masked: bool,
    pub mask_is_trained: bool,
    pub trained: bool,
}

/// PyTorch's choice among what its [`Architecture`] says. Held against PyTorch on all architectures for the problems in
/// `tests/golden/attention/choices.txt`.
pub fn choose(compute: (u32, u32), problem: &Problem) -> Backend {
    let kernels = &Architecture::of(compute).attention;
    let Problem {
        dtype,
        positions,
        keys,
        width,
        value_width,
        ..
    } = *problem;
    if problem.broadcast || !problem.dense_rows {
        return Backend::Math;
    }
    let half = dtype.is_half();
    let aligned = |to: u64| width.is_multiple_of(to) && value_width.is_multiple_of(to);
    let widest = width.max(value_width);
    let single = positions == 1 && problem.dropout || keys == 1;
    let cudnn = half
        && kernels.cudnn.is_some_and(|most| widest <= most)
        && aligned(8)
        && !single
        && !problem.mask_is_trained;
    if cudnn {
        return Backend::Cudnn;
    }
    let fits = match kernels.flash {
        Flash::No => false,
        Flash::Narrow if problem.trained => {
            !((193..=224).contains(&width) || width > 224 && problem.dropout)
        }
        Flash::Narrow | Flash::Wide => true,
    };
    let flash = half
        && fits
        && width <= 256
        && width == value_width
        && !problem.masked
        && !(problem.causal && positions != keys);
    if flash {
        return Backend::Flash;
    }
    let alignment = if half { 8 } else { kernels.efficient_alignment };
    let known = dtype == DType::Float32
        || dtype == DType::Float16
        || (dtype == DType::BFloat16 && kernels.efficient_bf16);
    if known && !problem.grouped && aligned(alignment) {
        Backend::Efficient
    } else {
        Backend::Math
    }
}

/// Bytes of the memory-efficient kernel's backward workspace for one sample and head: a tile of partial
/// query gradients for each block of rows and columns, and whole key and value gradients in float32 for
/// half types wider than 128.
///
/// Measured for 13 shapes on compute capability 8.0 and nine on 7.5.
pub fn efficient_workspace(
    card: &Capability,
    dtype: DType,
    positions: u64,
    keys: u64,
    (width, value_width): (u64, u64),
) -> u64 {
    let widest = width.max(value_width);
    let modern = card.compute.0 >= 8;
    let (rows, columns) = match (dtype.is_half(), widest) {
        (_, ..=64) => (64, 64),
        (true, 65..=128) if modern => (128, 128),
        (false, _) if !modern => (64, 64),
        _ => (128, 64),
    };
    let tiles = positions.div_ceil(rows) * width.div_ceil(columns);
    let whole = if dtype.is_half() && widest > 128 {
        2 * keys.next_multiple_of(columns) * widest.next_multiple_of(128) * 4
    } else {
        0
    };
    tiles * (rows * columns * 4 + 16) + whole
}

/// Heads of `FlashAttention` are rounded up to this many elements.
pub fn flash_width(width: u64) -> u64 {
    width.next_multiple_of(if width <= 128 { 32 } else { 64 })
}

/// What cuDNN 9.19 wants of both passes beside operands. On compute capability 10 dropout keeps a bit of each score in whole tiles of 128, and without it
/// up to 128 positions have a second sum of the queries' gradient.
pub fn cudnn_workspaces(
    card: &Capability,
    of: Lengths,
    dropout: bool,
    element: u64,
) -> [Extent; 2] {
    let (sum, grouped) = (4 * of.width, of.query_heads != of.key_heads);
    let repeated = if grouped {
        2 * element * of.keys * of.width
    } else {
        0
    };
    let backward = of.positions * (sum + 4) + repeated;
    if card.compute.0 != 10 {
        let counters = Extent::fixed(256);
        return [counters, of.each(backward) + counters];
    }
    let tiles = of.positions.div_ceil(128) * of.keys.div_ceil(128);
    let bits = if dropout { 2048 * tiles } else { 0 };
    let again = if dropout || of.positions > 128 {
        0
    } else {
        of.positions.next_multiple_of(8) * sum
    };
    let aligned = |more: u64| Extent::fixed(if more > 0 { 128 } else { 0 });
    let all = of.each(backward + bits + again) + aligned(bits + again + repeated);
    [of.each(bits) + aligned(bits), all]
}

/// Into how many parts `FlashAttention` splits the keys without dropout, for so many samples and heads.
pub fn flash_splits(card: &Capability, heads: u64, positions: u64, keys: u64, width: u64) -> u64 {
    let block = match width {
        ..=64 => 256,
        65..=128 => 128,
        _ => 64,
    };
    let groups = heads * positions.div_ceil(64);
    let room = 2 * card.multiprocessors;
    let blocks = keys.div_ceil(block);
    if 10 * groups >= 8 * room {
        return 1;
    }
    let most = 128.min(room).min(blocks);
    let usable = |k: u64| k == 1 || blocks.div_ceil(k) != blocks.div_ceil(k - 1);
    let efficiency = |k: u64| {
        let waves = (groups * k) as f64 / room as f64;
        waves / waves.ceil()
    };
    let best = (1..=most)
        .filter(|k| usable(*k))
        .map(efficiency)
        .fold(0.0, f64::max);
    let mut usable = (1..=most).filter(|k| usable(*k));
    usable.find(|k| efficiency(*k) >= 0.85 * best).unwrap_or(1)
}

/// Lengths of an attention; the batch is a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lengths {
    pub batch: Extent,
    pub query_heads: u64,
    pub key_heads: u64,
    pub positions: u64,
    pub keys: u64,
    pub width: u64,
    pub value_width: u64,
}

impl Lengths {
    /// So many bytes for each (sample, query head).
    pub fn each(self, bytes: u64) -> Extent {
        self.batch * Extent::fixed(self.query_heads * bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A100: Capability = Capability::of((8, 0), 108);

    fn plain(dtype: DType) -> Problem {
        Problem {
            dtype,
            positions: 256,
            keys: 256,
            width: 64,
            value_width: 64,
            grouped: false,
            broadcast: false,
            dense_rows: true,
            causal: false,
            dropout: false,
            masked: false,
            mask_is_trained: false,
            trained: true,
        }
    }

    /// What stands in the rows of the file, in the order of `tests/record/attention_choices.py`.
    fn problems_of_row(dtype: DType, width: u64, value_width: u64) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (positions, keys) in [(256, 256), (1, 256), (256, 1), (128, 256)] {
            for mask in 0..3 {
                for causal in [false, true]
                    .into_iter()
                    .take(if mask == 0 { 2 } else { 1 })
                {
                    for (dropout, trained, grouped) in
                        (0..8).map(|n| (n & 4 != 0, n & 2 == 0, n & 1 != 0))
                    {
                        problems.push(Problem {
                            positions,
                            keys,
                            width,
                            value_width,
                            grouped,
                            causal,
                            dropout,
                            masked: mask > 0,
                            mask_is_trained: mask == 2,
                            trained,
                            ..plain(dtype)
                        });
                    }
                }
            }
        }
        problems
    }

    #[test]
    fn choices_are_those_that_pytorch_was_asked_for() {
        let mut capabilities = Vec::new();
        let mut compared = 0;
        for line in include_str!("../../../../../tests/golden/attention/choices.txt").lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["#", ..] | [""] => {}
                ["on", compute @ ..] => {
                    let compute = compute.iter().map(|one| {
                        let (major, minor) = one.split_once('.').unwrap();
                        (major.parse().unwrap(), minor.parse().unwrap())
                    });
                    capabilities = compute.collect::<Vec<(u32, u32)>>();
                }
                [dtype, width, value_width, answers] => {
                    let dtype = match *dtype {
                        "float32" => DType::Float32,
                        "float16" => DType::Float16,
                        _ => DType::BFloat16,
                    };
                    let widths = [width, value_width].map(|width| width.parse().unwrap());
                    let problems = problems_of_row(dtype, widths[0], widths[1]);
                    assert_eq!(problems.len(), answers.len());
                    for (problem, answer) in problems.iter().zip(answers.chars()) {
                        let expected = match answer {
                            'c' => Backend::Cudnn,
                            'f' => Backend::Flash,
                            'e' => Backend::Efficient,
                            _ => Backend::Math,
                        };
                        for compute in &capabilities {
                            assert_eq!(
                                choose(*compute, problem),
                                expected,
                                "{compute:?} {problem:?}"
                            );
                            compared += 1;
                        }
                    }
                }
                _ => panic!("{line}"),
            }
        }
        assert_eq!(compared, 12 * 39 * 128);
    }

    /// Recorded on compute capabilities 8.0 and 7.5, for two samples, four heads and 256 positions.
    #[test]
    fn workspaces_are_those_that_pytorch_took() {
        let t4 = Capability::of((7, 5), 40);
        let of = |card: &Capability, dtype, width| {
            8 * efficient_workspace(card, dtype, 256, 256, (width, width))
        };

        assert_eq!(of(&A100, DType::Float32, 64), 524_800);
        assert_eq!(of(&A100, DType::Float32, 80), 1_049_088);
        assert_eq!(of(&A100, DType::Float32, 160), 1_573_632);
        assert_eq!(of(&A100, DType::BFloat16, 264), 8_914_176);
        assert_eq!(of(&t4, DType::Float32, 256), 2_099_200);
        assert_eq!(of(&t4, DType::Float16, 160), 5_767_936);
        assert_eq!(of(&t4, DType::Float16, 80), 1_049_088);
    }

    #[test]
    fn keys_are_split_as_recorded() {
        assert_eq!(flash_splits(&A100, 8, 256, 256, 256), 4);
        assert_eq!(flash_splits(&A100, 8, 256, 256, 160), 4);
        assert_eq!(flash_splits(&A100, 8, 256, 256, 80), 2);
        assert_eq!(flash_splits(&A100, 8, 1000, 1000, 128), 3);
        assert_eq!(flash_splits(&A100, 8, 2048, 2048, 64), 1);
    }

    #[test]
    fn cudnn_keeps_what_dropped_scores_and_short_queries_take_on_compute_capability_10() {
        let of = |[query_heads, key_heads, positions, keys, width]: [u64; 5], dropout| {
            let lengths = Lengths {
                batch: Extent::ONE,
                query_heads,
                key_heads,
                positions,
                keys,
                width,
                value_width: width,
            };
            let card = Capability::of((10, 0), 148);
            cudnn_workspaces(&card, lengths, dropout, 2).map(|bytes| bytes.at(1))
        };
        assert_eq!(of([30, 30, 150, 87, 48], true), [123_008, 1_005_008]);
        assert_eq!(of([30, 30, 23, 587, 64], true), [307_328, 486_728]);
        assert_eq!(of([30, 30, 23, 87, 48], false), [0, 273_608]);
        assert_eq!(of([1, 1, 129, 300, 64], false), [0, 129 * 260]);
        assert_eq!(
            of([12, 4, 100, 100, 64], true),
            [24_704, 12 * 26_000 + 331_904]
        );
        assert_eq!(
            of([8, 1, 257, 257, 128], false),
            [0, 8 * 257 * 516 + 1_052_800]
        );
    }
}
