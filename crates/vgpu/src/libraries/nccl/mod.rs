//! NCCL: rank r of N, which may be alone in the world.
//!
//! Alone, a collective returns at once: small payloads are answered as if every rank held what this one holds, and what would come from a
//! rank that holds something else is marked as unknown. Ranks that are all there exchange small payloads ([`rendezvous`]). NCCL's own buffers are
//! not counted.

mod rendezvous;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::channel;
use crate::handle::{Handles, Lock, fresh};
use crate::libraries::nccl::rendezvous::{MEAN, MOST, Payload, Rendezvous, SUM, combine};
use crate::libraries::{real, version};
use crate::memory::{self, bytes, is_device, is_readable, known};
use crate::names::{done, functions, same};
use crate::python;
use crate::runtime::devices::{current_device, of_machine};
use crate::status::{check, refuses_null};

/// `ncclResult_t`.
type Status = c_int;
const UNHANDLED_CUDA_ERROR: Status = 1;
const INVALID_ARGUMENT: Status = 4;
const INVALID_USAGE: Status = 5;

/// Payloads that may decide what a program does next: sizes, pickled objects, flags. Larger ones are tensors, whose values nobody reads.
const SMALL: usize = 64 << 10;
/// The same of bytes, which pickled objects are.
const SMALL_BYTES: usize = bytes::CARRIED_WITHIN as usize;
/// The same of all ranks together: for up to 1,024 of them.
const SMALL_OF_ALL: usize = SMALL << 10;

refuses_null! { INVALID_ARGUMENT }

/// A communicator.
#[derive(Debug, Clone, Copy)]
struct Communicator {
    rank: usize,
    /// Ranks; of a split only those are known that come before this one.
    size: usize,
    is_split: bool,
    device: usize,
    /// Where it meets the others, if they are there.
    rendezvous: Option<&'static Rendezvous>,
}

impl Communicator {
    /// Where ranks exchange payloads of so many bytes.
    fn rendezvous(self, bytes: usize, kind: c_int) -> Option<&'static Rendezvous> {
        self.rendezvous.filter(|_| (1..=small(kind)).contains(&bytes))
    }
}

/// The most bytes of a kind that are carried.
fn small(kind: c_int) -> usize {
    if kind <= 1 { SMALL_BYTES } else { SMALL }
}

static COMMUNICATORS: Handles<Communicator> = Handles::new();

fn find(handle: u64) -> Result<Communicator, Status> {
    COMMUNICATORS.with(handle, |one| *one).ok_or(INVALID_ARGUMENT)
}

unsafe fn create(to: *mut u64, size: c_int, rank: c_int, is_split: bool, name: Option<&str>) -> Result<(), Status> {
    static SAID: AtomicBool = AtomicBool::new(false);
    let (Ok(size), Ok(rank)) = (usize::try_from(size), usize::try_from(rank)) else {
        return Err(INVALID_ARGUMENT);
    };
    check(!to.is_null() && rank < size, INVALID_ARGUMENT)?;
    let rendezvous = name.and_then(|name| Rendezvous::enter(name, rank, size));
    let device = of_machine(current_device());
    if let Some(other) = rendezvous.and_then(|rendezvous| rendezvous.other_on(device)) {
        // NCCL names the device by its bus.
        let said = format!("Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {:x}", (device + 1) << 12);
        *LAST_ERROR.lock() = Box::leak(CString::new(said).unwrap_or_default().into_boxed_c_str());
        return Err(INVALID_USAGE);
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        let all_alike = if rendezvous.is_none() { ", and every rank is like this one" } else { "" };
        channel::say(&format!("assumed\tNCCL takes no memory for its own buffers{all_alike}"));
    }
    out(to, COMMUNICATORS.insert(Communicator { rank, size, is_split, device: current_device(), rendezvous }))
}

/// `ncclUniqueId`, which is passed by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

impl UniqueId {
    /// Of this process.
    fn fresh() -> UniqueId {
        let mut id = [0; 128];
        id[..8].copy_from_slice(&fresh().to_le_bytes());
        id[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        UniqueId(id)
    }

    fn name(&self) -> String {
        self.0[..12].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(status: Status) -> *const c_char {
    match status {
        0 => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        INVALID_USAGE => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        _ => c"unknown result code",
    }
    .as_ptr()
}

/// What it last went wrong by; it stays for whoever reads it.
static LAST_ERROR: Lock<&'static CStr> = Lock::new(c"");

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_communicator: u64) -> *const c_char {
    LAST_ERROR.lock().as_ptr()
}

/// An operation of one's own; it sums, as `ncclRedOpCreatePreMulSum` says, but by what factor is on a device.
const OWN_OPERATION: c_int = 64;

functions! {
    // Else that of PyTorch 2.4, the oldest that is served.
    ncclGetVersion(to: *mut c_int) { out(to, version(&[c"libnccl.so.2"], c"ncclGetVersion", 22_005)) }
    ncclGetUniqueId(id: *mut UniqueId) { out(id, UniqueId::fresh()) }
    ncclCommInitRank(to: *mut u64, size: c_int, id: UniqueId, rank: c_int) { create(to, size, rank, false, Some(&id.name())) }
    ncclCommInitRankScalable(to: *mut u64, size: c_int, rank: c_int, ids: c_int, id: *const UniqueId, _config: *const c_void) {
        check(!id.is_null() && ids > 0, INVALID_ARGUMENT)?;
        create(to, size, rank, false, Some(&(*id).name()))
    }
    ncclCommInitAll(to: *mut u64, size: c_int, _devices: *const c_int) {
        check(!to.is_null() && size <= memory::MOST_DEVICES as c_int, INVALID_ARGUMENT)?;
        (0..size).try_for_each(|rank| create(to.add(rank as usize), size, rank, false, None))
    }
    ncclCommSplit(parent: u64, color: c_int, key: c_int, to: *mut u64, _config: *const c_void) {
        let parent = find(parent)?;
        // All ranks of the parent call this, also those that are in no part.
        let part = parent.rendezvous.and_then(|rendezvous| rendezvous.split(color, key));
        if color < 0 {
            return out(to, 0);
        }
        if let Some((name, rank, size)) = part {
            return create(to, size as c_int, rank as c_int, false, Some(&name));
        }
        // PyTorch's key is the rank in the new group; others' keys and colours are not known, nor is the group's size.
        let rank = if usize::try_from(key).is_ok_and(|key| key < parent.size) { key } else { parent.rank as c_int };
        create(to, parent.size as c_int, rank, true, None)
    }
    ncclCommShrink(parent: u64, _excluded: *const c_int, count: c_int, to: *mut u64, _config: *const c_void, _flags: c_int) {
        let parent = find(parent)?;
        create(to, (parent.size as c_int).saturating_sub(count), parent.rank as c_int, true, None)
    }
    ncclCommDestroy(communicator: u64) { COMMUNICATORS.remove(communicator).map(drop).ok_or(INVALID_ARGUMENT) }
    ncclCommCount(communicator: u64, count: *mut c_int) { out(count, find(communicator)?.size as c_int) }
    ncclCommUserRank(communicator: u64, rank: *mut c_int) { out(rank, find(communicator)?.rank as c_int) }
    ncclCommCuDevice(communicator: u64, device: *mut c_int) { out(device, find(communicator)?.device as c_int) }
    ncclCommGetAsyncError(communicator: u64, error: *mut Status) { find(communicator).and_then(|_| out(error, 0)) }
    ncclCommRegister(_communicator: u64, _buffer: *const c_void, _bytes: usize, handle: *mut u64) { out(handle, fresh()) }
    ncclMemAlloc(to: *mut u64, bytes: usize) {
        check(!to.is_null(), INVALID_ARGUMENT)?;
        out(to, memory::allocate(current_device(), bytes as u64).map_err(|_| UNHANDLED_CUDA_ERROR)?)
    }
    ncclMemFree(address: u64) { check(address == 0 || memory::free(address).is_ok(), UNHANDLED_CUDA_ERROR) }
    ncclRedOpCreatePreMulSum(operation: *mut c_int, _scalar: *const c_void, _kind: c_int, _residence: c_int, _communicator: u64) { out(operation, OWN_OPERATION) }
}

done! { ncclCommFinalize ncclCommRevoke ncclCommDeregister ncclCommWindowDeregister ncclRedOpDestroy }
same! { ncclCommInitRankConfig = ncclCommInitRank, ncclCommAbort = ncclCommDestroy, ncclCommWindowRegister = ncclCommRegister, }

/// Bytes of an element of a `ncclDataType_t`.
fn width(kind: c_int) -> Option<usize> {
    const WIDTHS: [usize; 12] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1];
    usize::try_from(kind).ok().and_then(|kind| WIDTHS.get(kind).copied())
}

/// The communicator and the bytes of a call.
fn call(communicator: u64, count: usize, kind: c_int) -> Result<(Communicator, usize), Status> {
    let bytes = width(kind).and_then(|width| width.checked_mul(count)).ok_or(INVALID_ARGUMENT)?;
    Ok((find(communicator)?, bytes))
}

/// Where the part of this rank begins, in a buffer of all ranks.
fn own_part(buffer: u64, one: Communicator, bytes: usize) -> Result<u64, Status> {
    let before = one.rank.checked_mul(bytes).map(|before| before as u64);
    let part = before.filter(|before| before.checked_add(bytes as u64).is_some_and(|all| bytes::is_memory(buffer, all)));
    part.map(|before| buffer + before).ok_or(INVALID_ARGUMENT)
}

/// Copies between buffers of a collective; what nobody could read is only marked.
unsafe fn move_bytes(to: u64, from: u64, bytes: usize) -> Result<(), Status> {
    bytes::copy(to, from, bytes as u64).map_err(|_| INVALID_ARGUMENT)
}

fn forget(to: u64, bytes: usize) -> Result<(), Status> {
    if !is_device(to) || !is_readable(to, bytes as u64) {
        return check(bytes == 0, INVALID_ARGUMENT);
    }
    known::mark(to, bytes as u64, false);
    Ok(())
}

/// What lies there, if it is known. Bytes may end earlier than a buffer that has room for the longest of all objects.
unsafe fn payload(from: u64, bytes: usize, kind: c_int) -> Result<Payload, Status> {
    check(bytes::is_memory(from, bytes as u64), INVALID_ARGUMENT)?;
    let known = known::known_start(from, bytes as u64) as usize;
    if known == 0 || (known < bytes && kind > 1) {
        return Ok(None);
    }
    let mut payload = std::slice::from_raw_parts(from as *const u8, known).to_vec();
    payload.resize(bytes, 0);
    Ok(Some(payload))
}

unsafe fn store(to: u64, payload: Option<&[u8]>, bytes: usize) -> Result<(), Status> {
    let Some(payload) = payload.filter(|payload| payload.len() == bytes) else {
        return forget(to, bytes);
    };
    check(bytes::is_memory(to, bytes as u64), INVALID_ARGUMENT)?;
    std::ptr::copy_nonoverlapping(payload.as_ptr(), to as *mut u8, bytes);
    known::mark(to, bytes as u64, true);
    Ok(())
}

/// What a reduction leaves: the same for the least, the greatest and the mean of equals; for a sum, as often as there are ranks.
unsafe fn reduce(to: u64, from: u64, bytes: usize, kind: c_int, operation: c_int, one: Communicator) -> Result<(), Status> {
    if let Some(rendezvous) = one.rendezvous(bytes, kind) {
        let all = rendezvous.exchange(payload(from, bytes, kind)?);
        return store(to, combine(all.iter().map(Option::as_deref), kind, operation).as_deref(), bytes);
    }
    if (MOST..=MEAN).contains(&operation) || one.size == 1 || bytes == 0 {
        return move_bytes(to, from, bytes);
    }
    let is_small = operation == SUM && one.rendezvous.is_none() && !one.is_split && bytes <= SMALL;
    let own = if is_small { payload(from, bytes, kind)? } else { None };
    move_bytes(to, from, bytes)?;
    store(to, combine(std::iter::repeat_n(own.as_deref(), one.size), kind, operation).as_deref(), bytes)
}

/// The same to every rank's place.
unsafe fn spread(to: u64, from: u64, bytes: usize, kind: c_int, one: Communicator) -> Result<(), Status> {
    // Of a split the later places may not be there: they stay what they are.
    let places = if one.is_split { one.rank + 1 } else { one.size };
    let all = bytes.checked_mul(places).ok_or(INVALID_ARGUMENT)?;
    if bytes == 0 || bytes > small(kind) || all > SMALL_OF_ALL || one.rendezvous.is_some() {
        return forget(to, all);
    }
    let own = payload(from, bytes, kind)?;
    (0..places).try_for_each(|place| store(to + (place * bytes) as u64, own.as_deref(), bytes))
}

unsafe fn broadcast(from: u64, to: u64, count: usize, kind: c_int, root: c_int, communicator: u64) -> Result<(), Status> {
    let (one, bytes) = call(communicator, count, kind)?;
    if let Some(rendezvous) = one.rendezvous(bytes, kind) {
        let is_root = one.rank as c_int == root;
        let all = rendezvous.exchange(if is_root { payload(from, bytes, kind)? } else { None });
        return if is_root { move_bytes(to, from, bytes) } else { store(to, all.get(root as usize).and_then(Option::as_deref), bytes) };
    }
    // What the root holds is what this rank holds: parameters, which lie in `to` already.
    if one.rank as c_int == root {
        return move_bytes(to, from, bytes);
    }
    if bytes <= SMALL && is_readable(to, bytes as u64) && !known::is_known(to, bytes as u64) {
        // Sizes that only the root knows are nothing, rather than what lay there.
        let _ = bytes::fill(to, &[0], bytes as u64);
        known::mark(to, bytes as u64, false);
    }
    Ok(())
}

functions! {
    ncclAllReduce(from: u64, to: u64, count: usize, kind: c_int, operation: c_int, communicator: u64) {
        let (one, bytes) = call(communicator, count, kind)?;
        reduce(to, from, bytes, kind, operation, one)
    }
    ncclReduce(from: u64, to: u64, count: usize, kind: c_int, operation: c_int, root: c_int, communicator: u64) {
        let (one, bytes) = call(communicator, count, kind)?;
        if one.rank as c_int == root {
            return reduce(to, from, bytes, kind, operation, one);
        }
        if let Some(rendezvous) = one.rendezvous(bytes, kind) {
            rendezvous.exchange(payload(from, bytes, kind)?);
        }
        Ok(())
    }
    ncclReduceScatter(from: u64, to: u64, count: usize, kind: c_int, operation: c_int, communicator: u64) {
        let (one, bytes) = call(communicator, count, kind)?;
        let own = own_part(from, one, bytes)?;
        let Some(rendezvous) = one.rendezvous(bytes.saturating_mul(one.size), kind) else {
            return reduce(to, own, bytes, kind, operation, Communicator { rendezvous: None, is_split: one.is_split || one.rendezvous.is_some(), ..one });
        };
        let all = rendezvous.exchange(payload(from, bytes * one.size, kind)?);
        store(to, combine(all.iter().map(|all| part(all, one, bytes)), kind, operation).as_deref(), bytes)
    }
    ncclBroadcast(from: u64, to: u64, count: usize, kind: c_int, root: c_int, communicator: u64) { broadcast(from, to, count, kind, root, communicator) }
    ncclBcast(buffer: u64, count: usize, kind: c_int, root: c_int, communicator: u64) { broadcast(buffer, buffer, count, kind, root, communicator) }
    ncclAllGather(from: u64, to: u64, count: usize, kind: c_int, communicator: u64) { gather(from, to, count, kind, None, communicator) }
    ncclGather(from: u64, to: u64, count: usize, kind: c_int, root: c_int, communicator: u64) {
        gather(from, to, count, kind, Some(root), communicator)
    }
    /// Alone, every rank sends here what this one sends to itself.
    ncclAlltoAll(from: u64, to: u64, count: usize, kind: c_int, communicator: u64) {
        let (one, bytes) = call(communicator, count, kind)?;
        let own = own_part(from, one, bytes)?;
        let Some(rendezvous) = one.rendezvous(bytes.saturating_mul(one.size), kind) else {
            return spread(to, own, bytes, kind, one);
        };
        let all = rendezvous.exchange(payload(from, bytes * one.size, kind)?);
        (0..one.size).try_for_each(|rank| store(to + (rank * bytes) as u64, part(&all[rank], one, bytes), bytes))
    }
    ncclScatter(from: u64, to: u64, count: usize, kind: c_int, root: c_int, communicator: u64) {
        let (one, bytes) = call(communicator, count, kind)?;
        if one.rank as c_int == root { move_bytes(to, own_part(from, one, bytes)?, bytes) } else { forget(to, bytes) }
    }
}

/// This rank's part of what is for all.
fn part(all: &Payload, one: Communicator, bytes: usize) -> Option<&[u8]> {
    all.as_ref()?.get(one.rank * bytes..(one.rank + 1) * bytes)
}

/// What each rank holds, in the order of ranks, to the root, or to all.
unsafe fn gather(from: u64, to: u64, count: usize, kind: c_int, to_one: Option<c_int>, communicator: u64) -> Result<(), Status> {
    let (one, bytes) = call(communicator, count, kind)?;
    let is_wanted = to_one.is_none_or(|rank| one.rank as c_int == rank);
    let Some(rendezvous) = one.rendezvous(bytes, kind) else {
        return if is_wanted { spread(to, from, bytes, kind, one) } else { Ok(()) };
    };
    let all = rendezvous.exchange(payload(from, bytes, kind)?);
    let wanted = if is_wanted { all.as_slice() } else { &[] };
    (0..).zip(wanted).try_for_each(|(rank, payload)| store(to + rank * bytes as u64, payload.as_deref(), bytes))
}

/// Sends and receives of one group of calls of a thread.
#[derive(Debug, Default)]
struct Group {
    depth: u32,
    /// What this rank sends to itself: communicator, address, bytes.
    sends: Vec<(u64, u64, usize)>,
    receives: Vec<Receive>,
}

/// Communicator, address, bytes, their kind and who sends them.
type Receive = (u64, u64, usize, c_int, c_int);

/// By thread, which is told by the address of one of its variables.
static GROUPS: Lock<BTreeMap<usize, Group>> = Lock::new(BTreeMap::new());

/// A group that sends more than so often is not one of this library.
const MOST_CALLS: usize = 1 << 20;

fn group<T>(act: impl FnOnce(&mut Group) -> T) -> T {
    thread_local! {
        static OWN: Cell<u8> = const { Cell::new(0) };
    }
    let thread = OWN.with(|own| std::ptr::from_ref(own) as usize);
    let mut groups = GROUPS.lock();
    let done = act(groups.entry(thread).or_default());
    groups.retain(|_, group| group.depth > 0);
    done
}

functions! {
    ncclGroupStart() {
        group(|group| group.depth = group.depth.saturating_add(1));
        Ok(())
    }
    ncclGroupEnd() {
        let ended = group(|group| {
            group.depth = group.depth.saturating_sub(1);
            (group.depth == 0).then(|| std::mem::take(group))
        });
        let ended = ended.unwrap_or_default();
        let mut answer = Ok(());
        for receive in ended.receives {
            let (communicator, to, bytes, ..) = receive;
            // Every rank sends here what this one sends to itself, if it sends as much.
            let own = ended.sends.iter().find(|send| send.0 == communicator && send.2 == bytes);
            let received = match own {
                _ if find(communicator)?.rendezvous.is_some() => take(receive),
                Some(&(_, from, _)) if bytes <= SMALL => move_bytes(to, from, bytes),
                _ => forget(to, bytes),
            };
            answer = answer.and(received);
        }
        answer
    }
    ncclSend(from: u64, count: usize, kind: c_int, peer: c_int, communicator: u64) {
        let (one, bytes) = call(communicator, count, kind)?;
        let peer = usize::try_from(peer).ok().filter(|peer| *peer < one.size).ok_or(INVALID_ARGUMENT)?;
        if let Some(rendezvous) = one.rendezvous(bytes, kind) {
            rendezvous.send(peer, payload(from, bytes, kind)?);
        } else if peer == one.rank {
            group(|group| {
                if group.depth > 0 && group.sends.len() < MOST_CALLS {
                    group.sends.push((communicator, from, bytes));
                }
            });
        }
        Ok(())
    }
    ncclRecv(to: u64, count: usize, kind: c_int, peer: c_int, communicator: u64) {
        let (_, bytes) = call(communicator, count, kind)?;
        let is_grouped = group(|group| {
            let is_grouped = group.depth > 0 && group.receives.len() < MOST_CALLS;
            if is_grouped {
                group.receives.push((communicator, to, bytes, kind, peer));
            }
            is_grouped
        });
        if is_grouped { Ok(()) } else { take((communicator, to, bytes, kind, peer)) }
    }
}

/// Waits for what a rank sends, where it is there.
unsafe fn take((communicator, to, bytes, kind, peer): Receive) -> Result<(), Status> {
    let one = find(communicator)?;
    let peer = usize::try_from(peer).ok().filter(|peer| *peer < one.size).ok_or(INVALID_ARGUMENT)?;
    store(to, one.rendezvous(bytes, kind).and_then(|rendezvous| rendezvous.receive(peer)).as_deref(), bytes)
}

/// `c10d::TCPStore::waitForWorkers()`: a rank that runs alone waits for none. `batchfit run` says so in the environment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZN4c10d8TCPStore14waitForWorkersEv(store: *mut c_void) {
    type Wait = unsafe extern "C" fn(*mut c_void);
    const LIBRARY: &CStr = c"libtorch_cpu.so";
    python::load_hooks();
    if std::env::var_os("BATCHFIT_VGPU_ALONE").is_some_and(|alone| alone == "1") {
        return;
    }
    if let Some(wait) = real(&[LIBRARY], c"_ZN4c10d8TCPStore14waitForWorkersEv") {
        std::mem::transmute::<*mut c_void, Wait>(wait)(store);
    }
}
