//! NCCL: rank r of N, which may be alone in the world.
//!
//! A collective returns at once. Small payloads are answered as if every rank held what this one holds; what would come from a rank that
//! holds something else is marked as unknown. NCCL's own buffers are not counted.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::channel;
use crate::handle::{Handles, fresh};
use crate::libraries::real;
use crate::memory::{self, bytes, is_device, is_readable, known};
use crate::names::{done, same};
use crate::runtime::devices::current_device;

/// `ncclResult_t`.
type Status = c_int;
const SUCCESS: Status = 0;
const UNHANDLED_CUDA_ERROR: Status = 1;
const INVALID_ARGUMENT: Status = 4;

/// Payloads that may decide what a program does next: sizes, pickled objects, flags. Larger ones are tensors, whose values nobody reads.
const SMALL: usize = 64 << 10;
/// The same of all ranks together: for up to 1,024 of them.
const SMALL_OF_ALL: usize = SMALL << 10;

unsafe fn give<T>(to: *mut T, value: T) -> Status {
    if crate::status::give(to, value) == crate::status::SUCCESS { SUCCESS } else { INVALID_ARGUMENT }
}

/// A communicator.
#[derive(Debug, Clone, Copy)]
struct Communicator {
    rank: usize,
    /// Ranks; of a split only those are known that come before this one.
    size: usize,
    is_split: bool,
    device: usize,
}

static COMMUNICATORS: Handles<Communicator> = Handles::new();

fn find(handle: u64) -> Option<Communicator> {
    COMMUNICATORS.with(handle, |one| *one)
}

unsafe fn create(to: *mut u64, size: c_int, rank: c_int, is_split: bool) -> Status {
    static SAID: AtomicBool = AtomicBool::new(false);
    let (Ok(size), Ok(rank)) = (usize::try_from(size), usize::try_from(rank)) else {
        return INVALID_ARGUMENT;
    };
    if to.is_null() || rank >= size {
        return INVALID_ARGUMENT;
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        channel::say("assumed\tNCCL takes no memory for its own buffers, and every rank is like this one");
    }
    give(to, COMMUNICATORS.insert(Communicator { rank, size, is_split, device: current_device() }))
}

/// `ncclUniqueId`, which is passed by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Status {
    type Version = unsafe extern "C" fn(*mut c_int) -> Status;
    match real(&[c"libnccl.so.2"], c"ncclGetVersion") {
        // The function of this name, which gives a constant.
        Some(function) if !version.is_null() => std::mem::transmute::<*mut c_void, Version>(function)(version),
        // Of PyTorch 2.4, the oldest that is served.
        _ => give(version, 22_005),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Status {
    give(id, UniqueId([7; 128]))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(to: *mut u64, size: c_int, _id: UniqueId, rank: c_int) -> Status {
    create(to, size, rank, false)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(to: *mut u64, size: c_int, _id: UniqueId, rank: c_int, _config: *const c_void) -> Status {
    create(to, size, rank, false)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankScalable(
    to: *mut u64,
    size: c_int,
    rank: c_int,
    _ids: c_int,
    _id: *const UniqueId,
    _config: *const c_void,
) -> Status {
    create(to, size, rank, false)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitAll(to: *mut u64, size: c_int, _devices: *const c_int) -> Status {
    if to.is_null() || usize::try_from(size).is_ok_and(|size| size > memory::MOST_DEVICES) {
        return INVALID_ARGUMENT;
    }
    (0..size).map(|rank| create(to.add(rank as usize), size, rank, false)).find(|&status| status != SUCCESS).unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(parent: u64, color: c_int, key: c_int, to: *mut u64, _config: *const c_void) -> Status {
    let Some(parent) = find(parent) else {
        return INVALID_ARGUMENT;
    };
    if color < 0 {
        return give(to, 0);
    }
    // PyTorch's key is the rank in the new group; others' keys and colours are not known, nor is the group's size.
    let rank = if usize::try_from(key).is_ok_and(|key| key < parent.size) { key } else { parent.rank as c_int };
    create(to, parent.size as c_int, rank, true)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommShrink(
    parent: u64,
    _excluded: *const c_int,
    count: c_int,
    to: *mut u64,
    _config: *const c_void,
    _flags: c_int,
) -> Status {
    let Some(parent) = find(parent) else {
        return INVALID_ARGUMENT;
    };
    create(to, (parent.size as c_int).saturating_sub(count), parent.rank as c_int, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(communicator: u64) -> Status {
    COMMUNICATORS.remove(communicator).map_or(INVALID_ARGUMENT, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(communicator: u64, count: *mut c_int) -> Status {
    find(communicator).map_or(INVALID_ARGUMENT, |one| give(count, one.size as c_int))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(communicator: u64, rank: *mut c_int) -> Status {
    find(communicator).map_or(INVALID_ARGUMENT, |one| give(rank, one.rank as c_int))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCuDevice(communicator: u64, device: *mut c_int) -> Status {
    find(communicator).map_or(INVALID_ARGUMENT, |one| give(device, one.device as c_int))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(communicator: u64, error: *mut Status) -> Status {
    find(communicator).map_or(INVALID_ARGUMENT, |_| give(error, SUCCESS))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRegister(_communicator: u64, _buffer: *const c_void, _bytes: usize, handle: *mut u64) -> Status {
    give(handle, fresh())
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(status: Status) -> *const c_char {
    match status {
        SUCCESS => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        _ => c"unknown result code",
    }
    .as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_communicator: u64) -> *const c_char {
    c"".as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemAlloc(to: *mut u64, bytes: usize) -> Status {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    memory::allocate(current_device(), bytes as u64).map_or(UNHANDLED_CUDA_ERROR, |address| give(to, address))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclMemFree(address: u64) -> Status {
    if address == 0 || memory::free(address).is_ok() { SUCCESS } else { UNHANDLED_CUDA_ERROR }
}

/// An operation of one's own; it sums, as `ncclRedOpCreatePreMulSum` says, but by what factor is on a device.
const OWN_OPERATION: c_int = 64;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    operation: *mut c_int,
    _scalar: *const c_void,
    _kind: c_int,
    _residence: c_int,
    _communicator: u64,
) -> Status {
    give(operation, OWN_OPERATION)
}

done! { ncclCommFinalize ncclCommRevoke ncclCommDeregister ncclCommWindowDeregister ncclRedOpDestroy }
same! { ncclCommAbort = ncclCommDestroy, ncclCommWindowRegister = ncclCommRegister, }

/// Bytes of an element of a `ncclDataType_t`.
fn width(kind: c_int) -> Option<usize> {
    const WIDTHS: [usize; 12] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1];
    usize::try_from(kind).ok().and_then(|kind| WIDTHS.get(kind).copied())
}

/// The communicator and the bytes of a call, if both are right.
fn call(communicator: u64, count: usize, kind: c_int) -> Option<(Communicator, usize)> {
    let bytes = width(kind)?.checked_mul(count)?;
    Some((find(communicator)?, bytes))
}

/// Where the part of this rank begins, in a buffer of all ranks; `None` where that is no memory.
fn own_part(buffer: u64, one: Communicator, bytes: usize) -> Option<u64> {
    let before = one.rank.checked_mul(bytes)? as u64;
    bytes::is_memory(buffer, before.checked_add(bytes as u64)?).then_some(buffer + before)
}

/// Copies between buffers of a collective; what nobody could read is only marked.
unsafe fn move_bytes(to: u64, from: u64, bytes: usize) -> Status {
    if bytes::copy(to, from, bytes as u64) == crate::status::SUCCESS { SUCCESS } else { INVALID_ARGUMENT }
}

fn forget(to: u64, bytes: usize) -> Status {
    if !is_device(to) || !is_readable(to, bytes as u64) {
        return if bytes == 0 { SUCCESS } else { INVALID_ARGUMENT };
    }
    known::mark(to, bytes as u64, false);
    SUCCESS
}

/// Multiplies small known numbers in place: a sum over ranks that all hold the same.
unsafe fn multiply(to: u64, bytes: usize, kind: c_int, factor: usize) {
    /// `ncclInt32`, `ncclUint32`, `ncclInt64`, `ncclUint64`, `ncclFloat32`, `ncclFloat64`.
    macro_rules! each {
        ($kind:ty, $times:expr) => {{
            for index in 0..bytes / size_of::<$kind>() {
                let place = (to as *mut $kind).add(index);
                let value: $kind = place.read_unaligned();
                place.write_unaligned($times(value));
            }
        }};
    }
    match kind {
        2 | 3 => each!(u32, |value: u32| value.wrapping_mul(factor as u32)),
        4 | 5 => each!(u64, |value: u64| value.wrapping_mul(factor as u64)),
        7 => each!(f32, |value: f32| value * factor as f32),
        8 => each!(f64, |value: f64| value * factor as f64),
        // Bytes and half precision are not summed to decide anything.
        _ => known::mark(to, bytes as u64, false),
    }
}

/// What a reduction leaves: the same for the least, the greatest and the mean of equals; for a sum, as often as there are ranks.
unsafe fn reduce(to: u64, from: u64, bytes: usize, kind: c_int, operation: c_int, one: Communicator) -> Status {
    /// `ncclSum`, `ncclProd`, `ncclMax`, `ncclMin`, `ncclAvg`.
    const SUM: c_int = 0;
    const KEEPS: std::ops::RangeInclusive<c_int> = 2..=4;
    let status = move_bytes(to, from, bytes);
    if status != SUCCESS || KEEPS.contains(&operation) || one.size == 1 || bytes == 0 {
        return status;
    }
    if !is_readable(to, bytes as u64) {
        return INVALID_ARGUMENT;
    }
    if operation == SUM && !one.is_split && bytes <= SMALL && known::is_known(to, bytes as u64) {
        multiply(to, bytes, kind, one.size);
    } else {
        known::mark(to, bytes as u64, false);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(from: u64, to: u64, count: usize, kind: c_int, operation: c_int, communicator: u64) -> Status {
    call(communicator, count, kind).map_or(INVALID_ARGUMENT, |(one, bytes)| reduce(to, from, bytes, kind, operation, one))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduce(from: u64, to: u64, count: usize, kind: c_int, operation: c_int, root: c_int, communicator: u64) -> Status {
    match call(communicator, count, kind) {
        Some((one, bytes)) if one.rank as c_int == root => reduce(to, from, bytes, kind, operation, one),
        Some(_) => SUCCESS,
        None => INVALID_ARGUMENT,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(from: u64, to: u64, count: usize, kind: c_int, operation: c_int, communicator: u64) -> Status {
    let own = call(communicator, count, kind).and_then(|(one, bytes)| Some((own_part(from, one, bytes)?, one, bytes)));
    own.map_or(INVALID_ARGUMENT, |(from, one, bytes)| reduce(to, from, bytes, kind, operation, one))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(from: u64, to: u64, count: usize, kind: c_int, root: c_int, communicator: u64) -> Status {
    let Some((one, bytes)) = call(communicator, count, kind) else {
        return INVALID_ARGUMENT;
    };
    // What the root holds is what this rank holds: parameters, which lie in `to` already.
    if one.rank as c_int == root {
        return move_bytes(to, from, bytes);
    }
    if bytes <= SMALL && is_readable(to, bytes as u64) && !known::is_known(to, bytes as u64) {
        // Sizes that only the root knows are nothing, rather than what lay there.
        bytes::fill(to, &[0], bytes as u64);
        known::mark(to, bytes as u64, false);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBcast(buffer: u64, count: usize, kind: c_int, root: c_int, communicator: u64) -> Status {
    ncclBroadcast(buffer, buffer, count, kind, root, communicator)
}

/// The same to every rank's place.
unsafe fn spread(to: u64, from: u64, bytes: usize, one: Communicator) -> Status {
    // Of a split the later places may not be there: they stay what they are.
    let places = if one.is_split { one.rank + 1 } else { one.size };
    let Some(all) = bytes.checked_mul(places) else {
        return INVALID_ARGUMENT;
    };
    if bytes == 0 || bytes > SMALL || all > SMALL_OF_ALL {
        return forget(to, all);
    }
    if !bytes::is_memory(to, all as u64) {
        return INVALID_ARGUMENT;
    }
    (0..places).map(|place| move_bytes(to + (place * bytes) as u64, from, bytes)).find(|&status| status != SUCCESS).unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(from: u64, to: u64, count: usize, kind: c_int, communicator: u64) -> Status {
    call(communicator, count, kind).map_or(INVALID_ARGUMENT, |(one, bytes)| spread(to, from, bytes, one))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGather(from: u64, to: u64, count: usize, kind: c_int, root: c_int, communicator: u64) -> Status {
    match call(communicator, count, kind) {
        Some((one, bytes)) if one.rank as c_int == root => spread(to, from, bytes, one),
        Some(_) => SUCCESS,
        None => INVALID_ARGUMENT,
    }
}

/// Every rank sends here what this one sends to itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAlltoAll(from: u64, to: u64, count: usize, kind: c_int, communicator: u64) -> Status {
    let own = call(communicator, count, kind).and_then(|(one, bytes)| Some((own_part(from, one, bytes)?, one, bytes)));
    own.map_or(INVALID_ARGUMENT, |(from, one, bytes)| spread(to, from, bytes, one))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclScatter(from: u64, to: u64, count: usize, kind: c_int, root: c_int, communicator: u64) -> Status {
    match call(communicator, count, kind) {
        Some((one, bytes)) if one.rank as c_int == root => own_part(from, one, bytes).map_or(INVALID_ARGUMENT, |from| move_bytes(to, from, bytes)),
        Some((_, bytes)) => forget(to, bytes),
        None => INVALID_ARGUMENT,
    }
}

/// Sends and receives of one group of calls of a thread.
#[derive(Debug, Default)]
struct Group {
    depth: u32,
    /// What this rank sends to itself: communicator, address, bytes.
    sends: Vec<(u64, u64, usize)>,
    receives: Vec<(u64, u64, usize)>,
}

/// By thread, which is told by the address of one of its variables.
static GROUPS: Mutex<BTreeMap<usize, Group>> = Mutex::new(BTreeMap::new());

/// A group that sends more than so often is not one of this library.
const MOST_CALLS: usize = 1 << 20;

fn group<T>(act: impl FnOnce(&mut Group) -> T) -> T {
    thread_local! {
        static OWN: Cell<u8> = const { Cell::new(0) };
    }
    let thread = OWN.with(|own| std::ptr::from_ref(own) as usize);
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    let done = act(groups.entry(thread).or_default());
    groups.retain(|_, group| group.depth > 0);
    done
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> Status {
    group(|group| group.depth = group.depth.saturating_add(1));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> Status {
    let ended = group(|group| {
        group.depth = group.depth.saturating_sub(1);
        (group.depth == 0).then(|| std::mem::take(group))
    });
    let Some(ended) = ended else {
        return SUCCESS;
    };
    let mut status = SUCCESS;
    for (communicator, to, bytes) in ended.receives {
        // Every rank sends here what this one sends to itself, if it sends as much.
        let own = ended.sends.iter().find(|send| send.0 == communicator && send.2 == bytes);
        let received = match own {
            Some(&(_, from, _)) if bytes <= SMALL => move_bytes(to, from, bytes),
            _ => forget(to, bytes),
        };
        status = if status == SUCCESS { received } else { status };
    }
    status
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(from: u64, count: usize, kind: c_int, peer: c_int, communicator: u64) -> Status {
    let Some((one, bytes)) = call(communicator, count, kind) else {
        return INVALID_ARGUMENT;
    };
    if usize::try_from(peer).is_ok_and(|peer| peer == one.rank) {
        group(|group| {
            if group.depth > 0 && group.sends.len() < MOST_CALLS {
                group.sends.push((communicator, from, bytes));
            }
        });
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(to: u64, count: usize, kind: c_int, _peer: c_int, communicator: u64) -> Status {
    let Some((_, bytes)) = call(communicator, count, kind) else {
        return INVALID_ARGUMENT;
    };
    let is_grouped = group(|group| {
        let is_grouped = group.depth > 0 && group.receives.len() < MOST_CALLS;
        if is_grouped {
            group.receives.push((communicator, to, bytes));
        }
        is_grouped
    });
    if is_grouped { SUCCESS } else { forget(to, bytes) }
}

/// `c10d::TCPStore::waitForWorkers()`: a rank that runs alone waits for none. `batchfit run` says so in the environment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZN4c10d8TCPStore14waitForWorkersEv(store: *mut c_void) {
    type Wait = unsafe extern "C" fn(*mut c_void);
    const LIBRARY: &CStr = c"libtorch_cpu.so";
    if std::env::var_os("BATCHFIT_VGPU_ALONE").is_some_and(|alone| alone == "1") {
        return;
    }
    if let Some(wait) = real(&[LIBRARY], c"_ZN4c10d8TCPStore14waitForWorkersEv") {
        std::mem::transmute::<*mut c_void, Wait>(wait)(store);
    }
}
