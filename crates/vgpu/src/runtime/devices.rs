//! Devices, their attributes and limits, what a pointer points to, entry points of the driver.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::errors::{NO_DEVICE, PEER_ALREADY_ENABLED, PEER_NOT_ENABLED, UNSUPPORTED_LIMIT};
use super::{capture, pool, properties, trace};
use crate::config::{card, config, devices};
use crate::memory::host::{self, Kind};
use crate::memory::{MOST_DEVICES, block_of, device_of};
use crate::names::{done, same};
use crate::status::{INVALID_DEVICE, INVALID_VALUE, Status, check, out, out_if, out_text};
use crate::{channel, driver, python};

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The calling thread's device.
pub fn current_device() -> usize {
    CURRENT.get()
}

/// Changes the calling thread's device.
pub fn set_device(number: c_int) -> Result<(), Status> {
    CURRENT.set(device(number)?);
    Ok(())
}

/// Which devices of the machine `CUDA_VISIBLE_DEVICES` names, by number or by the beginning of what tells one from others; what follows a name of
/// none is not seen. A number beyond the last counts from the first again: scripts that name one of their own machine's cards find one here.
fn named(text: &str, devices: usize) -> Vec<usize> {
    let mut seen = Vec::new();
    for name in text.split(',').map(str::trim) {
        let by_number = name.parse::<usize>().ok().map(|number| number % devices.max(1));
        let by_uuid = || (0..devices).find(|&device| name.starts_with("GPU-") && properties::uuid_text(device).starts_with(name));
        match by_number.or_else(by_uuid) {
            Some(device) if !seen.contains(&device) => seen.push(device),
            _ => break,
        }
    }
    seen
}

/// The devices of the machine that this process sees, in its order, by the environment as it was when CUDA was first asked.
pub fn visible() -> &'static [usize] {
    static VISIBLE: OnceLock<Vec<usize>> = OnceLock::new();
    VISIBLE.get_or_init(|| {
        let all = usize::try_from(devices()).unwrap_or(0);
        let Ok(text) = std::env::var("CUDA_VISIBLE_DEVICES") else {
            return (0..all).collect();
        };
        let seen = named(&text, all);
        let numbers: Vec<String> = seen.iter().map(usize::to_string).collect();
        channel::say(&format!("visible\t{}", numbers.join("\t")));
        seen
    })
}

/// How many those are.
pub fn count() -> c_int {
    visible().len() as c_int
}

/// The machine's number of a device that this process sees.
pub fn of_machine(device: usize) -> usize {
    visible().get(device).copied().unwrap_or(device)
}

/// A device that there is.
pub fn device(number: c_int) -> Result<usize, Status> {
    match count() {
        0 => Err(NO_DEVICE),
        all if number < all => usize::try_from(number).map_err(|_| INVALID_DEVICE),
        _ => Err(INVALID_DEVICE),
    }
}

/// An attribute by its number, the same for the runtime (`cudaDeviceAttr`) and the driver. What no card of these generations has is 0;
/// `None` where there is no such number.
pub fn attribute(number: c_int, device: usize) -> Option<c_int> {
    let card = card();
    match number {
        // What CUDA's programming guide gives for all compute capabilities since 7.0: sizes of blocks and grids, registers, warps.
        1..=3 => Some(1024),
        4 => Some(64),
        5 | 11 => Some(i32::MAX),
        6 | 7 => Some(65535),
        8 => Some(48 << 10),
        9 | 12 | 82 => Some(64 << 10),
        10 | 51 => Some(32),
        14 | 30 => Some(512),
        13 => Some(card.clock),
        16 => Some(card.multiprocessors),
        // Overlap, mapped and unified addresses, managed memory, priorities, caches, cooperative launches, registering, virtual memory, pools, events of other processes.
        15 | 19 | 31 | 41 | 78..=80 | 83 | 89 | 90 | 91 | 95 | 96 | 99 | 102 | 103 | 115 | 125 => Some(1),
        33 => c_int::try_from(of_machine(device) + 1).ok(),
        36 => Some(card.memory_clock),
        37 => Some(card.bus),
        38 => Some(card.l2_cache),
        39 => Some(card.threads_per_multiprocessor),
        40 => Some(3),
        // Widths and heights of textures and surfaces, of 7.0 to 9.0.
        21..=23 | 55..=57 | 70..=72 => Some(128 << 10),
        24..=26 | 58..=60 => Some(16 << 10),
        27 | 28 | 42 | 45 | 46 | 52 | 53 | 61 | 63 | 64 | 66 | 67 | 73 | 74 | 77 => Some(32 << 10),
        29 | 43 | 62 | 65 => Some(2048),
        54 | 68 => Some(2046),
        69 => Some(1 << 28),
        75 => Some(card.major),
        76 => Some(card.minor),
        81 => Some(card.shared_per_multiprocessor),
        87 => Some(if matches!((card.major, card.minor), (7..=9, 0)) { 2 } else { 64 }),
        97 => Some(card.shared_per_block_optin),
        106 => Some(card.blocks_per_multiprocessor),
        // What the system keeps of each block's shared memory, since 8.0.
        111 => Some(if card.major >= 8 { 1024 } else { 0 }),
        120 => Some(c_int::from(card.major >= 9)),
        _ if (1..=147).contains(&number) => Some(0),
        _ => None,
    }
}

/// Which devices may reach which: a bit of each pair that was enabled.
static PEERS: [AtomicU32; MOST_DEVICES] = [const { AtomicU32::new(0) }; MOST_DEVICES];

/// Limits by number, with the defaults of a data-centre card: stack, `printf`, heap, depth (gone), launches, L2 fetches, persisting L2.
static LIMITS: [AtomicU64; 7] = [
    const { AtomicU64::new(1024) },
    AtomicU64::new(1 << 20),
    AtomicU64::new(8 << 20),
    AtomicU64::new(0),
    AtomicU64::new(2048),
    AtomicU64::new(64),
    AtomicU64::new(0),
];

/// A limit of devices; depths of nested launches went away with 9.0.
pub fn limit(number: c_int) -> Result<&'static AtomicU64, Status> {
    let limit = usize::try_from(number).ok().and_then(|number| LIMITS.get(number));
    if number == 3 { Err(UNSUPPORTED_LIMIT) } else { limit.ok_or(INVALID_VALUE) }
}

/// `cudaPointerAttributes` without the end that only CUDA 13's has, which is reserved.
#[derive(Debug)]
#[repr(C)]
pub struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_address: u64,
    host_address: u64,
}

/// `cudaMemoryType` and the device of an address.
pub fn kind_of(address: u64) -> (c_int, c_int) {
    match (block_of(address), device_of(address), host::kind_of(address)) {
        (Some(_), Some(device), _) => (2, device as c_int),
        (_, _, Some(Kind::Managed)) => (3, 0),
        (_, _, Some(Kind::Pinned | Kind::Registered)) => (1, 0),
        // Not registered: CUDA gives `cudaInvalidDeviceId`.
        _ => (0, -2),
    }
}

/// An entry point of the driver; whether there is one is no error but an answer of its own (`cudaDriverEntryPointSymbolNotFound`).
unsafe fn entry_point(name: *const c_char, to: *mut *mut c_void, version: c_int, found: *mut c_int) -> Result<(), Status> {
    check(!name.is_null() && !to.is_null(), INVALID_VALUE)?;
    let _ = driver::out_entry_point(name, to, version, found);
    Ok(())
}

runtime! {
    cudaGetDeviceCount(to: *mut c_int) {
        python::load_hooks();
        out(to, count())?;
        check(count() > 0, NO_DEVICE)
    }
    cudaGetDevice(to: *mut c_int) {
        device(0)?;
        out(to, current_device() as c_int)
    }
    cudaSetDevice(number: c_int) { set_device(number) }
    cudaInitDevice(number: c_int, _device_flags: c_uint, _flags: c_uint) { device(number).map(drop) }
    cudaSetValidDevices(numbers: *const c_int, count: c_int) {
        check(count >= 0 && (count == 0 || !numbers.is_null()), INVALID_VALUE)?;
        (0..count as usize).try_for_each(|index| device(numbers.add(index).read_unaligned()).map(drop))
    }
    cudaChooseDevice(to: *mut c_int, properties: *const c_void) { check(!properties.is_null(), INVALID_VALUE).and_then(|()| out(to, 0)) }
    cudaSetDeviceFlags(flags: c_uint) { check(flags & !0xff == 0, INVALID_VALUE) }
    // `cudaDeviceMapHost`, always on where addresses are unified.
    cudaGetDeviceFlags(to: *mut c_uint) { out(to, 8) }
    cudaDeviceSynchronize() {
        capture::forbid()?;
        trace::flush();
        super::streams::settle();
        pool::settle();
        Ok(())
    }
    cudaDeviceGetAttribute(to: *mut c_int, number: c_int, of: c_int) {
        let of = device(of)?;
        out(to, attribute(number, of).ok_or(INVALID_VALUE)?)
    }
    cudaDeviceGetPCIBusId(to: *mut u8, room: c_int, of: c_int) {
        let text = format!("0000:{:02X}:00.0", of_machine(device(of)?) + 1);
        out_text(to, usize::try_from(room).unwrap_or(0), &text)
    }
    cudaDeviceGetByPCIBusId(to: *mut c_int, text: *const c_char) {
        check(!text.is_null(), INVALID_VALUE)?;
        let text = CStr::from_ptr(text).to_string_lossy();
        let bus = text.trim_start_matches("0000:").split(':').next();
        let number = bus.and_then(|bus| c_int::from_str_radix(bus, 16).ok()).ok_or(INVALID_VALUE)?;
        let seen = visible().iter().position(|&device| number == device as c_int + 1).ok_or(INVALID_DEVICE)?;
        out(to, seen as c_int)
    }
    cudaDeviceCanAccessPeer(to: *mut c_int, one: c_int, other: c_int) {
        out(to, c_int::from(device(one)? != device(other)?))
    }
    cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) {
        let peer = device(peer)?;
        check(flags == 0, INVALID_VALUE)?;
        check(peer != current_device(), INVALID_DEVICE)?;
        let before = PEERS[current_device()].fetch_or(1 << peer, Ordering::Relaxed);
        check(before >> peer & 1 == 0, PEER_ALREADY_ENABLED)
    }
    cudaDeviceDisablePeerAccess(peer: c_int) {
        let peer = device(peer)?;
        let before = PEERS[current_device()].fetch_and(!(1 << peer), Ordering::Relaxed);
        check(before >> peer & 1 == 1, PEER_NOT_ENABLED)
    }
    cudaDeviceGetP2PAttribute(to: *mut c_int, number: c_int, one: c_int, other: c_int) {
        let (one, other) = (device(one)?, device(other)?);
        check(one != other, INVALID_DEVICE)?;
        check((1..=4).contains(&number), INVALID_VALUE)?;
        // Rank 0 is the best; access and atomics are there, arrays are not asked for.
        out(to, c_int::from(matches!(number, 2 | 3)))
    }
    cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        // Since 7.0.
        out_if(least, 0);
        out_if(greatest, -5);
        Ok(())
    }
    cudaDeviceGetLimit(to: *mut usize, number: c_int) { out(to, limit(number)?.load(Ordering::Relaxed) as usize) }
    cudaDeviceSetLimit(number: c_int, value: usize) {
        limit(number)?.store(value as u64, Ordering::Relaxed);
        Ok(())
    }
    cudaDeviceGetCacheConfig(to: *mut c_int) { out(to, 0) }
    cudaDeviceGetSharedMemConfig(to: *mut c_int) { out(to, 1) }
    cudaDriverGetVersion(to: *mut c_int) { out(to, config().map_or(0, |config| config.cuda)) }
    cudaPointerGetAttributes(to: *mut PointerAttributes, address: u64) {
        let (kind, device) = kind_of(address);
        let device_address = if kind == 0 { 0 } else { address };
        let host_address = if kind == 2 { 0 } else { address };
        out(to, PointerAttributes { kind, device, device_address, host_address })
    }
    cudaGetDriverEntryPoint(name: *const c_char, to: *mut *mut c_void, _flags: u64, found: *mut c_int) {
        entry_point(name, to, config().map_or(0, |config| config.cuda), found)
    }
    cudaGetDriverEntryPointByVersion(name: *const c_char, to: *mut *mut c_void, version: c_uint, _flags: u64, found: *mut c_int) {
        entry_point(name, to, version as c_int, found)
    }
}

done! { cudaDeviceSetCacheConfig cudaDeviceSetSharedMemConfig cudaProfilerStart cudaProfilerStop cudaCtxResetPersistingL2Cache }

same! {
    cudaGetDriverEntryPoint_ptsz = cudaGetDriverEntryPoint,
    cudaGetDriverEntryPointByVersion_ptsz = cudaGetDriverEntryPointByVersion,
    cudaThreadSynchronize = cudaDeviceSynchronize, cudaRuntimeGetVersion = cudaDriverGetVersion,
}
