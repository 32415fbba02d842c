//! Engines that cuDNN would rank first, and refuses without a device since they load what they run; and what each is given on a card that is
//! there. Only cuDNN's log names them. See Note [Without a device] of `src/device/cuda/cudnn/NOTES.md`, from where the rules are.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use super::convolution::{Convolution, Operation, Type};
use super::{Opaque, engine, lock, real};

/// What the plan is given that is refused, where one is ranked first of what the heuristics would list.
pub(super) fn first_of(heuristics: Opaque, call: &Convolution) -> Option<u64> {
    if !REFUSED.iter().any(|engine| of_engine(*engine, call).is_some()) {
        return None;
    }
    let engines = logged(|| engine::look_for_one(heuristics));
    engines.into_iter().find_map(|engine| of_engine(engine, call))
}

/// All engines of [`of_engine`].
const REFUSED: [i64; 10] = [5, 6, 7, 16, 17, 18, 19, 58, 62, 63];

/// What an engine is given; `None` for calls that it is not for, and where that is not known.
fn of_engine(engine: i64, call: &Convolution) -> Option<u64> {
    let of_groups = call.dtype.is_half() && call.groups() > 1;
    let [outputs, _, taps @ ..] = call.w;
    match engine {
        58 | 62 | 63 => of_a_product(call),
        // It keeps eight sums of each weight's gradient for each sample.
        16 if of_groups && call.channels_last && call.operation == Operation::BackwardFilter => {
            Some((8 * 4 * call.x[0]).saturating_mul(outputs).saturating_mul(taps.iter().product()))
        }
        5 | 6 | 16 if of_groups => Some(0),
        19 if call.dtype.is_half() && call.operation == Operation::BackwardFilter => Some(0),
        6 if call.operation == Operation::Forward => of_winograd(call),
        7 if call.operation == Operation::BackwardData => of_winograd(call),
        17 if call.operation == Operation::BackwardFilter => of_winograd(call),
        18 => of_spectra(call),
        _ => None,
    }
}

/// A cuBLASLt engine, for a layer that is a product of matrices.
fn of_a_product(call: &Convolution) -> Option<u64> {
    /// Tensors of cuBLASLt's engines have fewer elements.
    const MOST: u64 = 1 << 31;
    let is_product = call.w[2..] == [1; 3] && call.stride == [1; 3] && call.padding == [0; 3] && call.groups() == 1;
    let elements = |of: [u64; 5]| of.iter().fold(1, |all: u64, extent| all.saturating_mul(*extent));
    if !is_product || [call.x, call.w, call.y].into_iter().any(|of| elements(of) >= MOST) {
        return None;
    }
    Some(match call.operation {
        Operation::BackwardFilter if !call.channels_last => 4 * call.x[0] * call.x[1] * call.y[1],
        _ => 0,
    })
}

/// Whether there are algorithms that transform images: of planes, row-major, without stride.
fn is_plain(call: &Convolution) -> bool {
    call.stride == [1; 3] && call.dilation == [1; 3] && !call.channels_last && !call.volumes
}

/// Winograd's algorithm: tiles of images and of the weight are kept as they are transformed, in float32.
fn of_winograd(call: &Convolution) -> Option<u64> {
    if !is_plain(call) {
        return None;
    }
    let kernel = [call.w[3], call.w[4]];
    // The side of a tile of the result, and of how many images tiles are kept at a time.
    let (side, images) = match (call.operation, kernel) {
        (Operation::BackwardFilter, [3, 3]) => (4, 1),
        (Operation::BackwardFilter, [5, 5]) if call.dtype == Type::Float32 => (9, 16),
        (Operation::Forward | Operation::BackwardData, [3, 3]) if call.dtype.is_half() && call.groups() == 1 => (4, 16),
        _ => return None,
    };
    let [_, _, _, height, width] = call.y;
    let batch = call.x[0].checked_next_multiple_of(images)?;
    let tiles = height.div_ceil(side).saturating_mul(width.div_ceil(side)).saturating_mul(batch);
    let numbers = tiles.saturating_mul(call.x[1] + call.y[1]).saturating_add(call.w[0].saturating_mul(call.w[1]));
    let transformed = (side + kernel[0] - 1).pow(2);
    Some(numbers.saturating_mul(4 * transformed))
}

/// The gradient of a weight by spectra, with sides of the power of two that holds an image with its padding: of all channels of all images and of
/// the result's gradient, or of each weight's gradient where those are more, and a copy of the result's gradient. Of groups it is not known.
fn of_spectra(call: &Convolution) -> Option<u64> {
    let is_such = is_plain(call)
        && call.operation == Operation::BackwardFilter
        && call.dtype == Type::Float32
        && call.w[2..] == [1, 3, 3]
        && call.groups() == 1;
    is_such.then(|| {
        let side = (call.x[3] + 2 * call.padding[1]).max(call.x[4] + 2 * call.padding[2]).next_power_of_two();
        let spectrum = side.saturating_mul(side + 2);
        // Those of the gradient take the place of those of the images.
        let planes = call.x[0].saturating_mul(call.x[1] + call.y[1]).max(call.x[1].saturating_mul(call.y[1]));
        let copy = call.y.iter().fold(1, |all: u64, extent| all.saturating_mul(*extent));
        spectrum.saturating_mul(planes.saturating_mul(2)).saturating_add(copy).saturating_mul(4)
    })
}

type Callback = unsafe extern "C" fn(c_int, *mut c_void, *const c_void, *const c_char);

/// The thread that listens, and what it heard.
static HEARD: Mutex<(usize, Vec<i64>)> = Mutex::new((0, Vec::new()));

unsafe extern "C" {
    fn pthread_self() -> usize;
}

/// What is refused while something is asked. cuDNN has one callback for all threads, so one asks at a time; that of the program is put back.
fn logged(ask: impl FnOnce()) -> Vec<i64> {
    static ASKING: Mutex<()> = Mutex::new(());
    /// `CUDNN_SEV_INFO_EN`: the messages among which are those that say why a configuration is refused.
    const INFO: c_uint = 1 << 3;
    let _alone = lock(&ASKING);
    let (mut mask, mut data, mut theirs): (c_uint, *mut c_void, Option<Callback>) = (0, null_mut(), None);
    // SAFETY: cuDNN's functions with places for what they write; `hear` lives for ever.
    unsafe {
        *lock(&HEARD) = (pthread_self(), Vec::new());
        real!(cudnnGetCallback(&raw mut mask => *mut c_uint, &raw mut data => *mut *mut c_void, &raw mut theirs => *mut Option<Callback>));
        real!(cudnnSetCallback(INFO => c_uint, null_mut() => *mut c_void, Some(hear) => Option<Callback>));
        ask();
        // cuDNN says that it would write errors even where its log was never switched on; setting that would switch it on.
        let is_logged = theirs.is_some() || std::env::var_os("CUDNN_LOGLEVEL_DBG").is_some();
        let mask = if is_logged { mask } else { 0 };
        real!(cudnnSetCallback(mask => c_uint, data => *mut c_void, theirs => Option<Callback>));
    }
    std::mem::take(&mut *lock(&HEARD)).1
}

/// A message: lines, each of which ends with a zero, and an empty one.
unsafe extern "C" fn hear(_severity: c_int, _data: *mut c_void, _state: *const c_void, mut message: *const c_char) {
    if message.is_null() || lock(&HEARD).0 != pthread_self() {
        return;
    }
    let mut lines = Vec::new();
    while *message != 0 {
        let line = CStr::from_ptr(message).to_bytes();
        lines.push(String::from_utf8_lossy(line));
        message = message.add(line.len() + 1);
    }
    let refused = refused_engines(lines.iter().map(|line| &**line));
    lock(&HEARD).1.extend(refused);
}

/// Engines of which a message says that they were refused because there is no device, or no driver.
fn refused_engines<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<i64> {
    const CHECKS: &str = "engine_config_support_checks() called:";
    const NO_DEVICE: [&str; 2] = ["Reason: engine_iface->getStatus()", "Reason: this->libcuda == nullptr"];
    let (mut engines, mut current, mut is_of_checks) = (Vec::new(), None::<i64>, false);
    for line in lines {
        is_of_checks |= line.contains(CHECKS);
        if let Some((_, rest)) = line.split_once("\"engineId\":") {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            current = rest[..digits].parse().ok();
        }
        if is_of_checks && NO_DEVICE.iter().any(|reason| line.contains(reason)) {
            engines.extend(current);
        }
    }
    engines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_which_engines_were_refused_for_want_of_a_device() {
        let lines = [
            "CuDNN (v91900 56) function cudnnBackendGetAttribute_CUDNN_ATTR_ENGINEHEUR_RESULTS_engine_config_support_checks() called:",
            "    engineConfig: type=json; val={\"engineId\":58,\"smVersion\":900,\"knobChoices\":{}};",
            "    Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: engine_iface->getStatus()",
            "    engineConfig: type=json; val={\"engineId\":19,\"smVersion\":900,\"knobChoices\":{}};",
            "    Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: this->libcuda == nullptr",
            "    engineConfig: type=json; val={\"engineId\":40,\"smVersion\":900,\"knobChoices\":{}};",
            "    Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: has_odd_channels",
        ];
        assert_eq!(refused_engines(lines.into_iter()), [58, 19]);
        assert!(refused_engines(lines[1..].iter().copied()).is_empty());
    }

    #[test]
    fn refused_engines_are_given_what_they_were_recorded_to_take() {
        // Of an H100 with cuDNN 9.19: channels in and out, groups, sides, kernel, padding, pass, type, batch, channels-last, engine, bytes.
        use Operation::{BackwardData, BackwardFilter, Forward};
        use Type::{BFloat16, Float16, Float32};
        for (channels, groups, side, kernel, padding, pass, kind, batch, channels_last, engine, bytes) in [
            ([152, 64], 1, 32, 3, 1, BackwardFilter, Float32, 1, false, 17, 3_391_488),
            ([256, 512], 2, 16, 3, 1, BackwardFilter, Float32, 12, false, 17, 30_670_848),
            ([152, 64], 1, 32, 3, 1, BackwardFilter, Float32, 500, false, 18, 3_780_608_000),
            ([72, 72], 1, 50, 3, 1, BackwardFilter, Float32, 4, false, 18, 178_057_728),
            ([192, 192], 192, 16, 3, 1, BackwardFilter, Float16, 8, true, 16, 442_368),
            ([300, 300], 1, 15, 5, 2, BackwardFilter, Float32, 2, false, 17, 86_798_400),
            ([16, 16], 1, 48, 3, 1, Forward, BFloat16, 57, false, 6, 42_504_192),
            ([400, 400], 1, 5, 3, 1, BackwardData, Float16, 2, false, 7, 30_412_800),
            ([192, 192], 192, 48, 3, 1, Forward, Float16, 100, true, 5, 0),
            ([64, 256], 1, 56, 1, 0, BackwardFilter, Float32, 32, false, 62, 2_097_152),
        ] {
            let call = Convolution {
                operation: pass,
                dtype: kind,
                x: [batch, channels[0], 1, side, side],
                w: [channels[1], channels[0] / groups, 1, kernel, kernel],
                y: [batch, channels[1], 1, side, side],
                stride: [1; 3],
                padding: [0, padding, padding],
                dilation: [1; 3],
                volumes: false,
                channels_last,
            };
            assert_eq!(of_engine(engine, &call), Some(bytes), "{call:?}");
        }
    }
}
