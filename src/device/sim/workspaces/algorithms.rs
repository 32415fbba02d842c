//! What cuDNN keeps for algorithms that transform images: known for gradients of weights of 3x3 in float32.

use crate::program::{Convolution, ConvolutionPass};
use crate::shape::DType;
use crate::units::Bytes;

/// Whether it is the gradient of the weight of a plain layer of 3x3 in float32, for which there are algorithms of Winograd and Fourier.
fn is_gradient_of_3x3(call: &Convolution) -> bool {
    call.pass == ConvolutionPass::GradWeight
        && call.dtype == DType::Float32
        && call.kernel == [1, 3, 3]
        && call.stride == [1; 3]
        && call.dilation == [1; 3]
        && !call.transposed
        && !call.channels_last
        && !call.volumes
}

/// The gradient of a weight in tiles of 4x4 that become 6x6: those of both images and of the weight are kept. `None` for other calls.
pub fn of_winograd(call: &Convolution) -> Option<Bytes> {
    const TRANSFORMED: u64 = 36 * 4;
    is_gradient_of_3x3(call).then(|| {
        let [_, height, width] = call.output();
        let tiles = (height.div_ceil(4) * width.div_ceil(4)).saturating_mul(call.batch);
        let channels = call.in_channels + call.out_channels;
        let weight = call.in_channels * call.out_channels / call.groups.max(1);
        let numbers = tiles.saturating_mul(channels).saturating_add(weight);
        Bytes(numbers.saturating_mul(TRANSFORMED))
    })
}

/// The gradient of a weight by spectra: of each image two, with sides of the power of two that holds it with its padding, and a copy of the
/// result's gradient. `None` for other calls, and for groups, of which it is not known.
pub fn of_spectra(call: &Convolution) -> Option<Bytes> {
    (is_gradient_of_3x3(call) && call.groups == 1).then(|| {
        let [_, height, width] = call.input;
        let [_, above, beside] = call.padding;
        let side = (height + 2 * above)
            .max(width + 2 * beside)
            .next_power_of_two();
        // A side may be as long as a tensor may have elements.
        let spectrum = side.saturating_mul(side + 2);
        let channels = call.in_channels + call.out_channels;
        let result: u64 = call.output().iter().product();
        let of_sample = spectrum
            .saturating_mul(2 * channels)
            .saturating_add(result * call.out_channels);
        Bytes(of_sample.saturating_mul(4 * call.batch))
    })
}
