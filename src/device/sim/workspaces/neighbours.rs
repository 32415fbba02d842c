//! An answer for a layer that was never recorded, from the recorded ones most like it.

use crate::program::{Convolution, ConvolutionLayer, ConvolutionPass};
use crate::units::Bytes;

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
pub(super) struct Neighbours(Vec<(Features, ConvolutionLayer)>);

/// What makes two layers alike. The unit is a doubling of channels.
type Features = [f32; 14];

impl Neighbours {
    pub(super) fn of(layers: impl IntoIterator<Item = ConvolutionLayer>) -> Neighbours {
        let points = layers.into_iter().map(|layer| (features(&layer), layer));
        Neighbours(points.collect())
    }

    /// Estimates a call from `recorded`, the answers for those layers.
    pub(super) fn estimate(
        &self,
        call: &Convolution,
        recorded: impl Fn(&Convolution) -> Option<Vec<Bytes>>,
    ) -> Plans {
        let scaled = self.nearest(call).into_iter().filter_map(|layer| {
            let other = layer.call(call.pass, call.dtype, call.batch);
            let (mine, others) = (tensor_bytes(call), tensor_bytes(&other).max(1));
            let (pairs, of_others) = (channel_pairs(call), channel_pairs(&other).max(1));
            let scale = |size: Bytes| {
                let (mine, others) = if size.0 / OUT_OF_PROPORTION > others {
                    (pairs, of_others)
                } else {
                    (mine.into(), others.into())
                };
                // As wide as it must be: sizes are checked to be below 2^60, and the numbers of pairs are.
                let bytes = u128::from(size.0).saturating_mul(mine) / others;
                Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
            };
            Some(recorded(&other)?.into_iter().map(scale).collect::<Vec<_>>())
        });
        match scaled.max_by_key(|workspaces| workspaces.first().copied()) {
            Some(workspaces) => Plans {
                workspaces,
                source: Source::Estimated(RULE),
            },
            None => Plans {
                workspaces: vec![Bytes(tensor_bytes(call)), Bytes::ZERO],
                source: Source::Estimated(LAST_RESORT),
            },
        }
    }

    /// The layers most like a call's; those equally near in an order of their own.
    fn nearest(&self, call: &Convolution) -> Vec<&ConvolutionLayer> {
        let wanted = features(&call.layer());
        let mut nearest: Vec<(f32, &ConvolutionLayer)> = Vec::new();
        for (point, layer) in &self.0 {
            let far = distance(&wanted, point);
            let at = nearest.partition_point(|(other, of)| {
                other.total_cmp(&far).then_with(|| of.cmp(&layer)).is_lt()
            });
            if at < looked_at(call) {
                nearest.insert(at, (far, layer));
                nearest.truncate(looked_at(call));
            }
        }
        nearest.into_iter().map(|(_, layer)| layer).collect()
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
fn tensor_bytes(call: &Convolution) -> u64 {
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

fn distance(a: &Features, b: &Features) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum()
}
