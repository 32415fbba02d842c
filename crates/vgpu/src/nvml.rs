//! What `pynvml` and tools built on it read.
//!
//! Memory is what the virtual GPU has handed out; the rest is an idle card of that name. What is not here answers that the card does not
//! support it, which tools have to live with anyway ([`crate::names`]).

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::process;

use crate::config::{card, config, devices};
use crate::memory;
use crate::names::{done, same};
use crate::runtime::properties::uuid;
use crate::status::give_text;

/// `nvmlReturn_t`.
type Answer = c_int;
const SUCCESS: Answer = 0;
const INVALID_ARGUMENT: Answer = 2;
const NOT_FOUND: Answer = 6;
const INSUFFICIENT_SIZE: Answer = 7;
const DRIVER_NOT_LOADED: Answer = 9;
const UNKNOWN: Answer = 999;

/// The handle of the first device; the others follow.
const FIRST: u64 = 0x2000;

/// What an idle card reports, in degrees Celsius and in mW: the run takes no time, so it has no load.
const TEMPERATURE: c_uint = 30;
const POWER: c_uint = 50_000;

/// The driver that is said to be there: the first of CUDA 12 and of CUDA 13, by their release notes.
fn driver() -> &'static str {
    if config().is_some_and(|config| config.cuda >= 13_000) { "580.65.06" } else { "570.26" }
}

unsafe fn give<T>(to: *mut T, value: T) -> Answer {
    if crate::status::give(to, value) == crate::status::SUCCESS { SUCCESS } else { INVALID_ARGUMENT }
}

unsafe fn text(to: *mut u8, room: c_uint, text: &str) -> Answer {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    if text.len() >= room as usize {
        return INSUFFICIENT_SIZE;
    }
    give_text(to, room as usize, text);
    SUCCESS
}

/// Which device a handle is of.
fn device(handle: u64) -> Option<usize> {
    handle.checked_sub(FIRST).filter(|&number| number < devices() as u64).map(|number| number as usize)
}

unsafe fn give_of<T>(handle: u64, to: *mut T, value: impl FnOnce(usize) -> T) -> Answer {
    device(handle).map_or(INVALID_ARGUMENT, |device| give(to, value(device)))
}

unsafe fn text_of(handle: u64, to: *mut u8, room: c_uint, value: impl FnOnce(usize) -> String) -> Answer {
    device(handle).map_or(INVALID_ARGUMENT, |device| text(to, room, &value(device)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Answer {
    if config().is_some() { SUCCESS } else { DRIVER_NOT_LOADED }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Answer {
    nvmlInit_v2()
}

same! { nvmlInit = nvmlInit_v2, }
done! { nvmlShutdown }

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(answer: Answer) -> *const c_char {
    let text = match answer {
        SUCCESS => c"Success",
        1 => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        3 => c"Not Supported",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        DRIVER_NOT_LOADED => c"Driver Not Loaded",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut u8, room: c_uint) -> Answer {
    text(to, room, driver())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(to: *mut u8, room: c_uint) -> Answer {
    text(to, room, &format!("{}.{}", config().map_or(0, |config| config.cuda / 1000), driver()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> Answer {
    give(version, config().map_or(0, |config| config.cuda))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Answer {
    give(count, devices() as c_uint)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: *mut u64) -> Answer {
    give_of(FIRST + u64::from(index), handle, |device| FIRST + device as u64)
}

unsafe fn give_found(name: *const c_char, handle: *mut u64, is_it: impl Fn(usize, &str) -> bool) -> Answer {
    if name.is_null() {
        return INVALID_ARGUMENT;
    }
    let name = CStr::from_ptr(name).to_string_lossy();
    let found = (0..devices() as usize).find(|&device| is_it(device, &name));
    found.map_or(NOT_FOUND, |device| give(handle, FIRST + device as u64))
}

/// The bus of a device, as in the runtime's `cudaDeviceGetPCIBusId`.
fn bus(device: usize) -> usize {
    device + 1
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(name: *const c_char, handle: *mut u64) -> Answer {
    // `domain:bus:device.function`, the domain of 4 or 8 digits or left out.
    give_found(name, handle, |device, name| {
        let mut parts = name.rsplit(':').skip(1);
        parts.next().and_then(|text| usize::from_str_radix(text, 16).ok()) == Some(bus(device))
    })
}

fn uuid_text(device: usize) -> String {
    let hex: String = uuid(device).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(name: *const c_char, handle: *mut u64) -> Answer {
    give_found(name, handle, |device, name| uuid_text(device) == name)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(handle: u64, to: *mut u8, room: c_uint) -> Answer {
    text_of(handle, to, room, uuid_text)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(handle: u64, to: *mut u8, room: c_uint) -> Answer {
    text_of(handle, to, room, |_| card().name.clone())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(handle: u64, index: *mut c_uint) -> Answer {
    give_of(handle, index, |device| device as c_uint)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(handle: u64, major: *mut c_int, minor: *mut c_int) -> Answer {
    match give_of(handle, major, |_| card().major) {
        SUCCESS => give(minor, card().minor),
        failed => failed,
    }
}

/// What differs between the first three forms of `nvmlPciInfo_t` comes at the end.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Pci {
    legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    ids: [c_uint; 2],
    bus_id: [u8; 32],
}

fn padded<const ROOM: usize>(text: &str) -> [u8; ROOM] {
    let mut bytes = [0; ROOM];
    bytes.iter_mut().zip(text.bytes().take(ROOM - 1)).for_each(|(to, from)| *to = from);
    bytes
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(handle: u64, pci: *mut Pci) -> Answer {
    give_of(handle, pci, |device| {
        let bus = bus(device);
        Pci {
            legacy: padded(&format!("0000:{bus:02X}:00.0")),
            domain: 0,
            bus: bus as c_uint,
            device: 0,
            ids: [0; 2],
            bus_id: padded(&format!("00000000:{bus:02X}:00.0")),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(handle: u64, to: *mut [u64; 3]) -> Answer {
    let Some(Ok((free, total))) = device(handle).map(memory::info) else {
        return INVALID_ARGUMENT;
    };
    give(to, [total, free, total - free])
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: u64, to: *mut [u64; 5]) -> Answer {
    let Some(Ok((free, total))) = device(handle).map(memory::info) else {
        return INVALID_ARGUMENT;
    };
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    // The first is the caller's version, and what the driver keeps is not known: `memory` of a card is what is left of it.
    let version = to.cast::<u64>().read_unaligned();
    give(to, [version, total, 0, free, total - free])
}

/// The processes that use a device: this one. `entry` makes what the form of the function lists.
unsafe fn processes<T>(handle: u64, count: *mut c_uint, to: *mut T, entry: impl FnOnce(c_uint, u64) -> T) -> Answer {
    let Some(Ok((free, total))) = device(handle).map(memory::info) else {
        return INVALID_ARGUMENT;
    };
    if count.is_null() {
        return INVALID_ARGUMENT;
    }
    let room = count.read_unaligned();
    give(count, 1);
    if room == 0 || to.is_null() {
        return INSUFFICIENT_SIZE;
    }
    give(to, entry(process::id(), total - free))
}

/// `nvmlProcessInfo_v1_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Process {
    id: c_uint,
    used: u64,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(handle: u64, count: *mut c_uint, to: *mut Process) -> Answer {
    processes(handle, count, to, |id, used| Process { id, used })
}

/// `nvmlProcessInfo_v2_t`, which names the instance of a partitioned card, too.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ProcessOfInstance {
    process: Process,
    instances: [c_uint; 2],
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(handle: u64, count: *mut c_uint, to: *mut ProcessOfInstance) -> Answer {
    processes(handle, count, to, |id, used| ProcessOfInstance { process: Process { id, used }, instances: [c_uint::MAX; 2] })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(handle: u64, count: *mut c_uint, _to: *mut c_void) -> Answer {
    give_of(handle, count, |_| 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(handle: u64, to: *mut [c_uint; 2]) -> Answer {
    give_of(handle, to, |_| [0; 2])
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(handle: u64, _sensor: c_uint, to: *mut c_uint) -> Answer {
    give_of(handle, to, |_| TEMPERATURE)
}

/// The second form: version, sensor, temperature.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperatureV(handle: u64, to: *mut [c_uint; 3]) -> Answer {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    let [version, sensor, _] = to.read_unaligned();
    give_of(handle, to, |_| [version, sensor, TEMPERATURE])
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(handle: u64, to: *mut c_uint) -> Answer {
    give_of(handle, to, |_| POWER)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(handle: u64, to: *mut u64) -> Answer {
    give_of(handle, to, |_| 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(handle: u64, kind: c_uint, to: *mut c_uint) -> Answer {
    /// `NVML_CLOCK_MEM`; in MHz, as all of NVML's.
    const MEMORY: c_uint = 2;
    give_of(handle, to, |_| (if kind == MEMORY { card().memory_clock } else { card().clock }) as c_uint / 1000)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryBusWidth(handle: u64, to: *mut c_uint) -> Answer {
    give_of(handle, to, |_| card().bus as c_uint)
}

/// What is off, or the state P0, which CUDA programs run in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPerformanceState(handle: u64, to: *mut c_uint) -> Answer {
    give_of(handle, to, |_| 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPersistenceMode(handle: u64, to: *mut c_uint) -> Answer {
    give_of(handle, to, |_| 1)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetP2PStatus(one: u64, other: u64, _index: c_int, to: *mut c_int) -> Answer {
    if device(other).is_none() { INVALID_ARGUMENT } else { give_of(one, to, |_| 0) }
}

/// Whether partitioned (MIG): not now, and not after the next reset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(handle: u64, now: *mut c_uint, then: *mut c_uint) -> Answer {
    match give_of(handle, now, |_| 0) {
        SUCCESS => give(then, 0),
        failed => failed,
    }
}

/// Cores for graphics of a multiprocessor, by compute capability (CUDA programming guide, arithmetic instructions).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNumGpuCores(handle: u64, to: *mut c_uint) -> Answer {
    let each = match (card().major, card().minor) {
        (7, _) | (8, 0) => 64,
        (8.., _) | (5 | 6, 1..) => 128,
        _ => return if device(handle).is_some() { UNKNOWN } else { INVALID_ARGUMENT },
    };
    give_of(handle, to, |_| each * card().multiprocessors as c_uint)
}

same! {
    nvmlSystemGetCudaDriverVersion = nvmlSystemGetCudaDriverVersion_v2,
    nvmlDeviceGetCount = nvmlDeviceGetCount_v2,
    nvmlDeviceGetHandleByIndex = nvmlDeviceGetHandleByIndex_v2,
    nvmlDeviceGetHandleByPciBusId = nvmlDeviceGetHandleByPciBusId_v2,
    nvmlDeviceGetMinorNumber = nvmlDeviceGetIndex,
    nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3,
    nvmlDeviceGetMPSComputeRunningProcesses_v3 = nvmlDeviceGetGraphicsRunningProcesses_v3,
    nvmlDeviceGetGraphicsRunningProcesses = nvmlDeviceGetGraphicsRunningProcesses_v3,
    nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses_v3,
    nvmlDeviceGetMaxClockInfo = nvmlDeviceGetClockInfo,
    nvmlDeviceGetPowerState = nvmlDeviceGetPerformanceState,
    nvmlDeviceGetComputeMode = nvmlDeviceGetPerformanceState,
    nvmlDeviceGetDisplayMode = nvmlDeviceGetPerformanceState,
    nvmlDeviceGetDisplayActive = nvmlDeviceGetPerformanceState,
}
