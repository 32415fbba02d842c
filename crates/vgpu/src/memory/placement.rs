//! Where the driver places allocations.
//!
//! It matters: PyTorch takes the free block of the lowest address among equals. Read off recorded segments of H100s and an H200: chunks of 32 MiB
//! are handed out at falling addresses; what fits into a chunk's unused end goes there, the gap that was made last first; a request of 32 MiB or
//! more takes whole chunks, and its unused end becomes a gap. What the context took first, for local memory of its threads, comes back when a
//! kernel needs more of it, and is then filled from its lowest address on.

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
    /// Where addresses fall, and to where, the highest first.
    falling: Vec<Falling>,
    /// Free ranges, the one made last at the end.
    gaps: Vec<Gap>,
    /// What the context keeps for local memory, as long as it does.
    local: Option<Gap>,
}

#[derive(Debug, Clone, Copy)]
struct Falling {
    low: u64,
    floor: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    start: u64,
    bytes: u64,
    /// Whether 32 MiB or more may begin within a chunk.
    is_dense: bool,
}

impl Gap {
    const fn of(start: u64, bytes: u64) -> Gap {
        Gap { start, bytes, is_dense: false }
    }

    const fn end(self) -> u64 {
        self.start + self.bytes
    }
}

impl Placement {
    /// Of no device.
    pub const NONE: Placement = Placement { falling: Vec::new(), gaps: Vec::new(), local: None };

    /// Nothing placed yet but what a context takes; addresses fall from `top` to `floor`, multiples of [`CHUNK`].
    pub fn between(floor: u64, top: u64) -> Self {
        let end = top - ABOVE * CHUNK;
        let local = Gap { start: end - LEFT - LOCAL, bytes: LOCAL, is_dense: true };
        let gaps = vec![Gap::of(top - LEFT_ABOVE, LEFT_ABOVE), Gap::of(end - LEFT, LEFT)];
        Placement { falling: vec![Falling { low: local.start, floor }], gaps, local: Some(local) }
    }

    /// Gives back what the context kept for local memory. Nobody having taken the end of its last chunk, addresses fall through all of it.
    pub fn give_local_back(&mut self) {
        let Some(local) = self.local.take() else {
            return;
        };
        let rest = Gap::of(local.end(), LEFT);
        if let Some(at) = self.gaps.iter().position(|gap| *gap == rest) {
            self.gaps.remove(at);
            self.falling.insert(0, Falling { low: rest.end(), floor: local.start });
        } else {
            // What is left of chunks is filled before it.
            self.gaps.insert(0, local);
        }
    }

    /// Places `bytes`, a multiple of 2 MiB; `None` where there are no addresses left in one piece.
    pub fn place(&mut self, bytes: u64) -> Option<u64> {
        let fits = |gap: &Gap| gap.bytes >= bytes && (bytes < CHUNK || gap.is_dense || gap.start.is_multiple_of(CHUNK));
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
        let has_room = |falling: &&mut Falling| falling.low - falling.floor >= whole;
        let falling = self.falling.iter_mut().find(has_room)?;
        falling.low -= whole;
        let start = falling.low;
        if whole > bytes {
            self.gaps.push(Gap::of(start + bytes, whole - bytes));
        }
        Some(start)
    }

    /// Takes a range back: it joins the free ones beside it, and what is lowest is as if it had never been taken.
    pub fn free(&mut self, start: u64, bytes: u64) {
        let mut freed = Gap::of(start, bytes);
        while let Some(beside) = self.gaps.iter().position(|gap| gap.end() == freed.start || freed.end() == gap.start) {
            let gap = self.gaps.remove(beside);
            freed = Gap { start: gap.start.min(freed.start), bytes: gap.bytes + freed.bytes, is_dense: gap.is_dense || freed.is_dense };
        }
        match self.falling.iter_mut().find(|falling| falling.low == freed.start) {
            Some(falling) => falling.low = freed.end(),
            None => self.gaps.push(freed),
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
    fn chunks_fall_and_their_ends_are_filled() {
        let mut memory = filled();
        assert_eq!(memory.place(20 * MIB), Some(LOW - CHUNK));
        assert_eq!(memory.place(2 * MIB), Some(LOW - CHUNK + 20 * MIB));
        assert_eq!(memory.place(20 * MIB), Some(LOW - 2 * CHUNK));
        // The gap made last comes first.
        assert_eq!(memory.place(2 * MIB), Some(LOW - 2 * CHUNK + 20 * MIB));
    }

    #[test]
    fn all_freed_is_as_if_never_taken() {
        let mut memory = filled();
        let taken: Vec<(u64, u64)> = [20, 2, 64, 34, 2].map(|mib| (memory.place(mib * MIB).unwrap(), mib * MIB)).to_vec();
        for (start, bytes) in taken {
            memory.free(start, bytes);
        }
        // All but the first chunk's gaps joined; what comes next is placed where the first was.
        assert_eq!(memory.place(20 * MIB), Some(LOW - CHUNK));
    }

    #[test]
    fn what_is_whole_starts_at_a_chunk() {
        let mut memory = filled();
        assert_eq!(memory.place(34 * MIB), Some(LOW - 2 * CHUNK));
        assert_eq!(memory.place(CHUNK), Some(LOW - 3 * CHUNK));
        assert_eq!(memory.place(30 * MIB), Some(LOW - 2 * CHUNK + 34 * MIB));
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
        assert_eq!(memory.place(24 * MIB), Some(LOW + 12 * CHUNK));
        assert_eq!(memory.place(64 * MIB), Some(LOW + 10 * CHUNK));
    }

    #[test]
    fn addresses_end() {
        let mut memory = Placement::between(LOW - 2 * CHUNK, TOP);
        assert_eq!(memory.place(3 * CHUNK), None);
        assert_eq!(memory.place(u64::MAX - MIB + 1), None);
        assert_eq!(memory.place(2 * CHUNK), Some(LOW - 2 * CHUNK));
        assert_eq!(memory.place(26 * MIB), None);
    }
}
