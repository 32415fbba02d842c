//! What cuDNN keeps for algorithms that transform images, and for engines that are refused where there is no device. Found beside plans recorded
//! on an H100; `crates/cuda/src/cudnn/NOTES.md` says how.
//!
//! The virtual GPU (`crates/vgpu`) compiles this file too, so it needs nothing but what its parent names.

use super::{Convolution, DType, Operation};

/// All engines of [`of_engine`].
pub const REFUSED: [i64; 12] = [3, 5, 6, 7, 16, 17, 18, 19, 50, 58, 62, 63];

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
        (50, BackwardData) => of_tiled_spectra(call),
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

/// Engines of which a message of cuDNN's says that they were refused because there is no device, or no driver. `log` may have other messages
/// around it, as lines that begin with `I`.
pub fn refused_engines(log: &str) -> Vec<i64> {
    /// How that message begins.
    const CHECKS: &str = "engine_config_support_checks() called:";
    const NO_DEVICE: [&str; 2] = ["engine_iface->getStatus()", "this->libcuda == nullptr"];
    let checks = log.split_once(CHECKS).map_or("", |(_, checks)| checks);
    // Lines of one message begin with a small `i`, or with nothing.
    let checks = checks.split("\nI").next().unwrap_or_default();
    let mut engines = Vec::new();
    for part in checks.split("\"engineId\":").skip(1) {
        let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let mut reasons = part.split("Reason: ").skip(1);
        if reasons.any(|reason| NO_DEVICE.iter().any(|said| reason.starts_with(said))) {
            engines.extend(part[..digits].parse::<i64>());
        }
    }
    engines
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
    let is_single = call.channels_last && groups == 1;
    if !is_plain(call) || (is_single && is_half(call)) || !(is_gradient || is_half(call)) {
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
    if is_single {
        of_group = of_group.saturating_add(16);
    }
    Some(of_group.saturating_mul(groups.min(GROUPS)))
}

/// What layers keep that are computed by spectra: of a weight's gradient, with sides of the power of two that holds an image with its padding, of
/// all channels of all images and of the result's gradient, or of the gradient of each weight where those are more, and a copy of the result's
/// gradient. A result, of kernels about as large as the image, is the same sum with batch and channels exchanged. Groups, and channels that lie
/// side by side, are gathered as well. In bytes; `None` for other calls.
pub fn of_spectra(call: &Convolution) -> Option<u64> {
    const SIDES: std::ops::RangeInclusive<u64> = 16..=256;
    let operands = call.operands();
    let [x, w, y] = [operands.x, operands.w, operands.y];
    let groups = groups(call).max(1);
    let is_gradient = match operands.operation {
        Operation::BackwardFilter if !is_half(call) => true,
        Operation::Forward if !is_half(call) || (groups == 1 && !call.channels_last) => false,
        _ => return None,
    };
    let [_, above, beside] = call.padding;
    let side = (x[3] + 2 * above)
        .max(x[4] + 2 * beside)
        .max(*SIDES.start());
    if !is_plain(call) || side > *SIDES.end() {
        return None;
    }
    let side = side.next_power_of_two();
    let (batch, of_x, of_y) = (x[0], w[1], y[1] / groups);
    let of_w = of_x.saturating_mul(of_y);
    // Those of the gradient, or of the result, take the place of those of the images.
    let planes = if is_gradient {
        batch.saturating_mul(of_x + of_y).max(of_w)
    } else {
        of_x.saturating_mul(batch + of_y)
            .max(batch.saturating_mul(of_y))
    };
    let copies = [
        [batch, of_x, x[3], x[4]],
        [batch, of_y, y[3], y[4]],
        [of_w, 1, w[3], w[4]],
    ];
    let [of_x, of_y, of_w] = copies.map(|of| elements(&of));
    let mut numbers = elements(&[2, side, side + 2, planes]).saturating_add(if is_gradient {
        of_y
    } else {
        of_w
    });
    if is_gathered(call) {
        // One number for what is counted in single bytes.
        numbers = [of_x, of_y, 1]
            .into_iter()
            .fold(numbers, u64::saturating_add);
        if call.channels_last && w[2..] != [1; 3] {
            numbers = numbers.saturating_add(of_w);
        }
    }
    Some(of_groups_at_work(numbers, groups))
}

/// Whether each group's tensors are gathered before they are transformed.
fn is_gathered(call: &Convolution) -> bool {
    call.channels_last || (groups(call) > 1 && call.operands().x[0] > 1)
}

/// Float32 numbers of each group, in bytes.
fn of_groups_at_work(numbers: u64, groups: u64) -> u64 {
    let bytes = numbers.saturating_mul(4).checked_next_multiple_of(16);
    bytes.map_or(u64::MAX, |bytes| bytes.saturating_mul(groups.min(GROUPS)))
}

/// What gradients of inputs in float32 keep that are computed by spectra of tiles of 32 x 32, of two tiles at most at a time. With strides of two
/// each of the four phases of an image is a layer of its own. In bytes; `None` for other calls.
pub fn of_tiled_spectra(call: &Convolution) -> Option<u64> {
    /// A real tile's spectrum: 32 rows of 17 complex numbers.
    const SPECTRUM: u64 = 32 * 17 * 2;
    const SIDE: u64 = 32;
    let operands = call.operands();
    let [x, w, y] = [operands.x, operands.w, operands.y];
    let strides = [call.stride[1], call.stride[2]];
    let is_such = operands.operation == Operation::BackwardData
        && !is_half(call)
        && !call.volumes
        && call.dilation == [1; 3]
        && (strides == [1; 2] || strides == [2; 2])
        && w[3].min(w[4]) > strides[0];
    if !is_such {
        return None;
    }
    let groups = groups(call).max(1);
    let (mut of_x, mut of_y) = (w[1], y[1] / groups);
    let (mut images, mut taps, mut results) = ([x[3], x[4]], [w[3], w[4]], [y[3], y[4]]);
    let is_strided = strides == [2; 2];
    if is_strided {
        (of_x, of_y) = (
            of_x.checked_next_multiple_of(2)?,
            of_y.checked_next_multiple_of(8)?,
        );
        for axis in 0..2 {
            images[axis] = images[axis].div_ceil(2);
            taps[axis] = (taps[axis] + call.padding[1 + axis] % 2).div_ceil(2);
            results[axis] =
                (images[axis] + taps[axis] - 1).saturating_sub(2 * ((taps[axis] - 1) / 2));
        }
        of_x = of_x.saturating_mul(4);
    }
    let tiles = if (0..2).all(|axis| images[axis] + taps[axis] - 1 <= SIDE) {
        1
    } else {
        2
    };
    let of_w = of_x.saturating_mul(of_y);
    let planes = elements(&[x[0], tiles, of_x + of_y]).saturating_add(of_w);
    let copies = [
        elements(&[x[0], of_x, images[0], images[1]]),
        elements(&[x[0], of_y, results[0], results[1]]),
        if is_strided || call.channels_last {
            elements(&[of_w, taps[0], taps[1]])
        } else {
            0
        },
        1,
    ];
    let mut numbers = planes.saturating_mul(SPECTRUM);
    if is_strided || is_gathered(call) {
        numbers = copies.into_iter().fold(numbers, u64::saturating_add);
    }
    Some(of_groups_at_work(numbers, groups))
}
