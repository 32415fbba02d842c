//! What the workspace of a recorded layer is made of, so that it can be told for a similar one: in proportion to its tensors it would be
//! near, and a block that is nearly as large as another is a new segment. See Note [Compositions].

use crate::program::{Convolution, ConvolutionPass};
use crate::units::Bytes;

use super::algorithms::{of_spectra, of_winograd};

/// What a workspace is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Composition {
    /// The same for all layers: nothing, or counters.
    Constant(Bytes),
    /// Copies of tensors and what is summed up in them.
    Parts(Parts),
    /// Images and weight in the tiles of Winograd's algorithm.
    Winograd,
    /// Spectra of images.
    Spectra,
}

/// How often the parts of a call are in its workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    /// Copies of input, result and weight.
    copies: [u64; 3],
    /// Their channels are filled up to a multiple of this.
    channels: u64,
    /// Weights in float32.
    sums: u64,
    /// Whether there are so many of them for each sample.
    of_each_sample: bool,
    /// What grows with nothing: parts of sums that are split over multiprocessors.
    rest: u64,
}

/// The largest that is a constant: counters of blocks.
const CONSTANT: u64 = 1 << 10;

/// How near a composition must come, as a part of the workspace, and at least [`CONSTANT`].
const NEAR: u64 = 2000;

/// What channels are filled up to: vector loads of 8 to 16 bytes, and tiles.
const CHANNELS: [u64; 5] = [1, 8, 4, 32, 64];

/// The most copies of input, result and weight.
const MOST_COPIES: [u64; 3] = [2, 2, 4];

/// Copies that are there beside sums.
const BESIDE_SUMS: [[u64; 3]; 5] = [[0, 0, 0], [1, 1, 0], [0, 2, 0], [1, 0, 0], [0, 1, 0]];

/// The most sums, of a sample or in all.
const MOST_SUMS: u64 = 512;

/// Copies that are there beside the parts of sums that are split over multiprocessors.
const BESIDE_SPLITS: [[u64; 3]; 4] = [[1, 1, 1], [1, 1, 0], [0, 2, 1], [0, 2, 0]];

/// The most that such parts take: a tile of 128 KiB of each of 132 multiprocessors, and counters.
const MOST_SPLITS: u64 = 18 << 20;

impl Composition {
    /// What a workspace of so many bytes is made of; `None` where that cannot be told.
    pub(super) fn of(call: &Convolution, size: Bytes) -> Option<Composition> {
        if size.0 <= CONSTANT {
            return Some(Composition::Constant(size));
        }
        let exactly = |bytes: u64| bytes.abs_diff(size.0) <= CONSTANT;
        if of_winograd(call).is_some_and(exactly) {
            return Some(Composition::Winograd);
        }
        if of_spectra(call).is_some_and(exactly) {
            return Some(Composition::Spectra);
        }
        let off = |parts: &Parts| parts.bytes(call).abs_diff(size.0.into());
        let near = u128::from((size.0 / NEAR).max(CONSTANT));
        if let Some(copies) = all_copies().find(|parts| off(parts) <= near) {
            return Some(Composition::Parts(copies));
        }
        if call.pass != ConvolutionPass::GradWeight {
            return None;
        }
        let sums = all_sums(call, size).find(|parts| off(parts) <= u128::from(CONSTANT));
        if let Some(sums) = sums {
            return Some(Composition::Parts(sums));
        }
        splits(call, size).map(Composition::Parts)
    }

    /// The workspace of another call with the same composition.
    pub(super) fn size(&self, call: &Convolution) -> Option<Bytes> {
        match self {
            Composition::Constant(size) => Some(*size),
            Composition::Parts(parts) => {
                Some(Bytes(u64::try_from(parts.bytes(call)).unwrap_or(u64::MAX)))
            }
            Composition::Winograd => of_winograd(call).map(Bytes),
            Composition::Spectra => of_spectra(call).map(Bytes),
        }
    }
}

impl Parts {
    const fn of(copies: [u64; 3], channels: u64) -> Parts {
        Parts {
            copies,
            channels,
            sums: 0,
            of_each_sample: false,
            rest: 0,
        }
    }

    /// Bytes of a call. As wide as it must be: tensors are checked to have less than 2^60.
    fn bytes(&self, call: &Convolution) -> u128 {
        let filled = |channels: u64| u128::from(channels.next_multiple_of(self.channels));
        let elements = |sides: [u64; 3]| u128::from(sides.iter().product::<u64>());
        let (inputs, results) = (filled(call.in_channels), filled(call.out_channels));
        let tensors = [
            u128::from(call.batch) * inputs * elements(call.input),
            u128::from(call.batch) * results * elements(call.output()),
            inputs * results / u128::from(call.groups.max(1)) * elements(call.kernel),
        ];
        let copies: u128 = tensors
            .iter()
            .zip(self.copies)
            .map(|(tensor, count)| tensor * u128::from(count))
            .sum();
        let samples = if self.of_each_sample { call.batch } else { 1 };
        copies * u128::from(call.dtype.size())
            + sum_bytes(call) * u128::from(self.sums) * u128::from(samples)
            + u128::from(self.rest)
    }
}

/// Bytes of a weight in float32.
fn sum_bytes(call: &Convolution) -> u128 {
    let channels = u128::from(call.in_channels) * u128::from(call.out_channels);
    let taps: u64 = call.kernel.iter().product();
    4 * (channels / u128::from(call.groups.max(1)) * u128::from(taps))
}

/// All counts of copies, fewest first.
fn all_copies() -> impl Iterator<Item = Parts> {
    let [inputs, results, weights] = MOST_COPIES;
    let counts = move |copies: u64| {
        (0..=inputs.min(copies)).flat_map(move |input| {
            (0..=results.min(copies - input)).filter_map(move |result| {
                let weight = copies - input - result;
                (weight <= weights).then_some([input, result, weight])
            })
        })
    };
    CHANNELS.into_iter().flat_map(move |channels| {
        (1..=inputs + results + weights)
            .flat_map(counts)
            .map(move |copies| Parts::of(copies, channels))
    })
}

/// What is left beside some copies, as whole sums: of each sample, or in all.
fn all_sums(call: &Convolution, size: Bytes) -> impl Iterator<Item = Parts> {
    let sum = sum_bytes(call).max(1);
    let channels = CHANNELS.into_iter().take(2);
    let beside =
        channels.flat_map(|channels| BESIDE_SUMS.map(|copies| Parts::of(copies, channels)));
    let samples = u128::from(call.batch);
    beside
        .flat_map(move |parts| {
            let left = u128::from(size.0).saturating_sub(parts.bytes(call));
            [(samples, true), (1, false)].map(move |(samples, of_each_sample)| {
                let sums = (left + sum * samples / 2) / (sum * samples).max(1);
                let sums = u64::try_from(sums).unwrap_or(u64::MAX);
                Parts {
                    sums,
                    of_each_sample,
                    ..parts
                }
            })
        })
        .filter(|parts| (1..=MOST_SUMS).contains(&parts.sums))
}

/// Copies with the least that is left beside them, where that is no more than splits take.
fn splits(call: &Convolution, size: Bytes) -> Option<Parts> {
    let channels = CHANNELS.into_iter().take(2);
    let all = channels.flat_map(|channels| BESIDE_SPLITS.map(|copies| Parts::of(copies, channels)));
    let with_rest = all.filter_map(|parts| {
        let rest = u128::from(size.0).checked_sub(parts.bytes(call))?;
        let rest = u64::try_from(rest)
            .ok()
            .filter(|rest| *rest <= MOST_SPLITS)?;
        Some(Parts { rest, ..parts })
    });
    with_rest.min_by_key(|parts| parts.rest)
}

#[cfg(test)]
mod tests {
    use crate::program::ConvolutionPass::{Forward, GradInput, GradWeight};
    use crate::shape::DType;

    use super::super::parse_layer;
    use super::*;

    fn call(layer: &str, pass: ConvolutionPass, dtype: DType) -> Convolution {
        parse_layer(layer).unwrap().call(pass, dtype, 8)
    }

    /// What the second of two layers is told from the workspace of the first.
    fn predicted_by(
        layers: [&str; 2],
        (pass, dtype): (ConvolutionPass, DType),
        size: u64,
    ) -> Option<Bytes> {
        let [one, other] = layers.map(|layer| call(layer, pass, dtype));
        Composition::of(&one, Bytes(size))?.size(&other)
    }

    const HALF: DType = DType::Float16;
    const PLAIN: [&str; 2] = [
        "64,128,1,56,56,3,3,1,1,1,1,1,1,0",
        "72,96,1,40,40,3,3,1,1,1,1,1,1,0",
    ];

    #[test]
    fn nothing_and_counters_stay_what_they_are() {
        assert_eq!(predicted_by(PLAIN, (Forward, HALF), 0), Some(Bytes(0)));
        assert_eq!(
            predicted_by(PLAIN, (GradWeight, HALF), 400),
            Some(Bytes(400))
        );
    }

    #[test]
    fn copies_are_those_of_the_other_layers_tensors() {
        let (inputs, results, weights) = (8 * 64 * 56 * 56, 8 * 128 * 56 * 56, 64 * 128 * 9);
        let (input, result, weight) = (8 * 72 * 40 * 40, 8 * 96 * 40 * 40, 72 * 96 * 9);
        for pass in [Forward, GradInput, GradWeight] {
            assert_eq!(
                predicted_by(PLAIN, (pass, HALF), 2 * (inputs + results + weights)),
                Some(Bytes(2 * (input + result + weight)))
            );
            assert_eq!(
                predicted_by(PLAIN, (pass, DType::Float32), 4 * (2 * results + weights)),
                Some(Bytes(4 * (2 * result + weight)))
            );
        }
    }

    #[test]
    fn channels_are_filled_up_as_they_were() {
        let odd = [
            "3,64,1,32,32,7,7,2,2,3,3,1,1,0",
            "5,60,1,32,32,7,7,2,2,3,3,1,1,0",
        ];
        let bytes = |inputs: u64, results: u64| {
            2 * (8 * inputs * 32 * 32 + 8 * results * 16 * 16 + inputs * results * 49)
        };
        assert_eq!(
            predicted_by(odd, (Forward, HALF), bytes(8, 64)),
            Some(Bytes(bytes(8, 64)))
        );
        assert_eq!(
            predicted_by(odd, (Forward, HALF), bytes(3, 64)),
            Some(Bytes(bytes(5, 60)))
        );
    }

    #[test]
    fn gradients_of_weights_keep_sums_of_each_sample_or_so_many_in_all() {
        let products = [
            "640,160,1,14,14,1,1,1,1,0,0,1,1,0",
            "480,80,1,14,14,1,1,1,1,0,0,1,1,0",
        ];
        let pass = (GradWeight, HALF);
        assert_eq!(
            predicted_by(products, pass, 4 * 8 * 640 * 160),
            Some(Bytes(4 * 8 * 480 * 80))
        );
        assert_eq!(
            predicted_by(products, pass, 4 * 19 * 640 * 160),
            Some(Bytes(4 * 19 * 480 * 80))
        );
        assert_eq!(
            predicted_by(products, (Forward, HALF), 4 * 19 * 640 * 160),
            None
        );
    }

    #[test]
    fn what_is_split_over_multiprocessors_does_not_grow() {
        let products = [
            "648,168,1,13,13,1,1,1,1,0,0,1,1,0",
            "480,80,1,13,13,1,1,1,1,0,0,1,1,0",
        ];
        let copies = |channels: u64| 2 * 8 * channels * 13 * 13;
        assert_eq!(
            predicted_by(products, (GradWeight, HALF), copies(648 + 168) + 100_003),
            Some(Bytes(copies(480 + 80) + 100_003))
        );
    }

    #[test]
    fn transforms_are_known_by_their_sizes() {
        let pass = (GradWeight, DType::Float32);
        for of in [of_winograd, of_spectra] {
            let [one, other] = PLAIN.map(|layer| of(&call(layer, pass.0, pass.1)).unwrap());
            assert_eq!(predicted_by(PLAIN, pass, one), Some(Bytes(other)));
        }
    }

    #[test]
    fn what_is_made_of_nothing_known_is_none() {
        assert_eq!(predicted_by(PLAIN, (Forward, HALF), 12_345_678), None);
        assert_eq!(predicted_by(PLAIN, (GradWeight, HALF), u64::MAX), None);
    }
}
