//! What cuDNN keeps for algorithms that transform images. Found beside plans recorded on an H100; `src/device/cuda/cudnn/NOTES.md` says how.

use crate::program::{Convolution, ConvolutionPass};
use crate::shape::DType;
use crate::units::Bytes;

/// Whether it is of a layer for which there are such algorithms: of planes, row-major, without stride.
fn is_plain(call: &Convolution) -> bool {
    call.stride == [1; 3]
        && call.dilation == [1; 3]
        && !call.transposed
        && !call.channels_last
        && !call.volumes
}

/// Winograd's algorithm: tiles of images and of the weight are kept as they are transformed, in float32. `None` for other calls.
pub fn of_winograd(call: &Convolution) -> Option<Bytes> {
    if !is_plain(call) {
        return None;
    }
    let is_half = matches!(call.dtype, DType::Float16 | DType::BFloat16);
    // The side of a tile of the result, and of how many images tiles are kept at a time.
    let (side, images) = match (call.pass, call.kernel) {
        (ConvolutionPass::GradWeight, [1, 3, 3]) => (4, 1),
        (ConvolutionPass::GradWeight, [1, 5, 5]) if call.dtype == DType::Float32 => (9, 16),
        (ConvolutionPass::Forward | ConvolutionPass::GradInput, [1, 3, 3])
            if is_half && call.groups == 1 =>
        {
            (4, 16)
        }
        _ => return None,
    };
    let [_, height, width] = call.output();
    let batch = call.batch.checked_next_multiple_of(images)?;
    let tiles = (height.div_ceil(side) * width.div_ceil(side)).saturating_mul(batch);
    let channels = call.in_channels + call.out_channels;
    let weight = call.in_channels * call.out_channels / call.groups.max(1);
    let numbers = tiles.saturating_mul(channels).saturating_add(weight);
    let transformed = (side + call.kernel[1] - 1).pow(2);
    Some(Bytes(numbers.saturating_mul(4 * transformed)))
}

/// The gradient of a weight by spectra, with sides of the power of two that holds an image with its padding: of all channels of all images and
/// of the result's gradient, or of the gradient of each weight where those are more, and a copy of the result's gradient. `None` for other calls, and for groups, of which it is not known.
pub fn of_spectra(call: &Convolution) -> Option<Bytes> {
    let is_such = is_plain(call)
        && call.pass == ConvolutionPass::GradWeight
        && call.dtype == DType::Float32
        && call.kernel == [1, 3, 3]
        && call.groups == 1;
    is_such.then(|| {
        let [_, height, width] = call.input;
        let [_, above, beside] = call.padding;
        let side = (height + 2 * above)
            .max(width + 2 * beside)
            .next_power_of_two();
        // A side may be as long as a tensor may have elements.
        let spectrum = side.saturating_mul(side + 2);
        // Those of the gradient take the place of those of the images.
        let images = call
            .batch
            .saturating_mul(call.in_channels + call.out_channels);
        let planes = images.max(call.in_channels * call.out_channels);
        let result: u64 = call.output().iter().product();
        let copy = call.batch.saturating_mul(result * call.out_channels);
        let numbers = spectrum.saturating_mul(2 * planes).saturating_add(copy);
        Bytes(numbers.saturating_mul(4))
    })
}
