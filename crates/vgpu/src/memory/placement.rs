//! Where the driver places allocations.
//!
//! It matters: PyTorch takes the free block of the lowest address among equals. Read off recorded segments of an H200, and held on an H100:
//! chunks of 32 MiB are handed out at falling addresses; what fits into a chunk's unused end goes there, the gap that was made last first; a
//! request of 32 MiB or more takes whole chunks, and its unused end becomes a gap.

/// What the driver takes of the addresses at a time.
pub const CHUNK: u64 = 32 << 20;

/// The addresses of one device.
#[derive(Debug)]
pub struct Placement {
    /// The lowest that was handed out, and what none is below.
    low: u64,
    floor: u64,
    /// Free ranges above it, the one made last at the end.
    gaps: Vec<Gap>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    start: u64,
    bytes: u64,
}

impl Gap {
    const fn end(self) -> u64 {
        self.start + self.bytes
    }
}

impl Placement {
    /// Nothing placed yet; addresses fall from `top` to `floor`, multiples of [`CHUNK`].
    pub const fn between(floor: u64, top: u64) -> Self {
        Placement { low: top, floor, gaps: Vec::new() }
    }

    /// Places `bytes`, a multiple of 2 MiB; `None` where there are no addresses left in one piece.
    pub fn place(&mut self, bytes: u64) -> Option<u64> {
        let fits = |gap: &Gap| gap.bytes >= bytes && (bytes < CHUNK || gap.start.is_multiple_of(CHUNK));
        if let Some(last) = self.gaps.iter().rposition(fits) {
            let gap = &mut self.gaps[last];
            let start = gap.start;
            gap.start += bytes;
            gap.bytes -= bytes;
            if gap.bytes == 0 {
                self.gaps.remove(last);
            }
            return Some(start);
        }
        let whole = bytes.checked_next_multiple_of(CHUNK)?;
        let start = self.low.checked_sub(whole)? / CHUNK * CHUNK;
        if start < self.floor {
            return None;
        }
        let end = start + whole;
        if self.low > end {
            self.free(end, self.low - end);
        }
        self.low = start;
        if whole > bytes {
            self.gaps.push(Gap { start: start + bytes, bytes: whole - bytes });
        }
        Some(start)
    }

    /// Takes a range back: it joins the free ones beside it, and what is lowest is as if it had never been taken.
    pub fn free(&mut self, start: u64, bytes: u64) {
        let mut freed = Gap { start, bytes };
        while let Some(beside) = self.gaps.iter().position(|gap| gap.end() == freed.start || freed.end() == gap.start) {
            let gap = self.gaps.remove(beside);
            freed = Gap { start: gap.start.min(freed.start), bytes: gap.bytes + freed.bytes };
        }
        if freed.start == self.low {
            self.low = freed.end();
        } else {
            self.gaps.push(freed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, Placement};

    const MIB: u64 = 1 << 20;
    const TOP: u64 = 64 * CHUNK;

    #[test]
    fn chunks_fall_and_their_ends_are_filled() {
        let mut memory = Placement::between(0, TOP);
        assert_eq!(memory.place(20 * MIB), Some(TOP - CHUNK));
        assert_eq!(memory.place(2 * MIB), Some(TOP - CHUNK + 20 * MIB));
        assert_eq!(memory.place(20 * MIB), Some(TOP - 2 * CHUNK));
        // The gap made last comes first.
        assert_eq!(memory.place(2 * MIB), Some(TOP - 2 * CHUNK + 20 * MIB));
    }

    #[test]
    fn all_freed_is_as_if_never_taken() {
        let mut memory = Placement::between(0, TOP);
        let taken: Vec<(u64, u64)> = [20, 2, 64, 34, 2].map(|mib| (memory.place(mib * MIB).unwrap(), mib * MIB)).to_vec();
        for (start, bytes) in taken {
            memory.free(start, bytes);
        }
        // All but the first chunk's gaps joined; what comes next is placed where the first was.
        assert_eq!(memory.place(20 * MIB), Some(TOP - CHUNK));
    }

    #[test]
    fn what_is_whole_starts_at_a_chunk() {
        let mut memory = Placement::between(0, TOP);
        assert_eq!(memory.place(34 * MIB), Some(TOP - 2 * CHUNK));
        assert_eq!(memory.place(CHUNK), Some(TOP - 3 * CHUNK));
        assert_eq!(memory.place(30 * MIB), Some(TOP - 2 * CHUNK + 34 * MIB));
    }

    #[test]
    fn addresses_end() {
        let mut memory = Placement::between(TOP - 2 * CHUNK, TOP);
        assert_eq!(memory.place(3 * CHUNK), None);
        assert_eq!(memory.place(u64::MAX - MIB + 1), None);
        assert_eq!(memory.place(2 * CHUNK), Some(TOP - 2 * CHUNK));
        assert_eq!(memory.place(2 * MIB), None);
    }
}
