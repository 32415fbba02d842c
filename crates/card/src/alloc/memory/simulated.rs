//! Memory that exists only as addresses, of any capacity.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::segment::{Address, Full, Reserved, SegmentSource, expandable_size};
use crate::units::Bytes;

/// Physical memory is handed out in these. Measured: see Note [Simulated placement].
const GRANULE: Bytes = Bytes::mib(2);
/// Address ranges are laid out in these. Measured: see Note [Simulated placement].
const WINDOW: Bytes = Bytes::mib(32);
/// Windows are placed below this address; any multiple of [`WINDOW`] would do.
const TOP: Address = Address(0x7f00_0000_0000);
/// Address space for expandable segments is reserved from here on. Measured: see the same note.
const BOTTOM: Address = Address(0x3_0200_0000);

/// A device that gives addresses and counts bytes, placed as the CUDA driver was seen to place them.
///
/// Deterministic: the same calls give the same addresses. A call costs the logarithm of the number of
/// segments. See Note [Simulated placement].
#[derive(Debug, Clone)]
pub struct SimulatedMemory {
    capacity: Bytes,
    /// What the device says it has, which address space is reserved for.
    total: Bytes,
    /// The sum of all segments and of what is mapped, in whole granules.
    taken: Bytes,
    /// Address space of expandable segments.
    reserved: BTreeMap<Address, Bytes>,
    /// The windows that hold at least one segment.
    windows: BTreeMap<Address, Window>,
    /// The gaps inside of `windows`.
    gaps: Gaps,
    /// The ranges above `lowest` that no window covers.
    holes: Gaps,
    /// Where the lowest window starts; [`TOP`] without any.
    lowest: Address,
}

#[derive(Debug, Clone, Hash)]
struct Window {
    size: Bytes,
    /// How many segments it holds; never zero.
    segments: u32,
}

impl SimulatedMemory {
    /// A device with `capacity` bytes for segments, all free.
    pub fn new(capacity: Bytes) -> SimulatedMemory {
        SimulatedMemory {
            capacity,
            total: capacity,
            taken: Bytes::ZERO,
            reserved: BTreeMap::new(),
            windows: BTreeMap::new(),
            gaps: Gaps::default(),
            holes: Gaps::default(),
            lowest: TOP,
        }
    }

    /// The same on a device of `total` bytes, of which other processes hold the rest. Expandable segments
    /// reserve address space for all of it.
    #[must_use]
    pub fn on_device_of(self, total: Bytes) -> SimulatedMemory {
        SimulatedMemory { total, ..self }
    }

    /// What can be had in all.
    pub fn capacity(&self) -> Bytes {
        self.capacity
    }

    /// What is not taken: `device_free` in PyTorch's trace of an `oom`.
    pub fn free(&self) -> Bytes {
        self.capacity.saturating_sub(self.taken)
    }

    /// Places a window at the top of the highest hole that holds it, or below all others. `None` at the
    /// end of the address space.
    fn open_window(&mut self, size: Bytes) -> Option<Address> {
        let start = if let Some((hole, length)) = self.holes.highest_fit(size) {
            self.holes.remove(hole, length);
            let rest = length - size;
            if rest > Bytes::ZERO {
                self.holes.insert(hole, rest);
            }
            hole.offset(rest)
        } else {
            let start = Address(self.lowest.0.checked_sub(size.0)?);
            if start < self.end_of_reserved() {
                return None;
            }
            self.lowest = start;
            start
        };
        self.windows.insert(start, Window { size, segments: 0 });
        Some(start)
    }

    fn end_of_reserved(&self) -> Address {
        let last = self.reserved.last_key_value();
        last.map_or(BOTTOM, |(start, size)| start.offset(*size))
    }

    fn window_around(&mut self, segment: Address) -> (Address, &mut Window) {
        let (start, window) = self
            .windows
            .range_mut(..=segment)
            .next_back()
            .expect("a segment is given back to the source it came from");
        (*start, window)
    }
}

impl SegmentSource for SimulatedMemory {
    fn take(&mut self, size: Bytes) -> Result<Address, Full> {
        let full = Full { asked: size };
        let size = size.round_up(GRANULE).ok_or(full)?;
        if size > self.free() {
            return Err(full);
        }
        let (start, length) = if let Some((start, length)) = self.gaps.lowest_fit(size) {
            self.gaps.remove(start, length);
            (start, length)
        } else {
            let length = size.round_up(WINDOW).ok_or(full)?;
            (self.open_window(length).ok_or(full)?, length)
        };
        if length > size {
            self.gaps.insert(start.offset(size), length - size);
        }
        self.window_around(start).1.segments += 1;
        self.taken += size;
        Ok(start)
    }

    fn give_back(&mut self, segment: Address, size: Bytes) {
        let size = size.round_up(GRANULE).expect("it was taken");
        self.taken -= size;
        let (start, window) = self.window_around(segment);
        window.segments -= 1;
        let Window {
            size: whole,
            segments,
        } = *window;
        let end = start.offset(whole);
        let gap = self.gaps.insert_merged(segment, size, start, end);
        if segments == 0 {
            // Nothing is left in it, so the driver drops the mapping and with it the window's bounds.
            debug_assert_eq!(gap, (start, whole), "gaps and segments tile a window");
            self.gaps.remove(start, whole);
            self.windows.remove(&start);
            let (hole, length) =
                self.holes
                    .insert_merged(start, whole, Address(0), Address(u64::MAX));
            if hole == self.lowest {
                self.holes.remove(hole, length);
                self.lowest = hole.offset(length);
            }
        }
    }

    fn give_back_all(&mut self, held: Bytes) -> bool {
        // Others may hold the rest.
        if held != self.taken || !self.reserved.is_empty() {
            return false;
        }
        *self = SimulatedMemory {
            total: self.total,
            ..SimulatedMemory::new(self.capacity)
        };
        true
    }

    /// Reserves the lowest range that is free, at a multiple of [`WINDOW`].
    fn reserve(&mut self, unit: Bytes) -> Result<Reserved, Full> {
        let size = expandable_size(self.total, unit).ok_or(Full { asked: self.total })?;
        let full = Full { asked: size };
        let mut start = BOTTOM;
        for (other, length) in &self.reserved {
            if other.0 - start.0 >= size.0 {
                break;
            }
            let end = Bytes(other.offset(*length).0);
            start = Address(end.round_up(WINDOW).ok_or(full)?.0);
        }
        if start
            .0
            .checked_add(size.0)
            .is_none_or(|end| end > self.lowest.0)
        {
            return Err(full);
        }
        self.reserved.insert(start, size);
        Ok(Reserved {
            address: start,
            size,
        })
    }

    fn map(&mut self, _at: Address, size: Bytes) -> Result<(), Full> {
        if size > self.free() {
            return Err(Full { asked: size });
        }
        self.taken += size;
        Ok(())
    }

    fn unmap(&mut self, _at: Address, size: Bytes) {
        self.taken -= size;
    }

    fn release(&mut self, reserved: Reserved) {
        self.reserved.remove(&reserved.address);
    }

    fn digest(&self) -> Option<u64> {
        let SimulatedMemory {
            capacity,
            total,
            taken,
            reserved,
            windows,
            gaps,
            holes,
            lowest,
        } = self;
        let mut digest = DefaultHasher::new();
        (capacity, total, taken, reserved, windows, lowest).hash(&mut digest);
        (&gaps.by_address, &holes.by_address).hash(&mut digest);
        Some(digest.finish())
    }
}

/// Ranges of addresses that do not overlap, found by place or by length.
#[derive(Debug, Clone, Default)]
struct Gaps {
    by_address: BTreeMap<Address, Bytes>,
    by_length: BTreeSet<(Bytes, Address)>,
}

impl Gaps {
    fn insert(&mut self, start: Address, length: Bytes) {
        self.by_address.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: Address, length: Bytes) {
        self.by_address.remove(&start);
        self.by_length.remove(&(length, start));
    }

    /// Inserts a range together with those that touch it, as long as they lie within `from..to`.
    fn insert_merged(
        &mut self,
        start: Address,
        length: Bytes,
        from: Address,
        to: Address,
    ) -> (Address, Bytes) {
        let (mut start, mut length) = (start, length);
        if let Some((below, size)) = self.by_address.range(from..start).next_back()
            && below.offset(*size) == start
        {
            let (below, size) = (*below, *size);
            self.remove(below, size);
            start = below;
            length += size;
        }
        let end = start.offset(length);
        if end < to
            && let Some(size) = self.by_address.get(&end).copied()
        {
            self.remove(end, size);
            length += size;
        }
        self.insert(start, length);
        (start, length)
    }

    /// The lowest of those that hold `size`. One step for each distinct length: tails of windows have
    /// at most 16.
    fn lowest_fit(&self, size: Bytes) -> Option<(Address, Bytes)> {
        let lowest = self.lowest_by_length(size);
        lowest.map(|(length, start)| (start, length)).min()
    }

    /// The highest of those that hold `size`.
    fn highest_fit(&self, size: Bytes) -> Option<(Address, Bytes)> {
        let highest = self.lowest_by_length(size).filter_map(|(length, start)| {
            let same = (length, start)..=(length, Address(u64::MAX));
            self.by_length.range(same).next_back()
        });
        highest.map(|(length, start)| (*start, *length)).max()
    }

    /// The lowest of each length from `size` on.
    fn lowest_by_length(&self, size: Bytes) -> impl Iterator<Item = (Bytes, Address)> + '_ {
        let first = |from| self.by_length.range((from, Address(0))..).next().copied();
        std::iter::successors(first(size), move |(length, _)| first(Bytes(length.0 + 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(memory: &mut SimulatedMemory, mib: u64) -> u64 {
        (TOP.0 - memory.take(Bytes::mib(mib)).unwrap().0) >> 20
    }

    #[test]
    fn windows_descend_and_their_tails_fill_from_the_lowest() {
        let mut memory = SimulatedMemory::new(Bytes::gib(1));

        let below_top = [48, 20, 12, 2, 12].map(|mib| place(&mut memory, mib));

        // 48 MiB opens 64, 20 opens 32; 12 fits only behind the 20, as does the 2 behind the 48.
        assert_eq!(below_top, [64, 96, 76, 16, 14]);
    }

    #[test]
    fn an_empty_window_goes_and_the_highest_hole_is_used_again() {
        let mut memory = SimulatedMemory::new(Bytes::gib(1));
        let first = memory.take(Bytes::mib(60)).unwrap();
        let second = memory.take(Bytes::mib(60)).unwrap();
        place(&mut memory, 60);

        memory.give_back(first, Bytes::mib(60));
        memory.give_back(second, Bytes::mib(60));

        assert_eq!(place(&mut memory, 128), 128);
        assert_eq!(memory.free(), Bytes::mib(1024 - 60 - 128));
    }

    #[test]
    fn giving_all_back_at_once_leaves_what_one_after_the_other_does() {
        let mut memory = SimulatedMemory::new(Bytes::gib(1));
        let fresh = memory.digest();
        let sizes = [60, 3, 20, 60, 2].map(Bytes::mib);
        let taken = sizes.map(|size| (memory.take(size).unwrap(), size));
        let mut at_once = memory.clone();
        for (segment, size) in taken {
            memory.give_back(segment, size);
        }

        assert!(!at_once.give_back_all(Bytes::mib(100)), "others hold some");
        assert!(at_once.give_back_all(Bytes(145 << 20) + Bytes::MIB));

        assert_eq!(memory.digest(), fresh);
        assert_eq!(at_once.digest(), fresh);
    }

    #[test]
    fn capacity_counts_whole_granules() {
        let mut memory = SimulatedMemory::new(Bytes::mib(5));

        assert!(memory.take(Bytes::mib(3)).is_ok());

        assert_eq!(memory.free(), Bytes::MIB);
        assert_eq!(memory.take(Bytes(1)), Err(Full { asked: Bytes(1) }));
    }
}
