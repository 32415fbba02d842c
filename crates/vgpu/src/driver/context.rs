//! Contexts. One that a program makes for itself is a further name of its device: memory belongs to devices.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

use crate::config::devices;
use crate::handle::Handles;
use crate::names::{done, same};
use crate::runtime::devices::{current_device, set_device};
use crate::status::{INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, SUCCESS, Status, give};

use super::is_a_device;

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

fn primary(device: usize) -> u64 {
    PRIMARY + device as u64
}

/// Of which device a context is.
fn device_of(context: u64) -> Option<c_int> {
    let number = context.checked_sub(PRIMARY).filter(|&number| number < devices() as u64);
    number.map_or_else(|| MADE.with(context, |device| *device), |number| Some(number as c_int))
}

/// This thread's context. `cudaSetDevice` makes another device's primary one current, whatever was on the stack.
fn top() -> u64 {
    let device = current_device();
    let depth = DEPTH.get();
    let top = if depth == 0 { 0 } else { STACK.with(|stack| stack[depth - 1].get()) };
    if device_of(top) == Some(device as c_int) { top } else { primary(device) }
}

fn put(context: u64, depth: usize) -> Status {
    let Some(device) = device_of(context) else {
        return INVALID_CONTEXT;
    };
    if depth > DEEPEST {
        return INVALID_VALUE;
    }
    STACK.with(|stack| stack[depth - 1].set(context));
    DEPTH.set(depth);
    set_device(device).err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) -> Status {
    if is_a_device(device) { give(context, primary(device as usize)) } else { INVALID_DEVICE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Status {
    if is_a_device(device) { SUCCESS } else { INVALID_DEVICE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) -> Status {
    if !is_a_device(device) {
        return INVALID_DEVICE;
    }
    give(flags, 0);
    give(active, 1)
}

unsafe fn create(context: *mut u64, device: c_int) -> Status {
    if !is_a_device(device) {
        return INVALID_DEVICE;
    }
    if context.is_null() {
        return INVALID_VALUE;
    }
    let made = MADE.insert(device);
    give(context, made);
    put(made, DEPTH.get() + 1)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(context: *mut u64, _flags: c_uint, device: c_int) -> Status {
    create(context, device)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v3(context: *mut u64, _affinity: *const c_void, _affinities: c_int, _flags: c_uint, device: c_int) -> Status {
    create(context, device)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v4(context: *mut u64, _parameters: *const c_void, _flags: c_uint, device: c_int) -> Status {
    create(context, device)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: u64) -> Status {
    if MADE.remove(context).is_some() { SUCCESS } else { INVALID_CONTEXT }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: u64) -> Status {
    put(context, DEPTH.get() + 1)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut u64) -> Status {
    if !context.is_null() {
        give(context, top());
    }
    match DEPTH.get() {
        0 | 1 => {
            DEPTH.set(0);
            SUCCESS
        }
        depth => put(STACK.with(|stack| stack[depth - 2].get()), depth - 1),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: u64) -> Status {
    if context == 0 {
        DEPTH.set(DEPTH.get().saturating_sub(1));
        return SUCCESS;
    }
    put(context, DEPTH.get().max(1))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut u64) -> Status {
    give(context, top())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> Status {
    give(device, current_device() as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice_v2(device: *mut c_int, context: u64) -> Status {
    device_of(context).map_or(INVALID_CONTEXT, |number| give(device, number))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetId(context: u64, id: *mut u64) -> Status {
    device_of(context).map_or(INVALID_CONTEXT, |_| give(id, context))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetFlags(flags: *mut c_uint) -> Status {
    give(flags, 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCacheConfig(config: *mut c_int) -> Status {
    give(config, 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetApiVersion(context: u64, version: *mut c_uint) -> Status {
    /// What drivers answer for a context of any toolkit since 3.2.
    const VERSION: c_uint = 3020;
    device_of(context).map_or(INVALID_CONTEXT, |_| give(version, VERSION))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(_stream: u64, context: *mut u64) -> Status {
    give(context, top())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx_v2(_stream: u64, context: *mut u64, green: *mut u64) -> Status {
    if !green.is_null() {
        give(green, 0);
    }
    give(context, top())
}

same! {
    cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease_v2,
    cuCtxCreate = cuCtxCreate_v2,
    cuCtxDestroy = cuCtxDestroy_v2,
    cuCtxPushCurrent = cuCtxPushCurrent_v2,
    cuCtxPopCurrent = cuCtxPopCurrent_v2,
    cuCtxGetLimit = cudaDeviceGetLimit,
    cuCtxSetLimit = cudaDeviceSetLimit,
    cuCtxGetStreamPriorityRange = cudaDeviceGetStreamPriorityRange,
    cuCtxSynchronize = cudaDeviceSynchronize,
    cuCtxSynchronize_v2 = cudaDeviceSynchronize,
}

done! {
    cuCtxSetFlags cuCtxSetCacheConfig cuCtxSetSharedMemConfig cuCtxResetPersistingL2Cache cuCtxEnablePeerAccess cuCtxDisablePeerAccess
    cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxSetFlags cuDevicePrimaryCtxSetFlags_v2
}
