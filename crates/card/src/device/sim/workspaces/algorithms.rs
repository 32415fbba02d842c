//! What cuDNN keeps for algorithms that transform images, and for engines that are refused where there is no device. Found beside plans recorded
//! on an H100; `crates/cuda/src/cudnn/NOTES.md` says how.
//!
//! The virtual GPU (`crates/vgpu`) compiles this file too, so it needs nothing but what its parent names.

use super::{Convolution, DType, Operation};

/// All engines of [`of_engine`].
pub const REFUSED: [i64; 11] = [3, 5, 6, 7, 16, 17, 18, 19, 58, 62, 63];

/// Engines of cuDNN 9.19 that are refused where there is no device or no driver, since they would load what they run, and what each is given
/// on a card that is there, in bytes. `None` for calls that it is not for, and where that is not known.
pub fn of_engine(engine: i64, call: &Convolution) -> Option<u64> {
    let operands = call.operands();
    let of = operands.operation;
    let of_groups = is_half(call) && groups(call) > 1;
    let [outputs, _, taps @ ..] = operands.w;
    match engine {
        3 if of == Operation::Forward => of_spectra(call),
        58 | 62 | 63 => of_a_product(call),
        // It keeps eight sums of each weight's gradient for each sample.
        16 if of_groups && call.channels_last && of == Operation::BackwardFilter => {
            let sums = (8 * 4 * operands.x[0]).saturating_mul(outputs);
            Some(sums.saturating_mul(taps.iter().product()))
        }
        5 | 6 | 16 if of_groups => Some(0),
        19 if is_half(call) && of == Operation::BackwardFilter => Some(0),
        6 if of == Operation::Forward => of_winograd(call),
        7 if of == Operation::BackwardData => of_winograd(call),
        17 if of == Operation::BackwardFilter => of_winograd(call),
        18 => of_spectra(call),
        _ => None,
    }
}

fn is_half(call: &Convolution) -> bool {
    matches!(call.dtype, DType::Float16 | DType::BFloat16)
}

fn groups(call: &Convolution) -> u64 {
    let operands = call.operands();
    operands.x[1] / operands.w[1].max(1)
}

/// A cuBLASLt engine, for a layer that is a product of matrices.
pub fn of_a_product(call: &Convolution) -> Option<u64> {
    /// Tensors of cuBLASLt's engines have fewer elements.
    const MOST: u64 = 1 << 31;
    let operands = call.operands();
    let [x, w, y] = [operands.x, operands.w, operands.y];
    let is_product =
        w[2..] == [1; 3] && call.stride == [1; 3] && call.padding == [0; 3] && groups(call) == 1;
    let elements = |of: [u64; 5]| {
        of.iter()
            .fold(1, |all: u64, side| all.saturating_mul(*side))
    };
    if !is_product || [x, w, y].into_iter().any(|of| elements(of) >= MOST) {
        return None;
    }
    Some(match operands.operation {
        Operation::BackwardFilter if !call.channels_last => 4 * x[0] * x[1] * y[1],
        _ => 0,
    })
}

/// Whether it is of a layer for which there are algorithms that transform images: of planes, row-major, without stride.
fn is_plain(call: &Convolution) -> bool {
    call.stride == [1; 3] && call.dilation == [1; 3] && !call.channels_last && !call.volumes
}

/// Winograd's algorithm: tiles of images and of the weight are kept as they are transformed, in float32. In bytes; `None` for other calls.
pub fn of_winograd(call: &Convolution) -> Option<u64> {
    if !is_plain(call) {
        return None;
    }
    let operands = call.operands();
    let [x, w, y] = [operands.x, operands.w, operands.y];
    // The side of a tile of the result, and of how many images tiles are kept at a time.
    let (side, images) = match (operands.operation, [w[3], w[4]]) {
        (Operation::BackwardFilter, [3, 3]) => (4, 1),
        (Operation::BackwardFilter, [5, 5]) if call.dtype == DType::Float32 => (9, 16),
        (Operation::Forward | Operation::BackwardData, [3, 3])
            if is_half(call) && groups(call) == 1 =>
        {
            (4, 16)
        }
        _ => return None,
    };
    let batch = x[0].checked_next_multiple_of(images)?;
    let of_image = y[3].div_ceil(side).saturating_mul(y[4].div_ceil(side));
    let tiles = of_image.saturating_mul(batch);
    let numbers = tiles.saturating_mul(x[1] + y[1]);
    let numbers = numbers.saturating_add(w[0].saturating_mul(w[1]));
    let transformed = (side + w[3] - 1).pow(2);
    Some(numbers.saturating_mul(4 * transformed))
}

/// The gradient of a weight by spectra, with sides of the power of two that holds an image with its padding: of all channels of all images and
/// of the result's gradient, or of the gradient of each weight where those are more, and a copy of the result's gradient. A result of 3x3, of
/// a kernel about as large as the image, is the same sum with batch and channels exchanged: gradients of gradients ask for it. In bytes;
/// `None` for other calls, and for groups, of which it is not known.
pub fn of_spectra(call: &Convolution) -> Option<u64> {
    let operands = call.operands();
    let [mut x, mut w, mut y] = [operands.x, operands.w, operands.y];
    if operands.operation == Operation::Forward {
        (w, y) = (
            [y[1], y[0], y[2], y[3], y[4]],
            [w[1], w[0], w[2], w[3], w[4]],
        );
        x.swap(0, 1);
    }
    let is_such = is_plain(call)
        && operands.operation != Operation::BackwardData
        && call.dtype == DType::Float32
        && matches!(w[2..], [1, 3, 3] | [1, 1, 5])
        && groups(call) == 1;
    is_such.then(|| {
        let [_, above, beside] = call.padding;
        let side = (x[3] + 2 * above).max(x[4] + 2 * beside);
        let side = side.next_power_of_two();
        // A side may be as long as a tensor may have elements.
        let spectrum = side.saturating_mul(side + 2);
        // Those of the gradient take the place of those of the images.
        let images = x[0].saturating_mul(x[1] + y[1]);
        let planes = images.max(x[1].saturating_mul(y[1]));
        let copy = y.iter().fold(1, |all: u64, side| all.saturating_mul(*side));
        let numbers = spectrum.saturating_mul(planes.saturating_mul(2));
        numbers.saturating_add(copy).saturating_mul(4)
    })
}
