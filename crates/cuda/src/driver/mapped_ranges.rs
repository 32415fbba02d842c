//! Which addresses are memory of the card that this process holds.
//!
//! # Note [Addresses]
//!
//! Host and card share one space of addresses, and copies go to whichever of them an address belongs to. Where the
//! card also reads and writes ordinary memory of a process (Grace CPUs, or a kernel with heterogeneous memory
//! management), so do kernels. A wrong address is then not an error that the driver reports: it is any byte of
//! this program. So nothing is copied or launched by an address alone. All memory of the card is taken by
//! [`crate::CudaMemory`] or as scratch; both enter it here, for as long as they hold it, and every range
//! that comes from outside is looked up first.

use std::collections::BTreeMap;

/// Ranges of device memory that this process holds.
#[derive(Debug, Default)]
pub(crate) struct MappedRanges {
    /// The end of each range, by its start. They neither overlap nor touch: the pieces of an expandable segment are one
    /// range, however many they are.
    ends: BTreeMap<u64, u64>,
}

impl MappedRanges {
    /// Enters memory that the driver gave.
    pub(crate) fn enter(&mut self, start: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let end = start.saturating_add(bytes);
        let end = self.ends.remove(&end).unwrap_or(end);
        match self.ends.range_mut(..start).next_back() {
            Some((_, before)) if *before == start => *before = end,
            Some(_) | None => {
                self.ends.insert(start, end);
            }
        }
    }

    /// Takes out whatever lies in a range, before it goes back to the driver.
    pub(crate) fn leave(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes);
        let touched: Vec<(u64, u64)> = self
            .ends
            .range(..end)
            .rev()
            .map(|(from, to)| (*from, *to))
            .take_while(|(_, to)| *to > start)
            .collect();
        for (from, to) in touched {
            self.ends.remove(&from);
            if from < start {
                self.ends.insert(from, start);
            }
            if to > end {
                self.ends.insert(end, to);
            }
        }
    }

    /// Whether all of this is held.
    pub(crate) fn contains(&self, start: u64, bytes: u64) -> bool {
        let around = self.ends.range(..=start).next_back();
        let end = start.checked_add(bytes);
        around.zip(end).is_some_and(|((_, held), end)| end <= *held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_held_whole_or_not() {
        let mut held = MappedRanges::default();
        held.enter(0x1000, 0x100);

        for (start, bytes) in [(0x1000, 0x100), (0x1000, 1), (0x10ff, 1), (0x1080, 0x80)] {
            assert!(held.contains(start, bytes), "{start:#x} {bytes:#x}");
        }
        for (start, bytes) in [
            (0xfff, 2),
            (0x10ff, 2),
            (0x1100, 1),
            (0, 1),
            (0, 0),
            (u64::MAX, 2),
            (0x1080, u64::MAX),
        ] {
            assert!(!held.contains(start, bytes), "{start:#x} {bytes:#x}");
        }
    }

    #[test]
    fn pieces_that_touch_are_one_range() {
        let mut held = MappedRanges::default();
        held.enter(0x1000, 0x100);
        held.enter(0x1100, 0x100);
        held.enter(0x1300, 0x100);

        assert!(held.contains(0x1010, 0x1f0));
        assert!(!held.contains(0x1010, 0x200), "there is a gap");

        held.leave(0x1100, 0x300);
        assert!(held.contains(0x1000, 0x100));
        assert!(!held.contains(0x1010, 0x100) && !held.contains(0x1300, 1));
    }

    #[test]
    fn what_went_back_is_held_no_more() {
        let mut held = MappedRanges::default();
        held.enter(0x1000, 0x100);

        held.leave(0x1000, 0x100);

        assert!(!held.contains(0x1000, 1));
    }
}
