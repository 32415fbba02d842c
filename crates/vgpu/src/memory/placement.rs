//! Where the driver places allocations.
//!
//! It matters: PyTorch takes the free block of the lowest address among equals. Read off recorded segments of H100s and H200s, and off the maps of
//! a process: windows of whole chunks of 32 MiB are opened among the addresses of the host, where its kernel has room for the window and
//! for aligning it, so mostly at falling addresses and where memory of the host was given back; the same kernel is asked here. What a window
//! has left serves later requests, the lowest such gap first; a window goes with the last that is in it. What the context took first, for
//! local memory of its threads, moves when a kernel needs more of it. The simulator has falling addresses only (Note [Simulated placement]).

use std::collections::BTreeMap;
use std::ffi::c_void;

use crate::libc;

/// What the driver takes of the addresses at a time.
pub const CHUNK: u64 = 32 << 20;
const MIB: u64 = 1 << 20;

/// What a context leaves free of its uppermost chunk, and of the one in which its local memory ends; bytes of that.
const LEFT_ABOVE: u64 = 24 * MIB;
const LEFT: u64 = 2 * MIB;
const LOCAL: u64 = 12 * CHUNK + 30 * MIB;
/// Local memory once it grew.
const GROWN: u64 = 15 * CHUNK + 26 * MIB;
/// Chunks above the end of local memory.
const ABOVE: u64 = 3;

/// The addresses of one device.
#[derive(Debug)]
pub struct Placement {
    floor: u64,
    top: u64,
    /// By where they begin.
    windows: BTreeMap<u64, Window>,
    /// What is free of windows: where it begins and ends.
    gaps: BTreeMap<u64, u64>,
    /// Where the context keeps local memory, as long as it does.
    local: Option<u64>,
    /// What is added to the host's addresses, where windows are opened among those.
    shift: Option<u64>,
}

#[derive(Debug)]
struct Window {
    end: u64,
    /// Bytes of it that are in use.
    taken: u64,
    /// Whether the same addresses of the host are reserved.
    is_of_host: bool,
}

impl Placement {
    /// Of no device.
    pub const NONE: Placement = Placement { floor: 0, top: 0, windows: BTreeMap::new(), gaps: BTreeMap::new(), local: None, shift: None };

    /// Nothing placed yet but what a context takes; addresses fall from `top` to `floor`, multiples of [`CHUNK`].
    pub fn between(floor: u64, top: u64) -> Self {
        let end = top - ABOVE * CHUNK;
        let local = end - LEFT - LOCAL;
        let above = Window { end: top, taken: ABOVE * CHUNK - LEFT_ABOVE, is_of_host: false };
        let windows = BTreeMap::from([(local, Window { end, taken: LOCAL, is_of_host: false }), (end, above)]);
        let gaps = BTreeMap::from([(top - LEFT_ABOVE, top), (end - LEFT, end)]);
        Placement { floor, top, windows, gaps, local: Some(local), shift: None }
    }

    /// The same, where the host's kernel says which addresses are free.
    pub fn of_host(floor: u64, top: u64) -> Self {
        let anchor = top - (top - floor) / 4;
        let mut placement = Placement::between(floor, anchor);
        let bytes = anchor - placement.windows.keys().next().copied().unwrap_or(anchor);
        if let Some(at) = reserve(bytes) {
            placement.shift = Some((anchor - bytes).wrapping_sub(at));
            placement.top = top;
            placement.windows.values_mut().for_each(|window| window.is_of_host = true);
        }
        placement
    }

    /// Takes more local memory, and gives back what the context kept for it.
    pub fn grow_local(&mut self) {
        if let Some(local) = self.local.take() {
            self.place(GROWN);
            self.free(local, LOCAL);
        }
    }

    /// Places `bytes`, a multiple of 2 MiB; `None` where there are no addresses left in one piece.
    pub fn place(&mut self, bytes: u64) -> Option<u64> {
        let gap = self.gaps.iter().find(|(start, end)| *end - *start >= bytes).map(|(&start, &end)| (start, end));
        let (start, end) = match gap {
            Some(gap) => gap,
            None => self.open(bytes.checked_next_multiple_of(CHUNK)?)?,
        };
        self.gaps.remove(&start);
        if end > start + bytes {
            self.gaps.insert(start + bytes, end);
        }
        self.around(start).1.taken += bytes;
        Some(start)
    }

    /// Opens a window.
    fn open(&mut self, bytes: u64) -> Option<(u64, u64)> {
        if let Some(start) = self.open_of_host(bytes) {
            self.windows.insert(start, Window { end: start + bytes, taken: 0, is_of_host: true });
            return Some((start, start + bytes));
        }
        let mut above = self.top;
        for (&start, window) in self.windows.iter().rev() {
            if above - window.end >= bytes {
                break;
            }
            above = start;
        }
        let start = above.checked_sub(bytes).filter(|start| *start >= self.floor)?;
        self.windows.insert(start, Window { end: above, taken: 0, is_of_host: false });
        Some((start, above))
    }

    /// Where the host's kernel would open it.
    fn open_of_host(&mut self, bytes: u64) -> Option<u64> {
        let shift = self.shift?;
        let at = reserve(bytes)?;
        let start = at.wrapping_add(shift);
        let end = start.wrapping_add(bytes);
        let is_free = start >= self.floor
            && start < end
            && end <= self.top
            && self.windows.range(..end).next_back().is_none_or(|(_, window)| window.end <= start);
        if !is_free {
            give_back(at, bytes);
        }
        is_free.then_some(start)
    }

    fn around(&mut self, address: u64) -> (u64, &mut Window) {
        let (&start, window) = self.windows.range_mut(..=address).next_back().expect("it was placed in a window");
        (start, window)
    }

    /// Takes a range back: it joins the gaps beside it.
    pub fn free(&mut self, start: u64, bytes: u64) {
        let (first, window) = self.around(start);
        window.taken -= bytes;
        let (is_empty, last) = (window.taken == 0, window.end);
        let (mut low, mut high) = (start, start + bytes);
        if let Some((&before, &end)) = self.gaps.range(first..start).next_back()
            && end == start
        {
            low = before;
        }
        if high < last {
            high = self.gaps.remove(&high).unwrap_or(high);
        }
        self.gaps.insert(low, high);
        if is_empty {
            self.gaps.remove(&first);
            if self.windows.remove(&first).is_some_and(|window| window.is_of_host) {
                give_back(first.wrapping_sub(self.shift.unwrap_or(0)), last - first);
            }
        }
    }
}

/// Reserves whole chunks of the host's addresses, as the driver does.
fn reserve(bytes: u64) -> Option<u64> {
    let room = bytes.checked_add(CHUNK)?;
    // Nobody may touch it; what lies beside the chunks goes back.
    let low = libc::map(0, room, libc::PROT_NONE, 0)?;
    let high = low + room;
    let start = (high - bytes) / CHUNK * CHUNK;
    give_back(low, start - low);
    give_back(start + bytes, high - start - bytes);
    Some(start)
}

fn give_back(at: u64, bytes: u64) {
    if bytes > 0 {
        // SAFETY: reserved by `reserve`.
        unsafe { libc::munmap(at as *mut c_void, bytes as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, LOCAL, MIB, Placement, reserve};

    const TOP: u64 = 64 * CHUNK;
    /// Where local memory begins, below which addresses fall.
    const LOW: u64 = TOP - 16 * CHUNK;

    /// A placement whose context left nothing beside local memory.
    fn filled() -> Placement {
        let mut memory = Placement::between(0, TOP);
        assert_eq!(memory.place(2 * MIB), Some(LOW + LOCAL));
        assert_eq!(memory.place(24 * MIB), Some(TOP - 24 * MIB));
        memory
    }

    #[test]
    fn windows_fall_and_their_ends_are_filled() {
        let mut memory = filled();
        assert_eq!(memory.place(20 * MIB), Some(LOW - CHUNK));
        assert_eq!(memory.place(20 * MIB), Some(LOW - 2 * CHUNK));
        // The lowest gap comes first.
        assert_eq!(memory.place(2 * MIB), Some(LOW - 2 * CHUNK + 20 * MIB));
        assert_eq!(memory.place(12 * MIB), Some(LOW - CHUNK + 20 * MIB));
    }

    #[test]
    fn all_freed_is_as_if_never_taken() {
        let mut memory = filled();
        let taken: Vec<(u64, u64)> = [20, 2, 64, 34, 2].map(|mib| (memory.place(mib * MIB).unwrap(), mib * MIB)).to_vec();
        for (start, bytes) in taken {
            memory.free(start, bytes);
        }
        assert_eq!(memory.place(20 * MIB), Some(LOW - CHUNK));
    }

    #[test]
    fn a_hole_is_filled_from_its_top() {
        let mut memory = filled();
        assert_eq!(memory.place(34 * MIB), Some(LOW - 2 * CHUNK));
        assert_eq!(memory.place(CHUNK), Some(LOW - 3 * CHUNK));
        memory.free(LOW - 2 * CHUNK, 34 * MIB);
        assert_eq!(memory.place(CHUNK), Some(LOW - CHUNK));
    }

    #[test]
    fn local_memory_moves_when_it_grows_and_what_it_was_is_filled_from_below() {
        let mut memory = filled();
        memory.grow_local();
        assert_eq!(memory.place(2 * MIB), Some(LOW - 6 * MIB));
        for (mib, at) in [(20, 0), (34, 20), (50, 54)] {
            assert_eq!(memory.place(mib * MIB), Some(LOW + at * MIB));
        }
        assert_eq!(memory.place(LOCAL), Some(LOW - 29 * CHUNK));
    }

    #[test]
    fn windows_lie_where_the_host_has_nothing() {
        let mut memory = Placement::of_host(0, 4096 * CHUNK);
        assert_eq!(memory.place(24 * MIB), Some(3072 * CHUNK - 24 * MIB));
        let own = reserve(2 * CHUNK).unwrap().wrapping_add(memory.shift.unwrap());
        for _ in 0..4 {
            let window = memory.place(2 * CHUNK).unwrap();
            assert!(window.is_multiple_of(CHUNK) && window.abs_diff(own) >= 2 * CHUNK, "{window:x} {own:x}");
        }
    }

    #[test]
    fn addresses_end() {
        let mut memory = Placement::between(LOW - 2 * CHUNK, TOP);
        assert_eq!(memory.place(3 * CHUNK), None);
        assert_eq!(memory.place(u64::MAX - MIB + 1), None);
    }
}
