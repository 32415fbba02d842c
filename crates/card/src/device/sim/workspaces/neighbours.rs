//! An answer for a layer that was never recorded, from the recorded ones most like it.

use crate::program::{Convolution, ConvolutionLayer};
use crate::units::Bytes;

use super::composition::Composition;
use super::job::Listed;
use super::{Plans, Source};

/// How many of the most similar layers have a say in what a call takes, and how many of them have to agree. See Note [Similar layers].
const VOTERS: usize = 6;
const AGREEING: usize = 2;

/// How many are taken for what they are where no two agree.
const ALONE: usize = 2;

/// Workspaces are the same that differ by no more than such a part of the three tensors, or 1 KiB.
const SAME: u64 = 200;

/// The rule's name.
pub(super) const RULE: &str = "as the most similar recorded layers, of which two agree";

/// What is said where nothing similar is recorded.
pub(super) const LAST_RESORT: &str = "as large as all three tensors";

/// The recorded layers as points in a space of features.
#[derive(Debug)]
pub(super) struct Neighbours {
    layers: Vec<ConvolutionLayer>,
    /// By feature, those of all layers next to each other: so they are compared several at a time.
    features: [Vec<f32>; FEATURES],
}

/// How many features a layer has.
const FEATURES: usize = 14;

/// What makes two layers alike. The unit is a doubling of channels.
type Features = [f32; FEATURES];

/// The most that are looked at for any call.
const MOST_LOOKED_AT: usize = 8;

/// The recorded layers most like another, and how far from it they are; the nearest first.
pub(super) type Similar = Vec<(f32, ConvolutionLayer)>;

/// The nearest of several tables' nearest.
pub(super) fn nearest_of(tables: impl IntoIterator<Item = Similar>) -> Similar {
    let mut all: Similar = tables.into_iter().flatten().collect();
    crate::order::by(&mut all, |(one, a), (other, b)| {
        one.total_cmp(other).then_with(|| a.cmp(b))
    });
    all.dedup_by(|(_, one), (_, other)| one == other);
    all.truncate(MOST_LOOKED_AT);
    all
}

/// Estimates a call of a layer that is like these from `recorded`, the answers for them.
pub(super) fn estimate<'j>(
    call: &Convolution,
    similar: &[(f32, ConvolutionLayer)],
    recorded: impl Fn(&Convolution) -> Option<Listed<'j>>,
) -> Plans {
    let alike: Vec<(Listed<'j>, Convolution)> = similar
        .iter()
        .filter_map(|(_, layer)| {
            let other = layer.call(call.pass, call.dtype, call.batch);
            Some((recorded(&other)?, other))
        })
        .collect();
    let firsts: Vec<Bytes> = alike
        .iter()
        .map(|(listed, other)| match listed.first() {
            Some(size) => carried_over(size, other, call),
            None => Bytes::ZERO,
        })
        .collect();
    let tensors = Bytes(tensor_bytes(call));
    match chosen(&firsts, tensors).map(|at| &alike[at]) {
        Some((listed, other)) => Plans {
            workspaces: listed
                .workspaces()
                .into_iter()
                .map(|size| carried_over(size, other, call))
                .collect(),
            at_most: firsts.into_iter().max().unwrap_or(Bytes::ZERO),
            source: Source::Estimated(RULE),
        },
        None => Plans {
            workspaces: vec![tensors, Bytes::ZERO],
            at_most: tensors,
            source: Source::Estimated(LAST_RESORT),
        },
    }
}

/// Which of the workspaces that follow from similar layers, the most similar first, is taken: the largest of which there are several, or
/// else of the first few.
fn chosen(firsts: &[Bytes], tensors: Bytes) -> Option<usize> {
    let same = (tensors.0 / SAME).max(1 << 10);
    let voters = &firsts[..firsts.len().min(VOTERS)];
    let agree = |at: &usize| {
        let of = voters[*at].0;
        let agreeing = voters.iter().filter(|size| size.0.abs_diff(of) <= same);
        agreeing.count() >= AGREEING
    };
    let largest = |at: &usize| voters[*at];
    let agreed = (0..voters.len()).filter(agree).max_by_key(largest);
    agreed.or_else(|| (0..voters.len().min(ALONE)).max_by_key(largest))
}

/// The workspace of a call, from that of a similar one: made of the same, or else in proportion.
fn carried_over(size: Bytes, other: &Convolution, call: &Convolution) -> Bytes {
    let tensors = tensor_bytes(other).max(1);
    let is_out_of_proportion = size.0 / OUT_OF_PROPORTION > tensors;
    let is_plane = !call.volumes && !call.layer.is_flat();
    let composed = (is_plane || !is_out_of_proportion)
        .then(|| Composition::of(other, size)?.size(call))
        .flatten();
    if let Some(size) = composed {
        return size;
    }
    let (mine, others) = if is_out_of_proportion {
        (channel_pairs(call), channel_pairs(other).max(1))
    } else {
        (tensor_bytes(call).into(), tensors.into())
    };
    // As wide as it must be: sizes are checked to be below 2^60, and the numbers of pairs are.
    let bytes = u128::from(size.0).saturating_mul(mine) / others;
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

impl Neighbours {
    pub(super) fn of(layers: impl IntoIterator<Item = ConvolutionLayer>) -> Neighbours {
        let layers: Vec<ConvolutionLayer> = layers.into_iter().collect();
        let mut by_feature = [const { Vec::new() }; FEATURES];
        for layer in &layers {
            for (all, feature) in by_feature.iter_mut().zip(features(layer)) {
                all.push(feature);
            }
        }
        Neighbours {
            layers,
            features: by_feature,
        }
    }

    /// The layers most like another; those equally near in an order of their own.
    pub(super) fn nearest(&self, layer: &ConvolutionLayer) -> Similar {
        let mut distances = vec![0.0_f32; self.layers.len()];
        for (wanted, all) in features(layer).into_iter().zip(&self.features) {
            for (distance, feature) in distances.iter_mut().zip(all) {
                *distance += (wanted - feature).abs();
            }
        }
        let mut nearest: Vec<(f32, &ConvolutionLayer, u32)> = Vec::new();
        for (number, far) in (0..).zip(distances) {
            if let [.., (furthest, ..)] = nearest[..]
                && nearest.len() == MOST_LOOKED_AT
                && far > furthest
            {
                continue;
            }
            let layer = &self.layers[number as usize];
            let at = nearest.partition_point(|(other, of, _)| {
                other.total_cmp(&far).then_with(|| of.cmp(&layer)).is_lt()
            });
            nearest.insert(at, (far, layer, number));
            nearest.truncate(MOST_LOOKED_AT);
        }
        let found = nearest.into_iter();
        found.map(|(far, layer, _)| (far, *layer)).collect()
    }
}

/// From so many times the three tensors on, a workspace has nothing to do with their sizes.
const OUT_OF_PROPORTION: u64 = 8;

/// What such a workspace grows with: engines that work on spectra keep one for every pair of channels, on a grid whose
/// sides are the power of two that holds what the kernel reads (`2 * c_in * c_out * n * (n / 2 + 1) * 8` bytes for the
/// weight's gradient of signals, up to a batch of 16; Note [Similar layers]). Those of grouped layers hold the weight
/// that a layer without groups would have.
fn channel_pairs(call: &Convolution) -> u128 {
    let pairs = u128::from(call.in_channels).saturating_mul(call.out_channels.into());
    let each: u64 = if call.groups > 1 {
        call.kernel.iter().product()
    } else {
        let read = call
            .input
            .iter()
            .zip(call.padding)
            .map(|(side, zeros)| side + 2 * zeros);
        let side = read.max().unwrap_or(1).next_power_of_two();
        side.saturating_mul(side)
    };
    pairs.saturating_mul(each.into())
}

/// Bytes of all three tensors: most engines rearrange each into a copy.
pub(super) fn tensor_bytes(call: &Convolution) -> u64 {
    let elements: u64 = call.operands().elements().iter().sum();
    elements.saturating_mul(call.dtype.size())
}

/// Sizes count by their logarithm. Kernel, stride and groups weigh more than sizes, because they
/// decide which engines can run; so does whether channels and pixels fill vector loads.
fn features(shape: &ConvolutionLayer) -> Features {
    let log = |n: u64| (n.max(1) as f32).log2();
    let pixels: u64 = shape.input.iter().product();
    let even = |n: u64| n.trailing_zeros().min(3) as f32;
    [
        log(shape.in_channels),
        log(shape.out_channels),
        0.5 * log(pixels),
        2.0 * log(shape.kernel.iter().product()),
        2.0 * shape.stride[2] as f32,
        2.0 * log(shape.groups),
        if shape.transposed { 4.0 } else { 0.0 },
        if shape.channels_last { 16.0 } else { 0.0 },
        even(shape.in_channels),
        even(shape.out_channels),
        0.7 * even(pixels),
        if shape.padding[2] > 0 { 1.0 } else { 0.0 },
        if shape.is_flat() { 4.0 } else { 0.0 },
        if shape.volumes { 16.0 } else { 0.0 },
    ]
}
