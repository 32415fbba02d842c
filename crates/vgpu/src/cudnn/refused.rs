//! Engines that cuDNN would rank first, and refuses without a device since they load what they run; and what each is given on a card that is
//! there. Only cuDNN's log names them. See Note [Without a device] of `crates/cuda/src/cudnn/NOTES.md`, from where the rules are.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use self::rule::{REFUSED, of_engine, refused_engines};
use super::convolution::{Convolution, Operation, Type as DType};
use super::{engine, real};
use crate::handle::Lock;
use crate::libc;

// The rules of the simulator, in its own format.
#[rustfmt::skip]
#[path = "../../../card/src/device/sim/workspaces/algorithms.rs"]
mod rule;

/// What the plan is given that is refused, where one that takes less than `below` is ranked ahead of the last of so many that the heuristics list.
/// `is_full` passes over cuBLASLt's, which compute float32 in TF32.
pub(super) fn first_of(heuristics: &engine::Descriptor, listed: usize, call: &Convolution, is_full: bool, below: u64) -> Option<u64> {
    let taken = |engine: &i64| of_engine(*engine, call).filter(|size| *size < below && !(is_full && matches!(engine, 58 | 62 | 63)));
    REFUSED.iter().find_map(taken)?;
    logged(|| engine::look_for(heuristics, listed)).iter().find_map(taken)
}

/// The most that an engine asks for that is refused without a device: what a caller takes for a moment that tries all of them, as PyTorch does
/// with `cudnn.benchmark`. cuDNN lists them for planes in float32.
pub(super) fn most_of_all(call: &Convolution) -> Option<u64> {
    let [.., height, width] = call.w;
    let is_listed = call.dtype == DType::Float32 && (height == 1) == (width == 1);
    [3, 18, 50].into_iter().filter(|_| is_listed).filter_map(|engine| of_engine(engine, call)).max()
}

type Callback = unsafe extern "C" fn(c_int, *mut c_void, *const c_void, *const c_char);

/// The thread that listens, and what it heard.
static HEARD: Lock<(usize, Vec<i64>)> = Lock::new((0, Vec::new()));

/// What is refused while something is asked. cuDNN has one callback for all threads, so one asks at a time; that of the program is put back.
fn logged(ask: impl FnOnce()) -> Vec<i64> {
    static ASKING: Lock<()> = Lock::new(());
    /// `CUDNN_SEV_INFO_EN`: the messages among which are those that say why a configuration is refused.
    const INFO: c_uint = 1 << 3;
    let _alone = ASKING.lock();
    let (mut mask, mut data, mut theirs): (c_uint, *mut c_void, Option<Callback>) = (0, null_mut(), None);
    // SAFETY: cuDNN's functions with places for what they write; `hear` lives for ever.
    unsafe {
        *HEARD.lock() = (libc::pthread_self(), Vec::new());
        let _ = real!(cudnnGetCallback(&raw mut mask => *mut c_uint, &raw mut data => *mut *mut c_void, &raw mut theirs => *mut Option<Callback>));
        let _ = real!(cudnnSetCallback(INFO => c_uint, null_mut() => *mut c_void, Some(hear) => Option<Callback>));
        ask();
        // cuDNN says that it would write errors even where its log was never switched on; setting that would switch it on.
        let is_logged = theirs.is_some() || std::env::var_os("CUDNN_LOGLEVEL_DBG").is_some();
        let mask = if is_logged { mask } else { 0 };
        let _ = real!(cudnnSetCallback(mask => c_uint, data => *mut c_void, theirs => Option<Callback>));
    }
    std::mem::take(&mut *HEARD.lock()).1
}

/// A message: lines, each of which ends with a zero, and an empty one.
unsafe extern "C" fn hear(_severity: c_int, _data: *mut c_void, _state: *const c_void, mut message: *const c_char) {
    if message.is_null() || HEARD.lock().0 != libc::pthread_self() {
        return;
    }
    let mut lines = Vec::new();
    while *message != 0 {
        let line = CStr::from_ptr(message).to_bytes();
        lines.extend([b"\n", line].concat());
        message = message.add(line.len() + 1);
    }
    HEARD.lock().1.extend(refused_engines(&String::from_utf8_lossy(&lines)));
}
