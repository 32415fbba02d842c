//! An answer for a layer that was never recorded, from the recorded ones most like it.

use crate::program::{Convolution, ConvolutionLayer, ConvolutionPass};
use crate::units::Bytes;

use super::job::Listed;
use super::{Plans, Source};

/// How many similar layers are looked at; the hungriest is taken. See Note [Similar layers].
fn looked_at(call: &Convolution) -> usize {
    match call.pass {
        ConvolutionPass::Forward | ConvolutionPass::GradInput => 2,
        // Fewer layers of these are recorded.
        ConvolutionPass::GradWeight if call.layer().is_flat() => 8,
        ConvolutionPass::GradWeight => 4,
    }
}

/// The rule's name.
pub(super) const RULE: &str = "as the hungriest of the most similar recorded layers";

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

/// The recorded layers most like another, by their numbers, the nearest first.
pub(super) type Similar = Box<[u32]>;

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

    /// Estimates a call of a layer like these from `recorded`, the answers for them.
    pub(super) fn estimate<'j>(
        &self,
        call: &Convolution,
        similar: &[u32],
        recorded: impl Fn(&Convolution) -> Option<Listed<'j>>,
    ) -> Plans {
        let (mine, pairs) = (tensor_bytes(call), channel_pairs(call));
        let scale = |size: Bytes, (others, of_others): (u64, u128)| {
            let (mine, others) = if size.0 / OUT_OF_PROPORTION > others {
                (pairs, of_others)
            } else {
                (mine.into(), others.into())
            };
            // As wide as it must be: sizes are checked to be below 2^60, and the numbers of pairs are.
            let bytes = u128::from(size.0).saturating_mul(mine) / others;
            Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
        };
        let alike = similar.iter().take(looked_at(call)).filter_map(|layer| {
            let layer = &self.layers[*layer as usize];
            let other = layer.call(call.pass, call.dtype, call.batch);
            let others = (tensor_bytes(&other).max(1), channel_pairs(&other).max(1));
            Some((recorded(&other)?, others))
        });
        let first = |(listed, others): &(Listed<'j>, (u64, u128))| {
            listed.first().map(|size| scale(size, *others))
        };
        match alike.max_by_key(first) {
            Some((listed, others)) => Plans {
                workspaces: listed
                    .workspaces()
                    .into_iter()
                    .map(|size| scale(size, others))
                    .collect(),
                source: Source::Estimated(RULE),
            },
            None => Plans {
                workspaces: vec![Bytes(mine), Bytes::ZERO],
                source: Source::Estimated(LAST_RESORT),
            },
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
        nearest.into_iter().map(|(.., number)| number).collect()
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
pub(in crate::device::sim) fn tensor_bytes(call: &Convolution) -> u64 {
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
