//! Memory over time, and what it was for at the peak.

use super::peak::{Highest, Peak, Phase};
use super::report::{CategoryBytes, TimelinePoint};
use crate::program::{Category, Program, TensorId};
use crate::units::Bytes;

/// Points kept at most: twice this, before every second one is dropped.
const POINTS: usize = 256;
/// How far apart shares are kept while events are noted again.
const SHARES_EVERY: usize = 64;

/// Bytes by purpose, in the order of [`Category::ALL`].
type Shares = [u64; Category::ALL.len()];

/// Bytes allocated and reserved after an event, and what the event was for.
pub(super) type Reading = (Bytes, Bytes, Category);

/// What there was of a tensor at the peak, if it was allocated or freed since.
#[derive(Debug, Clone, Copy, Default)]
struct TensorAtPeak {
    now: u64,
    /// At the peak of this number.
    then: u64,
    peak: u64,
}

/// What is written down of a run.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// In order, the peak among them.
    pub(super) timeline: Vec<TimelinePoint>,
    /// What memory was for at the peak, largest first.
    pub(super) at_peak: Vec<CategoryBytes>,
    /// When that was, and who held it; nothing where no step began.
    pub(super) peak: Option<Peak>,
}

/// Follows allocations and frees.
#[derive(Debug)]
pub(super) struct MemoryOverTime {
    by_category: Shares,
    at_peak: Shares,
    /// By [`TensorId`].
    held: Vec<TensorAtPeak>,
    phase: Phase,
    highest: Option<Highest>,
    /// How many peaks there were, each higher than those before.
    peaks: u64,
    event: u64,
    stride: u64,
    points: Vec<TimelinePoint>,
    highest_point: Option<TimelinePoint>,
    /// What is noted while a section runs that may be repeated without being carried out.
    readings: Option<Vec<Reading>>,
}

impl MemoryOverTime {
    pub(super) fn of(program: &Program) -> MemoryOverTime {
        MemoryOverTime {
            by_category: Shares::default(),
            at_peak: Shares::default(),
            held: vec![TensorAtPeak::default(); program.tensors.len()],
            phase: Phase::Forward,
            highest: None,
            peaks: 0,
            event: 0,
            stride: 1,
            points: Vec::new(),
            highest_point: None,
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

    /// What the step is doing.
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// A step begins.
    pub(super) fn begin_step(&mut self) {
        self.phase = Phase::Forward;
    }

    /// Notes that a tensor now has so many bytes, and what the allocator has then.
    pub(super) fn allocated(
        &mut self,
        step: u32,
        (id, category): (TensorId, Category),
        size: Bytes,
        (allocated, reserved): (Bytes, Bytes),
    ) {
        self.phase = self.phase.after(category);
        self.by_category[category as usize] += size.0;
        self.hold(id, size.0);
        // The peak that is reported is that of the steps, not of construction.
        let before = self.highest.as_ref().map(|highest| highest.allocated);
        if step > 0 && Some(allocated) > before {
            self.peaks += 1;
            self.at_peak = self.by_category;
            self.highest_point = Some(self.point(step, allocated, reserved));
            self.highest = Some(Highest {
                step,
                phase: self.phase,
                tensor: id,
                allocated,
                reserved,
            });
        }
        self.note(step, category, allocated, reserved);
    }

    /// Notes that a tensor is gone, and what the allocator has then.
    pub(super) fn freed(
        &mut self,
        step: u32,
        (id, category): (TensorId, Category),
        size: Bytes,
        (allocated, reserved): (Bytes, Bytes),
    ) {
        self.by_category[category as usize] -= size.0;
        self.hold(id, 0);
        self.note(step, category, allocated, reserved);
    }

    fn hold(&mut self, id: TensorId, bytes: u64) {
        let held = &mut self.held[id.0 as usize];
        if held.peak != self.peaks {
            held.peak = self.peaks;
            held.then = held.now;
        }
        held.now = bytes;
    }

    /// Notes events so many times more that were noted before, and so hold no new peak.
    pub(super) fn note_again(&mut self, step: u32, readings: &[Reading], times: u64) {
        let Some(last) = readings.last() else {
            return;
        };
        // They end as they begin, with what there is now.
        let mut shares = self.by_category;
        let mut allocated = last.0;
        let mut kept = Vec::with_capacity(readings.len() / SHARES_EVERY + 1);
        for (index, reading) in readings.iter().enumerate() {
            if index % SHARES_EVERY == 0 {
                kept.push((shares, allocated));
            }
            pass(&mut shares, &mut allocated, reading);
        }
        let length = readings.len() as u64;
        let first = self.event;
        let end = first.saturating_add(length.saturating_mul(times));
        while self.event.next_multiple_of(self.stride) < end {
            self.event = self.event.next_multiple_of(self.stride);
            let within = usize::try_from((self.event - first) % length);
            let within = within.expect("less than a length");
            let (mut shares, mut before) = kept[within / SHARES_EVERY];
            for reading in &readings[within / SHARES_EVERY * SHARES_EVERY..=within] {
                pass(&mut shares, &mut before, reading);
            }
            let (allocated, reserved, _) = readings[within];
            self.keep(TimelinePoint {
                event: self.event,
                step,
                allocated_bytes: allocated.0,
                reserved_bytes: reserved.0,
                by_category: shares.to_vec(),
            });
            self.event += 1;
        }
        self.event = end;
    }

    /// Notes the state after an event.
    fn note(&mut self, step: u32, category: Category, allocated: Bytes, reserved: Bytes) {
        if let Some(readings) = &mut self.readings {
            readings.push((allocated, reserved, category));
        }
        if self.event.is_multiple_of(self.stride) {
            self.keep(self.point(step, allocated, reserved));
        }
        self.event += 1;
    }

    fn point(&self, step: u32, allocated: Bytes, reserved: Bytes) -> TimelinePoint {
        TimelinePoint {
            event: self.event,
            step,
            allocated_bytes: allocated.0,
            reserved_bytes: reserved.0,
            by_category: self.by_category.to_vec(),
        }
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

    /// What there is to say of the run.
    pub(super) fn finish(mut self, program: &Program) -> Written {
        if let Some(highest) = self.highest_point.take()
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
        crate::order::by_key(&mut shares, |share| std::cmp::Reverse(share.bytes));
        let peaks = self.peaks;
        let peak = self.highest.map(|highest| {
            let alive = (0..).zip(&self.held).filter_map(|(index, held)| {
                let bytes = if held.peak == peaks {
                    held.then
                } else {
                    held.now
                };
                (bytes > 0).then_some((TensorId(index), bytes))
            });
            highest.peak(program, alive)
        });
        Written {
            timeline: self.points,
            at_peak: shares,
            peak,
        }
    }
}

/// Takes shares past an event, from what was allocated before it.
fn pass(shares: &mut Shares, allocated: &mut Bytes, reading: &Reading) {
    let share = &mut shares[reading.2 as usize];
    *share = (*share + reading.0.0).saturating_sub(allocated.0);
    *allocated = reading.0;
}
