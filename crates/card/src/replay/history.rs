//! Memory over time.

use crate::units::Bytes;

/// Memory right after an entry of the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryPoint {
    /// Entries of the recording up to here, this one included.
    pub entries: usize,
    /// What the program's blocks hold.
    pub allocated: Bytes,
    /// What is held from the driver.
    pub reserved: Bytes,
}

/// Follows memory from request to request.
#[derive(Debug, Clone, Default)]
pub(super) struct MemoryHistory {
    moments: Vec<MemoryPoint>,
}

impl MemoryHistory {
    pub(super) fn start(&mut self, allocated: Bytes, reserved: Bytes) {
        self.moments.push(MemoryPoint {
            entries: 0,
            allocated,
            reserved,
        });
    }

    pub(super) fn note(&mut self, entry: usize, allocated: Bytes, reserved: Bytes) {
        self.moments.push(MemoryPoint {
            entries: entry + 1,
            allocated,
            reserved,
        });
    }

    /// When reserved memory first was at its peak: nothing cached could serve that request.
    pub(super) fn most_reserved(&self) -> MemoryPoint {
        self.first_most(|moment| moment.reserved)
    }

    /// When allocated memory first was at its peak.
    pub(super) fn most_allocated(&self) -> MemoryPoint {
        self.first_most(|moment| moment.allocated)
    }

    fn first_most(&self, size: impl Fn(&MemoryPoint) -> Bytes) -> MemoryPoint {
        let latest_first = self.moments.iter().rev();
        latest_first
            .max_by_key(|moment| size(moment))
            .copied()
            .unwrap_or_default()
    }

    /// At most about `most` moments: of each stretch, the one with most allocated; the first, the last
    /// and both peaks among them.
    pub(super) fn thinned(&self, most: usize) -> Vec<MemoryPoint> {
        let stretch = self.moments.len().div_ceil(most).max(1);
        let mut kept: Vec<MemoryPoint> = self
            .moments
            .chunks(stretch)
            .filter_map(|part| part.iter().rev().max_by_key(|moment| moment.allocated))
            .copied()
            .collect();
        kept.extend(self.moments.first());
        kept.extend(self.moments.last());
        if !self.moments.is_empty() {
            kept.push(self.most_reserved());
            kept.push(self.most_allocated());
        }
        kept.sort_unstable_by_key(|moment| moment.entries);
        kept.dedup();
        kept
    }
}
