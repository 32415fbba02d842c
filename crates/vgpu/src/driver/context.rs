//! Contexts. One that a program makes for itself is a further name of its device: memory belongs to devices.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

use crate::handle::Handles;
use crate::names::{done, functions, same};
use crate::runtime::devices::{count, current_device, set_device};
use crate::status::{INVALID_CONTEXT, INVALID_VALUE, Status, check, out, out_if};

use super::device;

/// The primary context of a device is this and its number; no page lies there.
const PRIMARY: u64 = 0x1000;

/// Those that programs made, and of which device.
static MADE: Handles<c_int> = Handles::new();

/// A deeper stack of contexts is refused.
const DEEPEST: usize = 32;

thread_local! {
    /// The stack of this thread, and how many are on it. Without any, that of the current device's primary context.
    static STACK: [Cell<u64>; DEEPEST] = const { [const { Cell::new(0) }; DEEPEST] };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A device's primary context.
pub(super) fn primary(device: usize) -> u64 {
    PRIMARY + device as u64
}

/// Of which device a context is.
fn device_of(context: u64) -> Result<c_int, Status> {
    let number = context.checked_sub(PRIMARY).filter(|&number| number < count() as u64);
    let number = number.map_or_else(|| MADE.with(context, |device| *device), |number| Some(number as c_int));
    number.ok_or(INVALID_CONTEXT)
}

/// This thread's context. `cudaSetDevice` makes another device's primary one current, whatever was on the stack.
fn top() -> u64 {
    let device = current_device();
    let depth = DEPTH.get();
    let top = if depth == 0 { 0 } else { STACK.with(|stack| stack[depth - 1].get()) };
    if device_of(top) == Ok(device as c_int) { top } else { primary(device) }
}

fn put(context: u64, depth: usize) -> Result<(), Status> {
    let device = device_of(context)?;
    check(depth <= DEEPEST, INVALID_VALUE)?;
    STACK.with(|stack| stack[depth - 1].set(context));
    DEPTH.set(depth);
    set_device(device)
}

unsafe fn create(context: *mut u64, number: c_int) -> Result<(), Status> {
    device(number)?;
    check(!context.is_null(), INVALID_VALUE)?;
    let made = MADE.insert(number);
    out(context, made)?;
    put(made, DEPTH.get() + 1)
}

functions! {
    cuDevicePrimaryCtxRetain(context: *mut u64, number: c_int) { out(context, primary(device(number)?)) }
    cuDevicePrimaryCtxRelease_v2(number: c_int) { device(number).map(drop) }
    cuDevicePrimaryCtxGetState(number: c_int, flags: *mut c_uint, active: *mut c_int) {
        device(number)?;
        out_if(flags, 0);
        out(active, 1)
    }
    cuCtxCreate_v2(context: *mut u64, _flags: c_uint, device: c_int) { create(context, device) }
    cuCtxCreate_v3(context: *mut u64, _affinity: *const c_void, _affinities: c_int, _flags: c_uint, device: c_int) { create(context, device) }
    cuCtxCreate_v4(context: *mut u64, _parameters: *const c_void, _flags: c_uint, device: c_int) { create(context, device) }
    cuCtxDestroy_v2(context: u64) { MADE.remove(context).map(drop).ok_or(INVALID_CONTEXT) }
    cuCtxPushCurrent_v2(context: u64) { put(context, DEPTH.get() + 1) }
    cuCtxPopCurrent_v2(context: *mut u64) {
        out_if(context, top());
        match DEPTH.get() {
            0 | 1 => {
                DEPTH.set(0);
                Ok(())
            }
            depth => put(STACK.with(|stack| stack[depth - 2].get()), depth - 1),
        }
    }
    cuCtxSetCurrent(context: u64) {
        if context == 0 {
            DEPTH.set(DEPTH.get().saturating_sub(1));
            return Ok(());
        }
        put(context, DEPTH.get().max(1))
    }
    cuCtxGetCurrent(context: *mut u64) { out(context, top()) }
    cuCtxGetDevice(device: *mut c_int) { out(device, current_device() as c_int) }
    cuCtxGetDevice_v2(device: *mut c_int, context: u64) { out(device, device_of(context)?) }
    cuCtxGetId(context: u64, id: *mut u64) { device_of(context).and_then(|_| out(id, context)) }
    cuCtxGetFlags(flags: *mut c_uint) { out(flags, 0) }
    cuCtxGetCacheConfig(config: *mut c_int) { out(config, 0) }
    // What drivers answer for a context of any toolkit since 3.2.
    cuCtxGetApiVersion(context: u64, version: *mut c_uint) { device_of(context).and_then(|_| out(version, 3020)) }
    cuStreamGetCtx(_stream: u64, context: *mut u64) { out(context, top()) }
    cuStreamGetCtx_v2(_stream: u64, context: *mut u64, green: *mut u64) {
        out_if(green, 0);
        out(context, top())
    }
}

same! {
    cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease_v2, cuCtxCreate = cuCtxCreate_v2, cuCtxDestroy = cuCtxDestroy_v2,
    cuCtxPushCurrent = cuCtxPushCurrent_v2, cuCtxPopCurrent = cuCtxPopCurrent_v2,
    cuCtxGetLimit = cudaDeviceGetLimit, cuCtxSetLimit = cudaDeviceSetLimit, cuCtxGetStreamPriorityRange = cudaDeviceGetStreamPriorityRange,
    cuCtxSynchronize = cudaDeviceSynchronize, cuCtxSynchronize_v2 = cudaDeviceSynchronize,
}

done! {
    cuCtxSetFlags cuCtxSetCacheConfig cuCtxSetSharedMemConfig cuCtxResetPersistingL2Cache cuCtxEnablePeerAccess cuCtxDisablePeerAccess
    cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxSetFlags cuDevicePrimaryCtxSetFlags_v2
}
