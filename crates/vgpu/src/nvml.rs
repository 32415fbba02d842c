//! What `pynvml` and tools built on it read.
//!
//! Memory is what the processes of the run hold; the rest is an idle card of that name. What is not here answers that the card does not
//! support it, which tools have to live with anyway ([`crate::names`]).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::config::{card, config, devices};
use crate::memory::shared;
use crate::names::{done, functions, same};
use crate::runtime::properties::uuid_text;
use crate::status::{check, out_text, refuses_null};

/// `nvmlReturn_t`.
type Answer = c_int;
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

refuses_null! { INVALID_ARGUMENT }

unsafe fn text(to: *mut u8, room: c_uint, text: &str) -> Result<(), Answer> {
    check(!to.is_null(), INVALID_ARGUMENT)?;
    check(text.len() < room as usize, INSUFFICIENT_SIZE)?;
    out_text(to, room as usize, text)
}

/// Which device a handle is of.
fn device(handle: u64) -> Result<usize, Answer> {
    let number = handle.checked_sub(FIRST).filter(|&number| number < devices() as u64);
    number.map(|number| number as usize).ok_or(INVALID_ARGUMENT)
}

unsafe fn out_of<T>(handle: u64, to: *mut T, value: T) -> Result<(), Answer> {
    device(handle).and_then(|_| out(to, value))
}

unsafe fn out_found(name: *const c_char, handle: *mut u64, is_it: impl Fn(usize, &str) -> bool) -> Result<(), Answer> {
    check(!name.is_null(), INVALID_ARGUMENT)?;
    let name = CStr::from_ptr(name).to_string_lossy();
    let found = (0..devices() as usize).find(|&device| is_it(device, &name)).ok_or(NOT_FOUND)?;
    out(handle, FIRST + found as u64)
}

/// The bus of a device, as in the runtime's `cudaDeviceGetPCIBusId`.
fn bus(device: usize) -> usize {
    device + 1
}

/// Free and total memory.
fn memory(handle: u64) -> Result<(u64, u64), Answer> {
    let held = shared::held(device(handle)?, 0);
    Ok((card().memory.saturating_sub(held), card().memory))
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

/// `nvmlProcessInfo_v1_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Process {
    id: c_uint,
    used: u64,
}

/// `nvmlProcessInfo_v2_t`, which names the instance of a partitioned card, too.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ProcessOfInstance {
    process: Process,
    instances: [c_uint; 2],
}

/// The processes that use a device. `entry` makes what the form of the function lists.
unsafe fn processes<T>(handle: u64, count: *mut c_uint, to: *mut T, entry: impl Fn(Process) -> T) -> Result<(), Answer> {
    let holders = shared::holders(device(handle)?);
    check(!count.is_null(), INVALID_ARGUMENT)?;
    let room = count.read_unaligned() as usize;
    out(count, holders.len() as c_uint)?;
    check(holders.len() <= room && (holders.is_empty() || !to.is_null()), INSUFFICIENT_SIZE)?;
    holders.into_iter().enumerate().try_for_each(|(at, (id, used))| out(to.add(at), entry(Process { id, used })))
}

#[allow(missing_docs, reason = "as NVML documents it")]
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(answer: Answer) -> *const c_char {
    let text = match answer {
        0 => c"Success",
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

functions! {
    nvmlInit_v2() { check(config().is_some(), DRIVER_NOT_LOADED) }
    nvmlSystemGetDriverVersion(to: *mut u8, room: c_uint) { text(to, room, driver()) }
    nvmlSystemGetNVMLVersion(to: *mut u8, room: c_uint) { text(to, room, &format!("{}.{}", config().map_or(0, |config| config.cuda / 1000), driver())) }
    nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) { out(version, config().map_or(0, |config| config.cuda)) }
    nvmlDeviceGetCount_v2(count: *mut c_uint) { out(count, devices() as c_uint) }
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: *mut u64) { out(handle, FIRST + device(FIRST + u64::from(index))? as u64) }
    nvmlDeviceGetHandleByPciBusId_v2(name: *const c_char, handle: *mut u64) {
        // `domain:bus:device.function`, the domain of 4 or 8 digits or left out.
        out_found(name, handle, |device, name| {
            let mut parts = name.rsplit(':').skip(1);
            parts.next().and_then(|text| usize::from_str_radix(text, 16).ok()) == Some(bus(device))
        })
    }
    nvmlDeviceGetHandleByUUID(name: *const c_char, handle: *mut u64) { out_found(name, handle, |device, name| uuid_text(device) == name) }
    nvmlDeviceGetUUID(handle: u64, to: *mut u8, room: c_uint) { text(to, room, &uuid_text(device(handle)?)) }
    nvmlDeviceGetName(handle: u64, to: *mut u8, room: c_uint) { device(handle).and_then(|_| text(to, room, &card().name)) }
    nvmlDeviceGetIndex(handle: u64, index: *mut c_uint) { out(index, device(handle)? as c_uint) }
    nvmlDeviceGetCudaComputeCapability(handle: u64, major: *mut c_int, minor: *mut c_int) {
        out_of(handle, major, card().major)?;
        out(minor, card().minor)
    }
    nvmlDeviceGetPciInfo_v3(handle: u64, pci: *mut Pci) {
        let bus = bus(device(handle)?);
        let (legacy, bus_id) = (padded(&format!("0000:{bus:02X}:00.0")), padded(&format!("00000000:{bus:02X}:00.0")));
        out(pci, Pci { legacy, domain: 0, bus: bus as c_uint, device: 0, ids: [0; 2], bus_id })
    }
    nvmlDeviceGetMemoryInfo(handle: u64, to: *mut [u64; 3]) {
        let (free, total) = memory(handle)?;
        out(to, [total, free, total - free])
    }
    nvmlDeviceGetMemoryInfo_v2(handle: u64, to: *mut [u64; 5]) {
        let (free, total) = memory(handle)?;
        check(!to.is_null(), INVALID_ARGUMENT)?;
        // The first is the caller's version, and what the driver keeps is not known: `memory` of a card is what is left of it.
        let version = to.cast::<u64>().read_unaligned();
        out(to, [version, total, 0, free, total - free])
    }
    nvmlDeviceGetComputeRunningProcesses(handle: u64, count: *mut c_uint, to: *mut Process) { processes(handle, count, to, |process| process) }
    nvmlDeviceGetComputeRunningProcesses_v3(handle: u64, count: *mut c_uint, to: *mut ProcessOfInstance) {
        processes(handle, count, to, |process| ProcessOfInstance { process, instances: [c_uint::MAX; 2] })
    }
    nvmlDeviceGetGraphicsRunningProcesses_v3(handle: u64, count: *mut c_uint, _to: *mut c_void) { out_of(handle, count, 0) }
    nvmlDeviceGetUtilizationRates(handle: u64, to: *mut [c_uint; 2]) { out_of(handle, to, [0; 2]) }
    nvmlDeviceGetTemperature(handle: u64, _sensor: c_uint, to: *mut c_uint) { out_of(handle, to, TEMPERATURE) }
    /// The second form: version, sensor, temperature.
    nvmlDeviceGetTemperatureV(handle: u64, to: *mut [c_uint; 3]) {
        check(!to.is_null(), INVALID_ARGUMENT)?;
        let [version, sensor, _] = to.read_unaligned();
        out_of(handle, to, [version, sensor, TEMPERATURE])
    }
    nvmlDeviceGetPowerUsage(handle: u64, to: *mut c_uint) { out_of(handle, to, POWER) }
    nvmlDeviceGetTotalEnergyConsumption(handle: u64, to: *mut u64) { out_of(handle, to, 0) }
    nvmlDeviceGetClockInfo(handle: u64, kind: c_uint, to: *mut c_uint) {
        // `NVML_CLOCK_MEM`; in MHz, as all of NVML's.
        out_of(handle, to, (if kind == 2 { card().memory_clock } else { card().clock }) as c_uint / 1000)
    }
    nvmlDeviceGetMemoryBusWidth(handle: u64, to: *mut c_uint) { out_of(handle, to, card().bus as c_uint) }
    /// What is off, or the state P0, which CUDA programs run in.
    nvmlDeviceGetPerformanceState(handle: u64, to: *mut c_uint) { out_of(handle, to, 0) }
    nvmlDeviceGetPersistenceMode(handle: u64, to: *mut c_uint) { out_of(handle, to, 1) }
    nvmlDeviceGetP2PStatus(one: u64, other: u64, _index: c_int, to: *mut c_int) { device(other).and_then(|_| out_of(one, to, 0)) }
    /// Whether partitioned (MIG): not now, and not after the next reset.
    nvmlDeviceGetMigMode(handle: u64, now: *mut c_uint, then: *mut c_uint) {
        out_of(handle, now, 0)?;
        out(then, 0)
    }
    /// Cores for graphics of a multiprocessor, by compute capability (CUDA programming guide, arithmetic instructions).
    nvmlDeviceGetNumGpuCores(handle: u64, to: *mut c_uint) {
        device(handle)?;
        let each = match (card().major, card().minor) {
            (7, _) | (8, 0) => 64,
            (8.., _) | (5 | 6, 1..) => 128,
            _ => return Err(UNKNOWN),
        };
        out(to, each * card().multiprocessors as c_uint)
    }
}

same! {
    nvmlInit = nvmlInit_v2, nvmlInitWithFlags = nvmlInit_v2, nvmlDeviceGetCount = nvmlDeviceGetCount_v2, nvmlDeviceGetMinorNumber = nvmlDeviceGetIndex,
    nvmlSystemGetCudaDriverVersion = nvmlSystemGetCudaDriverVersion_v2, nvmlDeviceGetHandleByIndex = nvmlDeviceGetHandleByIndex_v2,
    nvmlDeviceGetHandleByPciBusId = nvmlDeviceGetHandleByPciBusId_v2, nvmlDeviceGetMaxClockInfo = nvmlDeviceGetClockInfo,
    nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3,
    nvmlDeviceGetMPSComputeRunningProcesses_v3 = nvmlDeviceGetGraphicsRunningProcesses_v3,
    nvmlDeviceGetGraphicsRunningProcesses = nvmlDeviceGetGraphicsRunningProcesses_v3,
    nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses_v3,
    nvmlDeviceGetPowerState = nvmlDeviceGetPerformanceState, nvmlDeviceGetComputeMode = nvmlDeviceGetPerformanceState,
    nvmlDeviceGetDisplayMode = nvmlDeviceGetPerformanceState, nvmlDeviceGetDisplayActive = nvmlDeviceGetPerformanceState,
}

done! { nvmlShutdown }
