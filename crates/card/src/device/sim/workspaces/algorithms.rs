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
    use Operation::{BackwardData, BackwardFilter, Forward};
    let operands = call.operands();
    let of_groups = is_half(call) && groups(call) > 1;
    let [outputs, _, taps @ ..] = operands.w;
    match (engine, operands.operation) {
        (3, Forward) | (18, BackwardFilter) => of_spectra(call),
        // One plane of the input, of each group that is at work.
        (3, BackwardData) if is_plain(call) => {
            Some(elements(&operands.x[2..]).saturating_mul(4 * groups(call).min(GROUPS)))
        }
        (58 | 62 | 63, _) => of_a_product(call),
        // It keeps eight sums of each weight's gradient for each sample, of channels filled up to 32.
        (16, BackwardFilter) if of_groups && call.channels_last => {
            let sums = (8 * 4 * operands.x[0]).saturating_mul(outputs.next_multiple_of(32));
            Some(sums.saturating_mul(taps.iter().product()))
        }
        (5, Forward) | (6, BackwardData) if groups(call) > 1 => Some(0),
        (16, _) if of_groups => Some(0),
        (19, BackwardFilter) if is_half(call) => Some(0),
        (6, Forward) | (7, BackwardData) | (17, BackwardFilter) => of_winograd(call),
        _ => None,
    }
}

/// Groups that are at work at a time, at most.
const GROUPS: u64 = 8;

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
    if !is_product || [x, w, y].iter().any(|of| elements(of) >= MOST) {
        return None;
    }
    Some(match operands.operation {
        Operation::BackwardFilter if !call.channels_last => 4 * x[0] * x[1] * y[1],
        _ => 0,
    })
}

/// Whether it is of a layer for which there are algorithms that transform images: of planes, without stride.
fn is_plain(call: &Convolution) -> bool {
    call.stride == [1; 3] && call.dilation == [1; 3] && !call.volumes
}

/// Elements of a tensor, as the shapes here are: of any size.
fn elements(of: &[u64]) -> u64 {
    of.iter().fold(1, |all, side| all.saturating_mul(*side))
}

/// Winograd's algorithm: tiles of images and of the weight are kept as they are transformed, in float32; of groups whose channels lie side by
/// side copies of the tensors, too. In bytes; `None` for other calls.
pub fn of_winograd(call: &Convolution) -> Option<u64> {
    let operands = call.operands();
    let [x, w, y] = [operands.x, operands.w, operands.y];
    let groups = groups(call).max(1);
    let is_gradient = operands.operation == Operation::BackwardFilter;
    if !is_plain(call) || (call.channels_last && groups == 1) || !(is_gradient || is_half(call)) {
        return None;
    }
    // The side of a tile of the result, and of how many images tiles are kept at a time.
    let (side, images) = match [w[3], w[4]] {
        [3, 3] => (4, if is_gradient { 1 } else { 16 }),
        [5, 5] => (9, 16),
        _ => return None,
    };
    let batch = x[0].checked_next_multiple_of(images)?;
    let of_image = y[3].div_ceil(side).saturating_mul(y[4].div_ceil(side));
    let tiles = of_image.saturating_mul(batch);
    let (of_x, of_y) = (w[1], y[1] / groups);
    let of_w = (w[0] / groups).saturating_mul(w[1]);
    let numbers = tiles.saturating_mul(of_x + of_y).saturating_add(of_w);
    let transformed = (side + w[3] - 1).pow(2);
    let width = if is_half(call) { 2 } else { 4 };
    let copies = [
        [x[0], of_x, x[3], x[4]],
        [x[0], of_y, y[3], y[4]],
        [of_w, 1, w[3], w[4]],
    ];
    let mut of_group = numbers.saturating_mul(4 * transformed);
    for copy in copies.iter().filter(|_| call.channels_last) {
        let chunks = elements(copy).saturating_mul(width).div_ceil(16);
        of_group = of_group.saturating_add(chunks.saturating_mul(16));
    }
    Some(of_group.saturating_mul(groups.min(GROUPS)))
}

/// The gradient of a weight by spectra, with sides of the power of two that holds an image with its padding: of all channels of all images and
/// of the result's gradient, or of the gradient of each weight where those are more, and a copy of the result's gradient; of groups both
/// tensors are gathered as well. A result, of kernels about as large as the image, is the same sum with batch and channels exchanged. In bytes;
/// `None` for other calls, and for results of groups, of which it is not known.
pub fn of_spectra(call: &Convolution) -> Option<u64> {
    const LEAST_SIDE: u64 = 16;
    let operands = call.operands();
    let [mut x, w, mut y] = [operands.x, operands.w, operands.y];
    let groups = groups(call).max(1);
    let is_gradient = operands.operation == Operation::BackwardFilter;
    if operands.operation == Operation::Forward {
        y = [w[1], w[0], w[2], w[3], w[4]];
        x.swap(0, 1);
    }
    let is_such = is_plain(call)
        && !call.channels_last
        && if is_gradient {
            call.dtype == DType::Float32
        } else {
            operands.operation == Operation::Forward && groups == 1
        };
    is_such.then(|| {
        let [_, above, beside] = call.padding;
        let side = (x[3] + 2 * above).max(x[4] + 2 * beside).max(LEAST_SIDE);
        let side = side.next_power_of_two();
        // A side may be as long as a tensor may have elements.
        let spectrum = side.saturating_mul(side + 2);
        let (of_x, of_y) = (x[1] / groups, y[1] / groups);
        // Those of the gradient take the place of those of the images.
        let planes = x[0]
            .saturating_mul(of_x + of_y)
            .max(of_x.saturating_mul(of_y));
        let copy = |channels: u64, of: [u64; 5]| elements(&[4, x[0], channels, of[3], of[4]]);
        let mut bytes = spectrum
            .saturating_mul(planes.saturating_mul(8))
            .saturating_add(copy(of_y, y));
        if groups > 1 && x[0] > 1 {
            bytes = bytes
                .saturating_add(copy(of_x, x))
                .saturating_add(copy(of_y, y))
                .saturating_add(1);
        }
        bytes.div_ceil(16).saturating_mul(16 * groups.min(GROUPS))
    })
}
