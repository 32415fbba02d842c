//! What copies and sets do to the bytes.

use std::cell::Cell;

use crate::python;
use crate::status::{INVALID_VALUE, Status, check};

use super::{discard, is_device, is_readable, known};

/// Larger copies are not carried out: nothing would read them, and a model's weights stay out of the host's memory.
pub const CARRIED: u64 = 1 << 20;
/// The same of what is known on a device, integers and pickled objects for the most part.
pub const CARRIED_WITHIN: u64 = 4 << 20;

/// A read of at most so many bytes may decide what a script does next.
const DECISION: u64 = 64;

const PAGE: u64 = 4096;

thread_local! {
    /// What the next small read from a device gives, instead of what lies there ([`expect`]).
    static EXPECTED: Cell<Option<i64>> = const { Cell::new(None) };
}

/// Says what the next small read from a device by this thread gives: a count that a kernel would have left there. `None` takes it back.
pub fn expect(count: Option<i64>) {
    EXPECTED.set(count);
}

/// Copies, as far as anybody could read it.
/// Safety: what is not a device's must be memory of that many bytes.
pub unsafe fn copy(to: u64, from: u64, bytes: u64) -> Result<(), Status> {
    if bytes == 0 {
        return Ok(());
    }
    let (is_to, is_from) = (is_device(to), is_device(from));
    check(is_memory(to, bytes) && is_memory(from, bytes), INVALID_VALUE)?;
    if to == from {
        return Ok(());
    }
    let most = if is_to && is_from && known::is_known(from, bytes) { CARRIED_WITHIN } else { CARRIED };
    if (is_to || is_from) && bytes > most {
        if is_to {
            known::mark(to, bytes, false);
        }
        return Ok(());
    }
    if is_from
        && !is_to
        && bytes <= 8
        && let Some(count) = EXPECTED.take()
    {
        std::ptr::copy_nonoverlapping(count.to_le_bytes().as_ptr(), to as *mut u8, bytes as usize);
        return Ok(());
    }
    if is_to {
        known::mark(to, bytes, !is_from || known::is_known(from, bytes));
    } else if is_from && bytes <= DECISION && !known::is_known(from, bytes) {
        python::doubt(bytes);
    }
    std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize);
    if is_from && !is_to && bytes > DECISION {
        clear_unknown(to, from, bytes);
    }
    Ok(())
}

/// What nobody computed reads as zero on the host, not as what its memory held for another tensor.
unsafe fn clear_unknown(to: u64, from: u64, bytes: u64) {
    let end = from + bytes;
    let mut start = from;
    while start < end {
        let next = (start + 1).next_multiple_of(known::GRAIN).min(end);
        if !known::is_known(start, next - start) {
            std::ptr::write_bytes((to + (start - from)) as *mut u8, 0, (next - start) as usize);
        }
        start = next;
    }
}

/// Copies `height` rows.
/// Safety: as of [`copy`], for each of them.
pub unsafe fn copy_rows(to: u64, to_pitch: u64, from: u64, from_pitch: u64, width: u64, height: u64) -> Result<(), Status> {
    let all = extent(to, to_pitch, width, height)?;
    extent(from, from_pitch, width, height)?;
    if all == 0 {
        return Ok(());
    }
    if (is_device(to) || is_device(from)) && width * height > CARRIED {
        known::mark(to, all, false);
        return Ok(());
    }
    (0..height).try_for_each(|row| copy(to + to_pitch * row, from + from_pitch * row, width))
}

/// How far `height` rows reach; an error where they overlap, or leave the device that they begin on, or all memory.
fn extent(to: u64, pitch: u64, width: u64, height: u64) -> Result<u64, Status> {
    if width == 0 || height == 0 {
        return Ok(0);
    }
    let all = pitch.checked_mul(height - 1).and_then(|rows| rows.checked_add(width)).ok_or(INVALID_VALUE)?;
    let is_apart = (width <= pitch || height == 1) && width.checked_mul(height).is_some();
    check(is_apart && is_memory(to, all), INVALID_VALUE)?;
    Ok(all)
}

/// Whether a range begins somewhere and ends, and on a device may be read.
pub fn is_memory(start: u64, bytes: u64) -> bool {
    if is_device(start) { is_readable(start, bytes) } else { start != 0 && start.checked_add(bytes).is_some() }
}

/// Fills `height` rows with a pattern.
/// Safety: as of [`fill`], for each of them.
pub unsafe fn fill_rows(to: u64, pitch: u64, pattern: &[u8], width: u64, height: u64) -> Result<(), Status> {
    let all = extent(to, pitch, width, height)?;
    if pitch == width || all == 0 {
        return fill(to, pattern, all);
    }
    if is_device(to) && width * height > CARRIED {
        known::mark(to, all, false);
        return Ok(());
    }
    (0..height).try_for_each(|row| fill(to + pitch * row, pattern, width))
}

/// Fills with a pattern of 1, 2 or 4 bytes.
/// Safety: what is not a device's must be memory of that many bytes.
pub unsafe fn fill(to: u64, pattern: &[u8], bytes: u64) -> Result<(), Status> {
    if bytes == 0 {
        return Ok(());
    }
    let is_there = is_device(to);
    check(is_memory(to, bytes), INVALID_VALUE)?;
    let is_zero = pattern.iter().all(|&byte| byte == 0);
    if is_there {
        known::mark(to, bytes, bytes <= CARRIED || is_zero);
    }
    if is_there && bytes > CARRIED {
        let (first, last) = (to.next_multiple_of(PAGE), (to + bytes) / PAGE * PAGE);
        if is_zero {
            std::ptr::write_bytes(to as *mut u8, 0, (first - to) as usize);
            discard(first, last - first);
            std::ptr::write_bytes(last as *mut u8, 0, (to + bytes - last) as usize);
        }
        return Ok(());
    }
    if let [byte] = pattern {
        std::ptr::write_bytes(to as *mut u8, *byte, bytes as usize);
    } else {
        for (offset, byte) in (0..bytes).zip(pattern.iter().cycle()) {
            *((to + offset) as *mut u8) = *byte;
        }
    }
    Ok(())
}
