//! Memory over time.

use super::report::ReplayMoment;
use crate::units::Bytes;

/// Follows memory from request to request.
#[derive(Debug, Clone, Default)]
pub(super) struct MemoryHistory {
    moments: Vec<ReplayMoment>,
}

impl MemoryHistory {
    /// Takes in memory after so many entries of the recording.
    pub(super) fn note(&mut self, event: usize, (allocated, reserved): (Bytes, Bytes)) {
        self.moments.push(ReplayMoment {
            event,
            allocated_bytes: allocated.0,
            reserved_bytes: reserved.0,
        });
    }

    /// When reserved memory first was at its peak: nothing cached could serve that request.
    pub(super) fn most_reserved(&self) -> ReplayMoment {
        self.first_most(|moment| moment.reserved_bytes)
    }

    /// When allocated memory first was at its peak.
    pub(super) fn most_allocated(&self) -> ReplayMoment {
        self.first_most(|moment| moment.allocated_bytes)
    }

    fn first_most(&self, size: impl Fn(&ReplayMoment) -> u64) -> ReplayMoment {
        let latest_first = self.moments.iter().rev();
        latest_first
            .max_by_key(|moment| size(moment))
            .copied()
            .unwrap_or_default()
    }

    /// At most about `most` moments: of each stretch, the one with most allocated; the first, the last
    /// and both peaks among them.
    pub(super) fn thinned(&self, most: usize) -> Vec<ReplayMoment> {
        let stretch = self.moments.len().div_ceil(most).max(1);
        let mut kept: Vec<ReplayMoment> = self
            .moments
            .chunks(stretch)
            .filter_map(|part| {
                part.iter()
                    .rev()
                    .max_by_key(|moment| moment.allocated_bytes)
            })
            .copied()
            .collect();
        kept.extend(self.moments.first());
        kept.extend(self.moments.last());
        if !self.moments.is_empty() {
            kept.push(self.most_reserved());
            kept.push(self.most_allocated());
        }
        kept.sort_unstable_by_key(|moment| moment.event);
        kept.dedup();
        kept
    }
}
