//! Memory pools: `cudaMallocAsync`.
//!
//! A pool takes chunks of the device and hands out pieces. As CUDA's, it takes 32 MiB at least, and gives back what is free beyond its threshold
//! when a program waits. Where a real pool puts pieces was not recorded: here, into the smallest free range that is large enough.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::devices::device;
use super::{capture, streams};
use crate::handle::{Handles, Lock};
use crate::memory::{self, MOST_DEVICES, known};
use crate::names::same;
use crate::status::{INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, Status, check, out};

/// What pieces are rounded to.
const PIECE: u64 = 512;
/// What a pool takes at least.
const CHUNK: u64 = 32 << 20;

#[derive(Debug, Default)]
struct Pool {
    device: usize,
    /// What it took of the device.
    chunks: BTreeMap<u64, u64>,
    free: BTreeMap<u64, u64>,
    used: BTreeMap<u64, u64>,
    /// Reuse by events, opportunistically, by dependencies: only remembered.
    reuse: [c_int; 3],
    threshold: u64,
    reserved: u64,
    reserved_high: u64,
    used_bytes: u64,
    used_high: u64,
}

static POOLS: Handles<Pool> = Handles::new();
/// Each device's own pool, and the one in its place; 0 until it is asked for.
static DEFAULT: Lock<[u64; MOST_DEVICES]> = Lock::new([0; MOST_DEVICES]);
static CURRENT: [AtomicU64; MOST_DEVICES] = [const { AtomicU64::new(0) }; MOST_DEVICES];
/// Whether there ever was a pool: else nothing is looked up.
static IS_USED: AtomicBool = AtomicBool::new(false);

impl Pool {
    fn of(device: usize) -> Self {
        Pool { device, reuse: [1; 3], ..Pool::default() }
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64, Status> {
        let bytes = bytes.checked_next_multiple_of(PIECE).ok_or(INVALID_VALUE)?;
        let best = |free: &BTreeMap<u64, u64>| {
            let fitting = free.iter().filter(|&(_, &room)| room >= bytes);
            fitting.min_by_key(|&(_, &room)| room).map(|(&start, &room)| (start, room))
        };
        let (start, room) = match best(&self.free) {
            Some(found) => found,
            None => self.grow(bytes)?,
        };
        self.free.remove(&start);
        if room > bytes {
            self.free.insert(start + bytes, room - bytes);
        }
        self.used.insert(start, bytes);
        self.used_bytes += bytes;
        self.used_high = self.used_high.max(self.used_bytes);
        Ok(start)
    }

    fn grow(&mut self, bytes: u64) -> Result<(u64, u64), Status> {
        let chunk = bytes.max(CHUNK).checked_next_multiple_of(memory::GRANULARITY).ok_or(OUT_OF_MEMORY)?;
        // What lies free is given back before an allocation is refused.
        let start = memory::allocate(self.device, chunk).or_else(|_| {
            self.trim(0);
            memory::allocate(self.device, chunk)
        })?;
        self.chunks.insert(start, chunk);
        self.free.insert(start, chunk);
        self.reserved += chunk;
        self.reserved_high = self.reserved_high.max(self.reserved);
        Ok((start, chunk))
    }

    fn free(&mut self, start: u64) -> bool {
        let Some(bytes) = self.used.remove(&start) else {
            return false;
        };
        self.used_bytes -= bytes;
        known::mark(start, bytes, false);
        let (mut from, mut to) = (start, start + bytes);
        // Neighbours join, but not those of another chunk.
        if let Some(after) = self.free.get(&to).copied().filter(|_| !self.chunks.contains_key(&to)) {
            self.free.remove(&to);
            to += after;
        }
        if let Some((&before, &room)) = self.free.range(..from).next_back()
            && before + room == from
            && !self.chunks.contains_key(&from)
        {
            from = before;
        }
        self.free.insert(from, to - from);
        true
    }

    /// Gives chunks back that are free, down to `keep` bytes.
    fn trim(&mut self, keep: u64) {
        let idle: Vec<(u64, u64)> =
            self.chunks.iter().filter(|&(start, bytes)| self.free.get(start) == Some(bytes)).map(|(&start, &bytes)| (start, bytes)).collect();
        for (start, bytes) in idle {
            if self.reserved <= keep {
                break;
            }
            if memory::free(start).is_ok() {
                self.chunks.remove(&start);
                self.free.remove(&start);
                self.reserved -= bytes;
            }
        }
    }
}

fn create(device: usize) -> u64 {
    IS_USED.store(true, Ordering::Release);
    POOLS.insert(Pool::of(device))
}

/// A device's own pool.
fn default(device: usize) -> u64 {
    let mut all = DEFAULT.lock();
    if all[device] == 0 {
        all[device] = create(device);
    }
    all[device]
}

fn current(device: usize) -> u64 {
    match CURRENT[device].load(Ordering::Acquire) {
        0 => default(device),
        handle => handle,
    }
}

fn with<T>(pool: u64, act: impl FnOnce(&mut Pool) -> T) -> Result<T, Status> {
    POOLS.with(pool, act).ok_or(INVALID_HANDLE)
}

unsafe fn give(to: *mut u64, bytes: usize, pool: u64, stream: u64) -> Result<(), Status> {
    check(!to.is_null(), INVALID_VALUE)?;
    streams::check(stream)?;
    let address = if bytes == 0 { Ok(0) } else { with(pool, |pool| pool.allocate(bytes as u64))? };
    out(to, *address.as_ref().unwrap_or(&0))?;
    address.map(drop)
}

/// Takes back what a pool handed out; `false` where none did.
pub fn free(address: u64) -> bool {
    IS_USED.load(Ordering::Acquire) && POOLS.lock().values_mut().any(|pool| pool.free(address))
}

/// A program waits: what is free beyond the thresholds goes back.
pub fn settle() {
    if IS_USED.load(Ordering::Acquire) {
        POOLS.lock().values_mut().for_each(|pool| pool.trim(pool.threshold));
    }
}

runtime! {
    cudaMallocAsync(to: *mut u64, bytes: usize, stream: u64) {
        let device = device(streams::device_of(stream)? as c_int)?;
        give(to, bytes, current(device), stream)
    }
    cudaMallocFromPoolAsync(to: *mut u64, bytes: usize, pool: u64, stream: u64) { give(to, bytes, pool, stream) }
    cudaFreeAsync(address: u64, stream: u64) {
        streams::check(stream)?;
        if address == 0 || free(address) { Ok(()) } else { capture::forbid().and_then(|()| memory::free(address)) }
    }
    cudaDeviceGetDefaultMemPool(to: *mut u64, number: c_int) { out(to, default(device(number)?)) }
    cudaDeviceGetMemPool(to: *mut u64, number: c_int) { out(to, current(device(number)?)) }
    cudaDeviceSetMemPool(number: c_int, pool: u64) {
        let device = device(number)?;
        check(with(pool, |pool| pool.device)? == device, INVALID_VALUE)?;
        CURRENT[device].store(pool, Ordering::Release);
        Ok(())
    }
    // `cudaMemPoolProps`: the kind of memory and of handles, then the kind of place and its number.
    cudaMemPoolCreate(to: *mut u64, properties: *const [c_int; 4]) {
        check(!to.is_null() && !properties.is_null(), INVALID_VALUE)?;
        let [_, _, place, number] = properties.read_unaligned();
        // `cudaMemLocationTypeDevice`
        check(place == 1, INVALID_VALUE)?;
        out(to, create(device(number)?))
    }
    cudaMemPoolDestroy(pool: u64) {
        check(!DEFAULT.lock().contains(&pool), INVALID_VALUE)?;
        // What it handed out lives on until it is freed, in CUDA; here it goes with the pool.
        let mut gone = POOLS.remove(pool).ok_or(INVALID_HANDLE)?;
        let used: Vec<u64> = gone.used.keys().copied().collect();
        for start in used {
            gone.free(start);
        }
        gone.trim(0);
        let _ = CURRENT[gone.device].compare_exchange(pool, 0, Ordering::AcqRel, Ordering::Acquire);
        Ok(())
    }
    cudaMemPoolTrimTo(pool: u64, keep: usize) { with(pool, |pool| pool.trim(keep as u64)) }
    cudaMemPoolGetAttribute(pool: u64, attribute: c_int, to: *mut c_void) {
        let value = with(pool, |pool| match attribute {
            1..=3 => Some(pool.reuse[attribute as usize - 1] as u64),
            4 => Some(pool.threshold),
            5 => Some(pool.reserved),
            6 => Some(pool.reserved_high),
            7 => Some(pool.used_bytes),
            8 => Some(pool.used_high),
            _ => None,
        })?;
        let value = value.ok_or(INVALID_VALUE)?;
        if attribute <= 3 { out(to.cast(), value as c_int) } else { out(to.cast(), value) }
    }
    cudaMemPoolSetAttribute(pool: u64, attribute: c_int, value: *const c_void) {
        check(!value.is_null(), INVALID_VALUE)?;
        with(pool, |pool| {
            match attribute {
                1..=3 => pool.reuse[attribute as usize - 1] = value.cast::<c_int>().read_unaligned(),
                4 => pool.threshold = value.cast::<u64>().read_unaligned(),
                // Highs may only be set to 0, which starts them again.
                6 => pool.reserved_high = pool.reserved,
                8 => pool.used_high = pool.used_bytes,
                _ => return Err(INVALID_VALUE),
            }
            Ok(())
        })?
    }
    cudaMemPoolSetAccess(pool: u64, list: *const c_void, count: usize) {
        with(pool, |_| ())?;
        check(!list.is_null() || count == 0, INVALID_VALUE)
    }
    // Every device reads and writes: `cudaMemAccessFlagsProtReadWrite`.
    cudaMemPoolGetAccess(to: *mut c_int, pool: u64, _place: *const c_void) {
        with(pool, |_| ())?;
        out(to, 3)
    }
}

same! {
    cudaMallocAsync_ptsz = cudaMallocAsync, cudaMallocFromPoolAsync_ptsz = cudaMallocFromPoolAsync, cudaFreeAsync_ptsz = cudaFreeAsync,
}

#[cfg(test)]
mod tests {
    use super::Pool;

    #[test]
    fn freed_pieces_of_a_chunk_join_and_the_smallest_fitting_is_taken() {
        let mut pool = Pool::of(0);
        for chunk in [0x1000_0000, 0x1200_0000] {
            pool.chunks.insert(chunk, 0x200_0000);
            pool.free.insert(chunk, 0x200_0000);
        }
        let pieces = [700, 512, 512].map(|bytes| pool.allocate(bytes).unwrap());
        assert_eq!(pieces, [0x1000_0000, 0x1000_0400, 0x1000_0600]);
        assert!(pool.free(pieces[1]));
        assert!(!pool.free(pieces[1]));
        assert_eq!(pool.allocate(100), Ok(pieces[1]));
        for piece in pieces {
            assert!(pool.free(piece));
        }
        assert_eq!(pool.free.values().copied().collect::<Vec<u64>>(), [0x200_0000; 2]);
        assert_eq!((pool.used_bytes, pool.used_high), (0, 0x800));
    }
}
