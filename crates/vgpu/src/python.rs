//! The interpreter that the script runs in, and the part of `batchfit run` that is written in Python (`crates/vgpu/python`).
//!
//! It is loaded when PyTorch first asks how many devices there are. It watches steps and phases, names lines of the script, and loads the
//! object that computes values, which was built for this very PyTorch (`crates/vgpu/values`). That object calls the functions below.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::channel;
use crate::config::config;
use crate::libc;
use crate::memory::{bytes, is_device, known};
use crate::runtime::{capture, trace};

/// Runs Python in the interpreter of this process; `None` where there is none, or where it fails.
fn run(code: &str) -> Option<()> {
    type Ask = unsafe extern "C" fn() -> c_int;
    type Release = unsafe extern "C" fn(c_int);
    type Run = unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int;
    let symbol = |name| libc::symbol(libc::RTLD_DEFAULT, name);
    let (ready, ensure) = (symbol(c"Py_IsInitialized")?, symbol(c"PyGILState_Ensure")?);
    let (release, run) = (symbol(c"PyGILState_Release")?, symbol(c"PyRun_SimpleStringFlags")?);
    let code = CString::new(code).ok()?;
    // SAFETY: these are Python's functions of those names.
    unsafe {
        let ready: Ask = std::mem::transmute(ready);
        let ensure: Ask = std::mem::transmute(ensure);
        let release: Release = std::mem::transmute(release);
        let run: Run = std::mem::transmute(run);
        let state = (ready() != 0).then(|| ensure())?;
        let done = run(code.as_ptr(), std::ptr::null_mut()) == 0;
        release(state);
        done.then_some(())
    }
}

/// Loads the hooks, once, when PyTorch's CUDA half is in this process.
pub fn load_hooks() {
    static TRIED: AtomicBool = AtomicBool::new(false);
    let Some(path) = config().and_then(|config| config.hooks.as_deref()) else {
        return;
    };
    if TRIED.load(Ordering::Acquire) {
        return;
    }
    if libc::loaded(c"libtorch_cuda.so").is_none() || TRIED.swap(true, Ordering::AcqRel) {
        return;
    }
    // PyTorch is in the midst of asking for devices: the hooks may not ask for them, too.
    // Names of the script are left alone, even `compile` and `open`.
    let code = format!(
        "(lambda b: b.exec(b.compile(b.open({path:?}).read(), {path:?}, 'exec'), {{'__name__': 'batchfit_hooks', '__file__': {path:?}}}))(__import__('builtins'))"
    );
    if run(&code).is_none() {
        channel::say("problem\tthe hooks of batchfit did not load: steps, phases and values are not seen");
    }
}

/// Says that a script reads what was never computed; the hooks add the line that does.
pub fn doubt(bytes: u64) {
    let is_watched = config().is_some_and(|config| config.hooks.is_some());
    let code = format!("__import__('sys').modules['batchfit_hooks'].doubt({bytes})");
    if !is_watched || run(&code).is_none() {
        channel::say(&format!("doubt\t{bytes}"));
    }
}

/// Whether an address is one of a device.
#[unsafe(no_mangle)]
pub extern "C" fn batchfit_vgpu_is_device(address: u64) -> c_int {
    c_int::from(is_device(address))
}

/// Whether all of a range is known.
#[unsafe(no_mangle)]
pub extern "C" fn batchfit_vgpu_is_known(address: u64, bytes: u64) -> c_int {
    c_int::from(known::is_known(address, bytes))
}

/// Says whether a range is known from now on. What is computed in a capture is not what a launch of the graph will leave.
#[unsafe(no_mangle)]
pub extern "C" fn batchfit_vgpu_mark(address: u64, bytes: u64, is_known: c_int) {
    known::mark(address, bytes, is_known != 0 && capture::is_idle());
}

/// What the next small read from a device by this thread gives; negative: what lies there.
#[unsafe(no_mangle)]
pub extern "C" fn batchfit_vgpu_expect(count: i64) {
    bytes::expect((count >= 0).then_some(count));
}

/// Says a line to `batchfit run`.
/// Safety: `line` is null or text that ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn batchfit_vgpu_say(line: *const c_char) {
    trace::flush();
    if !line.is_null() {
        channel::say(&CStr::from_ptr(line).to_string_lossy());
    }
}
