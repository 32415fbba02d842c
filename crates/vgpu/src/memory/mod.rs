//! Device memory.
//!
//! For each device a span of addresses is reserved and not committed: a page that nobody wrote costs nothing and reads as zero. **So a device
//! address is a host address**: copies and small computations work on it directly. `cudaMalloc` takes the lower quarter of a span, at falling
//! addresses ([`placement`]); what programs reserve for themselves (expandable segments) lies above.

pub mod bytes;
pub mod host;
pub mod known;
pub mod placement;
pub mod shared;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::process;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::channel;
use crate::config::card;
use crate::handle::Lock;
use crate::runtime::{devices, launch};
use crate::status::{INVALID_DEVICE, INVALID_VALUE, OUT_OF_MEMORY, Status, check};
use crate::{fork, libc};
use placement::Placement;

/// Addresses of a device.
pub const SPAN: u64 = 1 << 41;
/// Where those of the first device begin.
pub const BASE: u64 = 0x1000_0000_0000;
/// What memory is handed out in.
pub const GRANULARITY: u64 = 2 << 20;
/// Nanoseconds in which the host takes memory of a device: an H200 needed 0.11 to 0.15 ms for 2 to 512 MiB.
const TAKEN: u64 = 130_000;
/// Devices that a run may have.
pub const MOST_DEVICES: usize = 16;

/// What is used of a device.
struct Device {
    is_mapped: bool,
    /// Bytes of `cudaMalloc`.
    allocated: u64,
    /// Bytes that were created to be mapped.
    created: u64,
    /// What lives, by its address.
    blocks: BTreeMap<u64, u64>,
    placement: Placement,
    /// Address ranges that programs reserved, and what they are of.
    reserved: BTreeMap<u64, u64>,
    next_reserved: u64,
}

static MEMORY: Lock<[Device; MOST_DEVICES]> = Lock::new([const { Device::NEW }; MOST_DEVICES]);

/// A device that there is; its addresses are reserved when it is first used.
fn used(memory: &mut [Device; MOST_DEVICES], number: usize) -> Result<&mut Device, Status> {
    check(number < devices::visible().len(), INVALID_DEVICE)?;
    let device = &mut memory[number];
    if !device.is_mapped {
        device.admit(number, 0)?;
        map(number)?;
        let start = BASE + SPAN * number as u64;
        let above = start + SPAN / 4;
        device.placement = Placement::of_host(start, above);
        device.next_reserved = above;
        device.is_mapped = true;
    }
    Ok(device)
}

impl Device {
    const NEW: Device = Device {
        is_mapped: false,
        allocated: 0,
        created: 0,
        blocks: BTreeMap::new(),
        placement: Placement::NONE,
        reserved: BTreeMap::new(),
        next_reserved: 0,
    };

    fn used(&self) -> u64 {
        self.allocated + self.created + card().context
    }

    /// What other processes see that this one holds: before its first kernel a context is smaller.
    fn held(&self, number: usize) -> u64 {
        let is_bare = HAS[number].load(Ordering::Relaxed) & need::CODE == 0;
        self.allocated + self.created + if is_bare { card().bare_context } else { card().context }
    }

    /// Takes so much more, if it fits beside what other processes hold; if not, that is said.
    fn admit(&self, number: usize, bytes: u64) -> Result<(), Status> {
        let used = self.used();
        let room = used.checked_add(bytes).and_then(|all| card().memory.checked_sub(all));
        let taken = room.map_or(Err(0), |room| shared::take(devices::of_machine(number), self.held(number) + bytes, room));
        let Err(others) = taken else {
            return Ok(());
        };
        channel::say(&format!("refused\t{number}\t{bytes}\t{used}\t{others}"));
        REFUSALS.fetch_add(1, Ordering::Relaxed);
        Err(OUT_OF_MEMORY)
    }

    /// Gives other processes what this one holds no more, or takes what its context has grown by.
    fn tell(&self, number: usize) {
        shared::tell(devices::of_machine(number), self.held(number));
    }
}

/// How often a device had no more memory, or was asked how much there is, as PyTorch does where its own limit refuses memory.
pub static REFUSALS: AtomicUsize = AtomicUsize::new(0);

/// Reserves the addresses of a device.
fn map(number: usize) -> Result<(), Status> {
    let wanted = (BASE + SPAN * number as u64) as *mut c_void;
    if libc::map(wanted as u64, SPAN, libc::READ_WRITE, libc::MAP_FIXED_NOREPLACE) != Some(wanted as u64) {
        channel::say("problem\tthe addresses of the virtual GPU are taken or may not be reserved (ulimit -v?)");
        return Err(OUT_OF_MEMORY);
    }
    fork::use_device();
    // A huge page would commit 2 MiB for one byte that is written. SAFETY: it was just mapped.
    unsafe {
        libc::madvise(wanted, SPAN as usize, libc::MADV_NOHUGEPAGE);
        libc::madvise(wanted, SPAN as usize, libc::MADV_DONTDUMP);
    }
    Ok(())
}

/// Gives the host the pages of a range back, which then reads as zero.
fn discard(address: u64, bytes: u64) {
    // SAFETY: callers pass whole pages of a span that is mapped.
    unsafe { libc::madvise(address as *mut c_void, bytes as usize, libc::MADV_DONTNEED) };
}

/// Whether an address is one of a device.
pub fn is_device(address: u64) -> bool {
    (BASE..BASE + SPAN * MOST_DEVICES as u64).contains(&address)
}

/// Whose address it is.
pub fn device_of(address: u64) -> Option<usize> {
    is_device(address).then(|| ((address - BASE) / SPAN) as usize)
}

/// Whether `bytes` from `address` lie in memory of a device that may be read and written: nothing else is followed.
pub fn is_readable(address: u64, bytes: u64) -> bool {
    let Some(number) = device_of(address) else {
        return false;
    };
    let end = address.checked_add(bytes);
    end.is_some_and(|end| end <= BASE + SPAN * (number as u64 + 1)) && MEMORY.lock()[number].is_mapped
}

/// `cudaMalloc`.
pub fn allocate(device: usize, bytes: u64) -> Result<u64, Status> {
    let address = {
        let mut memory = MEMORY.lock();
        let one = used(&mut memory, device)?;
        let rounded = bytes.max(1).checked_next_multiple_of(GRANULARITY).ok_or(OUT_OF_MEMORY)?;
        one.admit(device, rounded)?;
        let address = one.placement.place(rounded).ok_or(OUT_OF_MEMORY)?;
        one.blocks.insert(address, rounded);
        one.allocated += rounded;
        address
    };
    launch::spend(TAKEN);
    channel::say(&format!("malloc\t{device}\t{bytes}\t{address:x}"));
    Ok(address)
}

/// `cudaFree` of what [`allocate`] gave.
pub fn free(address: u64) -> Result<(), Status> {
    let device = device_of(address).ok_or(INVALID_VALUE)?;
    {
        let mut memory = MEMORY.lock();
        let one = &mut memory[device];
        let bytes = one.blocks.remove(&address).ok_or(INVALID_VALUE)?;
        discard(address, bytes);
        one.allocated -= bytes;
        one.placement.free(address, bytes);
        one.tell(device);
        known::mark(address, bytes, false);
    }
    channel::say(&format!("free\t{device}\t{address:x}"));
    Ok(())
}

/// What kernels need: their code, more local memory than a context has at first, and a buffer for assertions.
pub mod need {
    /// Its code.
    pub const CODE: u8 = 1;
    /// More local memory.
    pub const LOCAL: u8 = 2;
    /// The buffer for assertions.
    pub const ASSERTIONS: u8 = 4;
}

/// What each device has of it.
static HAS: [AtomicU8; MOST_DEVICES] = [const { AtomicU8::new(0) }; MOST_DEVICES];

/// A kernel is launched: what it is the first to need is taken, as [`take`] does. An H200 with driver 580.159 took so much.
pub fn prepare(device: usize, needs: u8) {
    let first = needs & !HAS[device].fetch_or(needs, Ordering::Relaxed);
    if first & need::CODE != 0 {
        let _ = used(&mut MEMORY.lock(), device).map(|one| {
            one.placement.place(2 << 20);
            one.tell(device);
        });
    }
    if first & need::LOCAL != 0 {
        let _ = used(&mut MEMORY.lock(), device).map(|device| device.placement.grow_local());
    }
    if first & need::ASSERTIONS != 0 {
        take(device, 10 << 20);
    }
}

/// A library takes memory of its own, for as long as the program runs. It is among what is said of contexts: only where it lies matters.
pub fn take(device: usize, bytes: u64) {
    let _ = used(&mut MEMORY.lock(), device).map(|device| device.placement.place(bytes));
}

/// The block that an address lies in: where it begins and how long it is.
pub fn block_of(address: u64) -> Option<(u64, u64)> {
    let device = device_of(address)?;
    let memory = MEMORY.lock();
    let one = &memory[device];
    let below = |ranges: &BTreeMap<u64, u64>| {
        let (&start, &bytes) = ranges.range(..=address).next_back()?;
        (address - start < bytes).then_some((start, bytes))
    };
    below(&one.blocks).or_else(|| below(&one.reserved))
}

/// Free and total memory of a device, as this process has it once it has a context there.
pub fn info(device: usize) -> Result<(u64, u64), Status> {
    check(device < devices::visible().len(), INVALID_DEVICE)?;
    let used = MEMORY.lock()[device].used();
    let others = shared::held(devices::of_machine(device), process::id());
    let total = card().memory;
    Ok((total.saturating_sub(used).saturating_sub(others), total))
}

/// `cuMemAddressReserve`: addresses and no memory.
pub fn reserve(device: usize, bytes: u64) -> Result<u64, Status> {
    let mut memory = MEMORY.lock();
    let one = used(&mut memory, device)?;
    let rounded = bytes.max(1).checked_next_multiple_of(GRANULARITY).ok_or(INVALID_VALUE)?;
    let end = one.next_reserved.checked_add(rounded).and_then(|end| end.checked_add(GRANULARITY));
    let top = BASE + SPAN * (device as u64 + 1);
    let end = end.filter(|&end| end <= top).ok_or(OUT_OF_MEMORY)?;
    let address = one.next_reserved;
    one.reserved.insert(address, rounded);
    one.next_reserved = end;
    Ok(address)
}

/// `cuMemAddressFree`.
pub fn unreserve(address: u64) -> Result<(), Status> {
    let device = device_of(address).ok_or(INVALID_VALUE)?;
    let mut memory = MEMORY.lock();
    let one = &mut memory[device];
    let bytes = one.reserved.remove(&address).ok_or(INVALID_VALUE)?;
    discard(address, bytes);
    // The last is as if it had never been reserved; a program that reserves again and again would else run out of addresses.
    if address + bytes + GRANULARITY == one.next_reserved {
        one.next_reserved = address;
    }
    Ok(())
}

/// `cuMemUnmap` of a mapping: its pages go back to the host.
pub fn unmap(address: u64, bytes: u64) {
    discard(address, bytes);
    known::mark(address, bytes, false);
}

/// `cuMemCreate`: takes memory that is not mapped yet.
pub fn create(device: usize, bytes: u64) -> Result<(), Status> {
    {
        let mut memory = MEMORY.lock();
        let one = used(&mut memory, device)?;
        one.admit(device, bytes)?;
        one.created += bytes;
    }
    channel::say(&format!("create\t{device}\t{bytes}"));
    Ok(())
}

/// `cuMemRelease` of what [`create`] took.
pub fn release(device: usize, bytes: u64) {
    {
        let mut memory = MEMORY.lock();
        memory[device].created -= bytes;
        memory[device].tell(device);
    }
    channel::say(&format!("release\t{device}\t{bytes}"));
}
