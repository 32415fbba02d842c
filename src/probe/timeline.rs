//! Memory over time, and what it was for at the peak.

use super::report::{CategoryBytes, TimelinePoint};
use crate::program::Category;
use crate::units::Bytes;

/// Points kept at most: twice this, before every second one is dropped.
const POINTS: usize = 256;

/// Follows allocations and frees.
#[derive(Debug)]
pub(super) struct Recording {
    by_category: [u64; Category::ALL.len()],
    at_peak: [u64; Category::ALL.len()],
    peak: u64,
    event: u64,
    stride: u64,
    points: Vec<TimelinePoint>,
    highest: Option<TimelinePoint>,
}

impl Recording {
    pub(super) fn new() -> Recording {
        Recording {
            by_category: [0; Category::ALL.len()],
            at_peak: [0; Category::ALL.len()],
            peak: 0,
            event: 0,
            stride: 1,
            points: Vec::new(),
            highest: None,
        }
    }

    pub(super) fn allocated(&mut self, category: Category, size: Bytes) {
        self.by_category[category as usize] += size.0;
    }

    pub(super) fn freed(&mut self, category: Category, size: Bytes) {
        self.by_category[category as usize] -= size.0;
    }

    /// Notes the state after an event.
    pub(super) fn note(&mut self, step: u32, allocated: Bytes, reserved: Bytes) {
        let point = TimelinePoint {
            event: self.event,
            step,
            allocated_bytes: allocated.0,
            reserved_bytes: reserved.0,
        };
        // The peak that is reported is that of the steps, not of construction.
        if step > 0 && allocated.0 > self.peak {
            self.peak = allocated.0;
            self.at_peak = self.by_category;
            self.highest = Some(point.clone());
        }
        if self.event.is_multiple_of(self.stride) {
            self.points.push(point);
            if self.points.len() == 2 * POINTS {
                self.stride *= 2;
                let stride = self.stride;
                self.points
                    .retain(|point| point.event.is_multiple_of(stride));
            }
        }
        self.event += 1;
    }

    /// The points in order, the peak among them, and what memory was for at the peak, largest first.
    pub(super) fn finish(mut self) -> (Vec<TimelinePoint>, Vec<CategoryBytes>) {
        if let Some(highest) = self.highest.take()
            && let Err(at) = self
                .points
                .binary_search_by_key(&highest.event, |point| point.event)
        {
            self.points.insert(at, highest);
        }
        let mut shares: Vec<CategoryBytes> = Category::ALL
            .into_iter()
            .map(|category| CategoryBytes {
                category,
                bytes: self.at_peak[category as usize],
            })
            .filter(|share| share.bytes > 0)
            .collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        (self.points, shares)
    }
}
