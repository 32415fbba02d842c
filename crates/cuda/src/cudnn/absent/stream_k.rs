//! What a kernel keeps that splits sums over multiprocessors. See Note [Splits of a sum].
//!
//! The virtual GPU (`crates/vgpu`) compiles this file too, so it needs nothing but what its parent names.

use super::{Convolution, DType, Operation};

/// What of a card decides how sums are split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Processor {
    /// Streaming multiprocessors.
    pub multiprocessors: u64,
    /// Their clock over that of the memory.
    pub clocks: f64,
}

/// A matrix product on tensor cores that may split its sums, as an engine and its knobs say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Kernel {
    /// Rows and columns of the result that a block computes.
    tile: [u64; 2],
    /// How much of the sum it takes in one step.
    depth: u64,
    /// Blocks that work together, along rows and columns.
    cluster: [u64; 2],
    /// Whether it is given memory for sums that are split.
    splits: bool,
    weights: Weights,
    /// Its steps in the time that a step of 32 takes in float16.
    pace: f64,
}

/// What cuDNN's estimate weighs against the step of a sum: how many of 32 in float16, on an H200.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Weights {
    /// A level of the tree in which parts are added up, where the product is less than a wave.
    level: f64,
    /// The same, where what is split is what is left after whole waves.
    level_of_rest: f64,
    /// What splitting such a rest costs besides.
    split_of_rest: f64,
}

/// Engines of cuDNN 9.19 whose kernels split sums.
const ENGINES: [u32; 5] = [62, 65, 67, 68, 71];

/// `CUDNN_KNOB_TYPE_TILE_SIZE`, `_TILEK`, `_WORKSPACE`, `_TILE_CGA_M` and `_TILE_CGA_N`.
const TILE: u32 = 2;
const DEPTH: u32 = 13;
pub(super) const WORKSPACE: u32 = 25;
const CLUSTER_ROWS: u32 = 27;
const CLUSTER_COLUMNS: u32 = 28;

/// The multiprocessors that cuDNN counts without a device, whatever it is told.
const WITHOUT_DEVICE: u64 = 18;

/// How many clusters of so many blocks run at a time on 132 multiprocessors: by what an H200 and an H100 keep. A cluster cannot span the
/// parts that a chip is made of.
const CLUSTERS: [(u64, u64); 9] = [
    (2, 66),
    (3, 39),
    (4, 30),
    (5, 22),
    (6, 17),
    (7, 15),
    (8, 15),
    (12, 7),
    (16, 7),
];

/// Bytes beside parts of sums: a count of tiles for those who fetch them, which is there where there are more tiles than multiprocessors, and
/// what aligns it.
const COUNTER: u64 = 131;

/// How a product is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    /// Tiles of clusters that are split.
    tiles: u64,
    /// Into how many parts each: one if none is.
    pub parts: u64,
}

impl Kernel {
    /// The kernel of an engine with these knobs; `None` for those that split nothing, or whose tiles are not known.
    pub(super) fn of(engine: i64, knobs: &[(u32, i64)], call: &Convolution) -> Option<Kernel> {
        let engine = u32::try_from(engine).ok()?;
        if !ENGINES.contains(&engine) {
            return None;
        }
        let knob = |kind| {
            let mut all = knobs.iter();
            let (_, value) = all.find(|(knob, _)| *knob == kind)?;
            u64::try_from(*value).ok()
        };
        let depth = if knob(DEPTH)? == 0 { 32 } else { 64 };
        let (tile, [level, level_of_rest, split_of_rest]) = match knob(TILE)? {
            0 => ([128, 128], [13.2, 13.1, 0.2]),
            4 => ([256, 64], [13.2, 13.1, 0.2]),
            9 => ([64, 256], [13.2, 13.1, 0.2]),
            1 if depth == 32 && engine != 71 => ([128, 64], [15.5, 13.4, 3.1]),
            1 => ([128, 64], [17.1, 16.9, -0.94]),
            7 => ([64, 128], [17.1, 16.9, -0.94]),
            16 => ([256, 32], [17.1, 16.9, -0.94]),
            3 => ([256, 128], [11.2, 11.4, 0.56]),
            6 => ([128, 256], [11.2, 11.4, 0.56]),
            5 => ([64, 64], [24.6, 24.2, -3.0]),
            2 => ([128, 32], [24.6, 24.2, -3.0]),
            18 => ([64, 192], [14.5, 14.3, 0.0]),
            19 => ([128, 192], [11.5, 12.0, 0.3]),
            20 => ([256, 96], [11.5, 12.0, 0.3]),
            _ => return None,
        };
        let is_slow_in_bfloat16 = matches!(engine, 62 | 65)
            || engine == 67 && call.operands().operation != Operation::Forward;
        // These are taken to compute in bfloat16 at eight times the speed.
        let speed = match call.dtype {
            DType::BFloat16 if is_slow_in_bfloat16 => 8.0,
            _ => 1.0,
        };
        Some(Kernel {
            tile,
            depth,
            cluster: [knob(CLUSTER_ROWS)?.max(1), knob(CLUSTER_COLUMNS)?.max(1)],
            splits: knob(WORKSPACE)? == 0,
            weights: Weights {
                level,
                level_of_rest,
                split_of_rest,
            },
            pace: speed * 32.0 / depth as f64,
        })
    }

    /// What the plan is given on a card, in bytes: `alone` is what cuDNN says without a device of the same plan that splits nothing.
    pub(super) fn workspace(&self, call: &Convolution, card: &Processor, alone: u64) -> u64 {
        let product = self.product(call);
        let bytes = match alone.checked_sub(COUNTER) {
            Some(bytes) if product.tiles > WITHOUT_DEVICE => bytes,
            _ => alone,
        };
        let counter = if product.tiles > card.multiprocessors {
            COUNTER
        } else {
            0
        };
        if !self.splits {
            return bytes + counter;
        }
        let split = self.split(&product, card);
        if split.parts == 1 {
            return bytes + counter;
        }
        let blocks = split.tiles * self.cluster[0] * self.cluster[1];
        let [rows, columns] = self.tile;
        let sums = blocks * split.parts * rows * columns * 4;
        let flags = 4 * (blocks * nodes(split.parts) + 7);
        bytes + sums + flags + COUNTER
    }

    /// The product of matrices that a convolution is to it.
    pub(super) fn product(&self, call: &Convolution) -> Product {
        let operands = call.operands();
        let [x, y, w] = [operands.x, operands.y, operands.w];
        let groups = (x[1] / w[1].max(1)).max(1);
        let pixels =
            |[samples, _, depth, height, width]: [u64; 5]| samples * depth * height * width;
        let taps = w[2] * w[3] * w[4];
        let (inputs, outputs) = (x[1] / groups, y[1] / groups);
        let [rows, columns] = self.tile;
        // Groups narrower than a tile share one.
        let shared = |all: u64, width: u64| match all / groups {
            of_group if of_group < width => all.div_ceil(width),
            of_group => groups * of_group.div_ceil(width),
        };
        let [down, across, steps] = match operands.operation {
            Operation::Forward => [
                pixels(y).div_ceil(rows),
                shared(y[1], columns),
                inputs
                    .max(x[1].min(columns) * u64::from(groups > 1))
                    .div_ceil(self.depth)
                    * taps,
            ],
            Operation::BackwardData => [
                pixels(x).div_ceil(rows),
                shared(x[1], columns),
                outputs.div_ceil(self.depth) * taps,
            ],
            Operation::BackwardFilter => [
                shared(y[1], rows),
                inputs.div_ceil(columns) * taps,
                pixels(y).div_ceil(self.depth),
            ],
        };
        let [along, beside] = self.cluster;
        Product {
            tiles: down * across,
            clusters: down.div_ceil(along) * across.div_ceil(beside),
            steps,
        }
    }

    pub(super) fn split(&self, product: &Product, card: &Processor) -> Split {
        let wave = clusters(card.multiprocessors, self.cluster[0] * self.cluster[1]);
        let (waves, tiles) = (product.clusters / wave, product.clusters % wave);
        let most = wave.checked_div(tiles).unwrap_or(0);
        let parts = if waves == 0 {
            self.parts_of_all(product.steps, most, card)
        } else {
            self.parts_of_rest(product.steps, most, card)
        };
        Split { tiles, parts }
    }

    /// Into how many parts sums are split where the product is less than a wave.
    fn parts_of_all(&self, steps: u64, most: u64, card: &Processor) -> u64 {
        /// Long sums are cut into parts of so many steps of 32, where that makes at least [`FEWEST`].
        const LONGEST: u64 = 33;
        const FEWEST: u64 = 9;
        let longest = (LONGEST * 32).div_ceil(self.depth);
        if most >= FEWEST && steps / longest >= FEWEST {
            return most.min(steps / longest);
        }
        let level = (self.weights.level + card.slower()) * self.pace;
        cheapest(steps, most, 1, |parts| {
            steps.div_ceil(parts) as f64 + level * levels(parts)
        })
    }

    /// Into how many parts the sums of those tiles are split that are left after whole waves.
    fn parts_of_rest(&self, steps: u64, most: u64, card: &Processor) -> u64 {
        /// Steps of 32 that a part has at least.
        const SHORTEST: u64 = 4;
        let level = (self.weights.level_of_rest + card.slower()) * self.pace;
        let split = self.weights.split_of_rest * self.pace;
        cheapest(steps, most, SHORTEST * 32 / self.depth, |parts| {
            let share = 1.0 / parts as f64;
            steps as f64 * share
                + level * waiting(parts)
                + 0.1 * levels(parts)
                + split * (1.0 - share)
        })
    }
}

impl Processor {
    /// How many steps of 32 a level costs more than on an H200, whose memory's clock is 3,201 MHz.
    fn slower(&self) -> f64 {
        const H200: f64 = 1980.0 / 3201.0;
        15.4 * (self.clocks - H200)
    }
}

/// How many clusters of so many blocks run at a time.
fn clusters(multiprocessors: u64, blocks: u64) -> u64 {
    let known = CLUSTERS.iter().find(|(size, _)| *size == blocks);
    let most = match known {
        Some((_, clusters)) => multiprocessors * clusters / 132,
        None => multiprocessors / blocks,
    };
    most.max(1)
}

/// The number of parts, up to `most`, at which a sum costs least: those that leave no part without a step, and give each so many at least.
fn cheapest(steps: u64, most: u64, shortest: u64, cost: impl Fn(u64) -> f64) -> u64 {
    let mut best = (steps as f64, 1);
    for parts in 2..=most.min(steps / shortest) {
        let is_even = steps.div_ceil(steps.div_ceil(parts)) == parts;
        if is_even && cost(parts) < best.0 - 1e-9 {
            best = (cost(parts), parts);
        }
    }
    best.1
}

/// Levels of a tree that adds up so many parts.
fn levels(parts: u64) -> f64 {
    f64::from(parts.next_power_of_two().ilog2())
}

/// Levels that a part takes part in on average, the one that ends as the sum left out.
fn waiting(parts: u64) -> f64 {
    let mut left = parts as f64;
    let mut sum = 0.0;
    while left > 1.0 {
        sum += left - 1.0;
        left /= 2.0;
    }
    sum / parts as f64
}

/// Inner nodes of such a tree, where each has at most two below it.
fn nodes(parts: u64) -> u64 {
    let mut left = parts;
    let mut sum = 0;
    while left > 1 {
        left = left.div_ceil(2);
        sum += left;
    }
    sum
}

/// A convolution as a product of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Product {
    tiles: u64,
    /// Tiles of clusters.
    clusters: u64,
    /// Steps of a tile's sum.
    steps: u64,
}
