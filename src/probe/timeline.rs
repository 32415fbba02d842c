//! Memory over time, and what it was for at the peak.

use super::report::{CategoryBytes, TimelinePoint};
use crate::program::Category;
use crate::units::Bytes;

/// Points kept at most: twice this, before every second one is dropped.
const POINTS: usize = 256;

/// Bytes allocated and reserved after an event.
pub(super) type Reading = (Bytes, Bytes);

/// Follows allocations and frees.
#[derive(Debug)]
pub(super) struct MemoryOverTime {
    by_category: [u64; Category::ALL.len()],
    at_peak: [u64; Category::ALL.len()],
    peak: u64,
    event: u64,
    stride: u64,
    points: Vec<TimelinePoint>,
    highest: Option<TimelinePoint>,
    /// What is noted while a section runs that may be repeated without being carried out.
    readings: Option<Vec<Reading>>,
}

impl MemoryOverTime {
    pub(super) fn new() -> MemoryOverTime {
        MemoryOverTime {
            by_category: [0; Category::ALL.len()],
            at_peak: [0; Category::ALL.len()],
            peak: 0,
            event: 0,
            stride: 1,
            points: Vec::new(),
            highest: None,
            readings: None,
        }
    }

    /// Keeps what is noted from here on, until it is taken.
    pub(super) fn keep_readings(&mut self) {
        self.readings = Some(Vec::new());
    }

    /// What was noted since.
    pub(super) fn take_readings(&mut self) -> Vec<Reading> {
        self.readings.take().unwrap_or_default()
    }

    pub(super) fn allocated(&mut self, category: Category, size: Bytes) {
        self.by_category[category as usize] += size.0;
    }

    pub(super) fn freed(&mut self, category: Category, size: Bytes) {
        self.by_category[category as usize] -= size.0;
    }

    /// Notes events so many times more that were noted before, and so hold no new peak.
    pub(super) fn note_again(&mut self, step: u32, readings: &[Reading], times: u64) {
        let length = readings.len() as u64;
        let first = self.event;
        let end = first.saturating_add(length.saturating_mul(times));
        while self.event.next_multiple_of(self.stride) < end {
            self.event = self.event.next_multiple_of(self.stride);
            let within = usize::try_from((self.event - first) % length);
            let (allocated, reserved) = readings[within.expect("less than a length")];
            self.keep(TimelinePoint {
                event: self.event,
                step,
                allocated_bytes: allocated.0,
                reserved_bytes: reserved.0,
            });
            self.event += 1;
        }
        self.event = end;
    }

    /// Notes the state after an event.
    pub(super) fn note(&mut self, step: u32, allocated: Bytes, reserved: Bytes) {
        if let Some(readings) = &mut self.readings {
            readings.push((allocated, reserved));
        }
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
            self.keep(point);
        }
        self.event += 1;
    }

    fn keep(&mut self, point: TimelinePoint) {
        self.points.push(point);
        if self.points.len() == 2 * POINTS {
            self.stride *= 2;
            let stride = self.stride;
            self.points
                .retain(|point| point.event.is_multiple_of(stride));
        }
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
