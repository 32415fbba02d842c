//! Where the driver places allocations.
//!
//! It matters: PyTorch takes the free block of the lowest address among equals. Read off recorded segments of H100s and an H200: windows of
//! whole chunks of 32 MiB are opened at the top of the highest hole that holds them, so mostly at falling addresses; what a window has left
//! serves later requests, the lowest such gap first; a window goes with the last that is in it. What the context took first, for local memory
//! of its threads, comes back when a kernel needs more of it. The simulator has the same rule, without contexts (Note [Simulated placement]).

use std::collections::BTreeMap;

/// What the driver takes of the addresses at a time.
pub const CHUNK: u64 = 32 << 20;
const MIB: u64 = 1 << 20;

/// What a context leaves free of its uppermost chunk, and of the one in which its local memory ends; bytes of that.
const LEFT_ABOVE: u64 = 24 * MIB;
const LEFT: u64 = 2 * MIB;
const LOCAL: u64 = 12 * CHUNK + 30 * MIB;
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
}

#[derive(Debug)]
struct Window {
    end: u64,
    /// Bytes of it that are in use.
    taken: u64,
}

impl Placement {
    /// Of no device.
    pub const NONE: Placement = Placement { floor: 0, top: 0, windows: BTreeMap::new(), gaps: BTreeMap::new(), local: None };

    /// Nothing placed yet but what a context takes; addresses fall from `top` to `floor`, multiples of [`CHUNK`].
    pub fn between(floor: u64, top: u64) -> Self {
        let end = top - ABOVE * CHUNK;
        let local = end - LEFT - LOCAL;
        let above = Window { end: top, taken: ABOVE * CHUNK - LEFT_ABOVE };
        let windows = BTreeMap::from([(local, Window { end, taken: LOCAL }), (end, above)]);
        let gaps = BTreeMap::from([(top - LEFT_ABOVE, top), (end - LEFT, end)]);
        Placement { floor, top, windows, gaps, local: Some(local) }
    }

    /// Gives back what the context kept for local memory.
    pub fn give_local_back(&mut self) {
        if let Some(local) = self.local.take() {
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
        let mut above = self.top;
        for (&start, window) in self.windows.iter().rev() {
            if above - window.end >= bytes {
                break;
            }
            above = start;
        }
        let start = above.checked_sub(bytes).filter(|start| *start >= self.floor)?;
        self.windows.insert(start, Window { end: above, taken: 0 });
        Some((start, above))
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
            self.windows.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, LOCAL, MIB, Placement};

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
    fn what_local_memory_was_is_filled_from_below_or_falls_where_all_of_it_is_free() {
        let mut memory = filled();
        memory.give_local_back();
        for (mib, at) in [(20, 0), (34, 20), (50, 54)] {
            assert_eq!(memory.place(mib * MIB), Some(LOW + at * MIB));
        }
        assert_eq!(memory.place(LOCAL), Some(LOW - 13 * CHUNK));
        let mut memory = Placement::between(0, TOP);
        assert_eq!(memory.place(20 * MIB), Some(TOP - 24 * MIB));
        memory.give_local_back();
        assert_eq!(memory.place(24 * MIB), Some(TOP - 4 * CHUNK));
        assert_eq!(memory.place(64 * MIB), Some(TOP - 6 * CHUNK));
    }

    #[test]
    fn addresses_end() {
        let mut memory = Placement::between(LOW - 2 * CHUNK, TOP);
        assert_eq!(memory.place(3 * CHUNK), None);
        assert_eq!(memory.place(u64::MAX - MIB + 1), None);
    }
}
