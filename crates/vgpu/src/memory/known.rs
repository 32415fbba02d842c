//! Which bytes are known: a bit for every 512 of them, the grain of PyTorch's allocator.
//!
//! Kernels do not run, so most of the memory holds nothing. What came from the host, was set, or was computed on the CPU is known; a script
//! that decides by anything else is told so.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::libc;

use super::{BASE, MOST_DEVICES, SPAN, device_of};

/// Bytes that share a bit.
pub const GRAIN: u64 = 512;

/// The bits of each device, from when the first is set; `None` of a host that has no addresses for them.
static BITS: [OnceLock<Option<&[AtomicU8]>>; MOST_DEVICES] = [const { OnceLock::new() }; MOST_DEVICES];

const LENGTH: usize = (SPAN / GRAIN / 8) as usize;

/// The bits of a device: 256 MiB of addresses, of which only touched pages are there.
fn bits(device: usize) -> Option<&'static [AtomicU8]> {
    *BITS[device].get_or_init(|| {
        // Out of the way of what [`super::placement`] asks of the host.
        let wanted = BASE - LENGTH as u64 * (device as u64 + 1);
        let map = libc::map(wanted, LENGTH as u64, libc::READ_WRITE, 0)?;
        // SAFETY: a mapping of this length that is never unmapped; zeros are valid.
        Some(unsafe { std::slice::from_raw_parts(map as *const AtomicU8, LENGTH) })
    })
}

/// Grains that a range touches, cut to the device's span.
fn grains(address: u64, bytes: u64) -> Option<(usize, std::ops::Range<u64>)> {
    let device = device_of(address)?;
    let start = address - BASE - SPAN * device as u64;
    let end = start.saturating_add(bytes).min(SPAN);
    (bytes > 0).then(|| (device, start / GRAIN..end.div_ceil(GRAIN)))
}

/// Says whether a range is known from now on.
pub fn mark(address: u64, bytes: u64, is_known: bool) {
    let Some((device, grains)) = grains(address, bytes) else {
        return;
    };
    // Where nothing was ever known there is nothing to forget.
    if !is_known && BITS[device].get().is_none() {
        return;
    }
    let Some(bits) = bits(device) else {
        return;
    };
    let one = |grain: u64| {
        let (byte, bit) = (&bits[(grain / 8) as usize], 1 << (grain % 8));
        if is_known {
            byte.fetch_or(bit, Ordering::Relaxed)
        } else {
            byte.fetch_and(!bit, Ordering::Relaxed)
        };
    };
    let whole = grains.start.next_multiple_of(8)..grains.end / 8 * 8;
    if whole.is_empty() {
        return grains.for_each(one);
    }
    (grains.start..whole.start).chain(whole.end..grains.end).for_each(one);
    let bytes = &bits[(whole.start / 8) as usize..(whole.end / 8) as usize];
    if !is_known && bytes.len() >= 1 << 14 {
        return forget(bytes);
    }
    let value = if is_known { u8::MAX } else { 0 };
    // Reading first leaves pages alone that nobody touched.
    bytes.iter().filter(|byte| byte.load(Ordering::Relaxed) != value).for_each(|byte| byte.store(value, Ordering::Relaxed));
}

/// Clears many bits: whole pages are given back instead of written.
fn forget(bytes: &[AtomicU8]) {
    const PAGE: usize = 4096;
    let start = bytes.as_ptr() as usize;
    let (first, last) = (start.next_multiple_of(PAGE), (start + bytes.len()) / PAGE * PAGE);
    for byte in bytes[..first - start].iter().chain(&bytes[last - start..]) {
        byte.store(0, Ordering::Relaxed);
    }
    // SAFETY: whole pages of the mapping, which read as zero afterwards.
    unsafe { libc::madvise(first as *mut c_void, last - first, libc::MADV_DONTNEED) };
}

/// Whether all of a range is known. What is not on a device is.
pub fn is_known(address: u64, bytes: u64) -> bool {
    let Some((device, mut grains)) = grains(address, bytes) else {
        return true;
    };
    let bits = BITS[device].get().copied().flatten();
    bits.is_some_and(|bits| grains.all(|grain| bits[(grain / 8) as usize].load(Ordering::Relaxed) >> (grain % 8) & 1 == 1))
}

/// How many bytes at its start are known.
pub fn known_start(address: u64, bytes: u64) -> u64 {
    if is_known(address, bytes) {
        return bytes;
    }
    let ends = (address / GRAIN + 1..).map(|grain| grain * GRAIN - address);
    ends.take_while(|&end| is_known(address + end - 1, 1)).last().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{BASE, GRAIN, SPAN, is_known, known_start, mark};
    use crate::memory::MOST_DEVICES;

    #[test]
    fn a_range_is_known_where_it_was_marked() {
        // The last device, which no other test uses.
        let base = BASE + SPAN * (MOST_DEVICES as u64 - 1);
        assert!(!is_known(base, 1));
        mark(base + 3 * GRAIN, 40 * GRAIN, true);
        assert!(is_known(base + 3 * GRAIN, 40 * GRAIN));
        assert!(!is_known(base + 2 * GRAIN, 2 * GRAIN));
        assert!(!is_known(base + 42 * GRAIN, GRAIN + 1));
        mark(base + 5 * GRAIN, 20 * GRAIN, false);
        assert!(is_known(base + 3 * GRAIN, 2 * GRAIN));
        assert!(!is_known(base + 5 * GRAIN, 1));
        assert_eq!(known_start(base + 3 * GRAIN + 7, 10 * GRAIN), 2 * GRAIN - 7);
        assert_eq!(known_start(base + 5 * GRAIN, GRAIN), 0);
        assert!(is_known(base + 25 * GRAIN, 18 * GRAIN));
        // A long range, of which whole pages are forgotten at once.
        mark(base, SPAN / 1024, true);
        mark(base + 7, SPAN / 1024 - 7, false);
        assert!(!is_known(base, GRAIN));
        assert!(!is_known(base + SPAN / 2048, GRAIN));
        // What is no device's address is known; a range that ends beyond the span ends there.
        assert!(is_known(64, 1 << 20));
        mark(base + SPAN - GRAIN, u64::MAX, true);
        assert!(is_known(base + SPAN - GRAIN, GRAIN));
    }
}
