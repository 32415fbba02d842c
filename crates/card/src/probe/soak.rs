//! Many steps of several shapes in the memory of one process: what is left of a batch's safety hours later.
//!
//! A probe repeats one step, and after the third nothing changes any more. Training does not: sentences are longer and
//! shorter, an epoch ends with a short batch, and then another loop validates. Every shape asks for blocks of other sizes,
//! cached blocks are split for them, and what is reserved grows for as long as new shapes meet.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::report::{Evidence, FIRST_STEPS, Verdict};
use super::run::{Cancelled, Detail, Probe, Resources, Run, Stopped};
use super::run_state::RunState;
use crate::alloc::{Observer, SegmentSource, Stats};
use crate::limits::Cancel;
use crate::program::Program;

/// Most points at which growth is told.
const MOST_GROWTH: usize = 1000;

/// Steps that a probe runs, after which what was reserved is compared with the end.
const AT_FIRST: u64 = 3;

/// A shape of a step.
#[derive(Debug, Clone, Copy)]
pub struct Shape<'a> {
    /// What runs.
    pub program: &'a Program,
    /// Samples per micro-step.
    pub batch: u64,
}

/// Steps of several shapes, one after the other.
///
/// The programs are of one model that trains one way, or is validated: they construct the same tensors, which those of the
/// first step stand for, and their last steps free all that they allocate.
#[derive(Debug, Clone, Copy)]
pub struct Soak<'a> {
    /// The shapes that occur.
    pub shapes: &'a [Shape<'a>],
    /// The shape of each step, by its place in `shapes`. The first is one that trains.
    pub steps: &'a [usize],
}

/// What was reserved from a step on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Growth {
    /// Counted from 1.
    pub step: u64,
    /// Most bytes reserved by then.
    pub reserved_bytes: u64,
}

/// What came of a soak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SoakReport {
    /// Whether all steps finished, and whether the allocator had to retry after the second.
    pub verdict: Verdict,
    /// How many steps finished.
    pub steps: u64,
    /// Most bytes allocated.
    pub peak_allocated_bytes: u64,
    /// Most bytes reserved.
    pub peak_reserved_bytes: u64,
    /// Most bytes reserved in the first three steps.
    pub reserved_at_first_bytes: u64,
    /// When more was reserved than ever before: at most the first thousand times.
    pub growth: Vec<Growth>,
    /// Times that the allocator gave its cache back and tried again.
    pub retries: u64,
    /// The first step with a retry, of those after the second: what the first two have to free is free for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_retry: Option<u64>,
    /// Why it ended before the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl Soak<'_> {
    /// Runs the steps in simulated memory, and ends soon after `cancel`.
    pub fn run<S: SegmentSource, O: Observer>(
        &self,
        resources: &mut Resources<'_, S, O>,
        cancel: &Cancel,
    ) -> Result<SoakReport, Cancelled> {
        let mut report = SoakReport {
            verdict: Verdict::Fits,
            steps: 0,
            peak_allocated_bytes: 0,
            peak_reserved_bytes: 0,
            reserved_at_first_bytes: 0,
            growth: Vec::new(),
            retries: 0,
            first_retry: None,
            cause: None,
        };
        let mut held: Vec<Option<RunState>> = self.shapes.iter().map(|_| None).collect();
        let mut settled = vec![None; self.shapes.len()];
        for (number, place) in (1..).zip(self.steps) {
            if cancel.is_cancelled() {
                resources.allocator.reset();
                return Err(Cancelled);
            }
            let upheavals = resources.allocator.stats().upheavals();
            if settled[*place] == Some(upheavals) {
                report.note(number, resources.allocator.stats());
                report.steps = number;
                continue;
            }
            let shape = self.shapes[*place];
            let probe = Probe {
                program: shape.program,
                batch: shape.batch,
                steps: 1,
                detail: Detail::Verdict,
            };
            let mut run = Run {
                probe: &probe,
                cancel,
                held: held[*place]
                    .take()
                    .unwrap_or_else(|| RunState::by(&probe, Evidence::Simulated)),
                resources,
                recording: None,
                events: None,
                step: u32::try_from(number).unwrap_or(u32::MAX),
            };
            let ended = run.one_of_many(number == 1);
            held[*place] = Some(run.held);
            let stats = *resources.allocator.stats();
            report.note(number, &stats);
            // See Note [Repeated requests] in `alloc`: such a step leaves the blocks as they were, and can do nothing else when it
            // comes again, until a step of another shape is not served from free blocks alone.
            let is_quiet = number > 1 && stats.upheavals() == upheavals;
            let repeats = is_quiet && resources.allocator.is_told_by_blocks();
            settled[*place] = repeats.then_some(upheavals);
            match ended {
                Ok(()) => report.steps = number,
                Err(Stopped::Cancelled) => {
                    resources.allocator.reset();
                    return Err(Cancelled);
                }
                Err(stopped) => {
                    report.cause =
                        Some(probe.cause(&stopped, u32::try_from(number).unwrap_or(u32::MAX)));
                    report.verdict = match stopped {
                        Stopped::OutOfMemory { .. } => Verdict::OutOfMemory,
                        Stopped::Failed(_) | Stopped::Cancelled => Verdict::Failed,
                    };
                    break;
                }
            }
        }
        if report.verdict == Verdict::Fits && report.first_retry.is_some() {
            report.verdict = Verdict::FitsWithRetries;
        }
        resources.allocator.reset();
        Ok(report)
    }
}

impl<S: SegmentSource, O: Observer> Run<'_, '_, S, O> {
    /// A step among those of other shapes; the first one constructs the model.
    fn one_of_many(&mut self, is_first: bool) -> Result<(), Stopped> {
        let program = self.probe.program;
        let step = if is_first {
            self.execute(&program.construction)?;
            program.steps.first()
        } else {
            program.steps.last()
        };
        for section in step.into_iter().flatten() {
            self.simulate(section)?;
        }
        Ok(())
    }
}

impl SoakReport {
    /// Takes in how the allocator is after a step.
    fn note(&mut self, step: u64, stats: &Stats) {
        let reserved = stats.peak_reserved().0;
        if reserved > self.peak_reserved_bytes && self.growth.len() < MOST_GROWTH {
            self.growth.push(Growth {
                step,
                reserved_bytes: reserved,
            });
        }
        self.peak_allocated_bytes = stats.peak_allocated().0;
        self.peak_reserved_bytes = reserved;
        if step <= AT_FIRST {
            self.reserved_at_first_bytes = reserved;
        }
        if stats.num_alloc_retries > self.retries && step > FIRST_STEPS as u64 {
            self.first_retry = self.first_retry.or(Some(step));
        }
        self.retries = stats.num_alloc_retries;
    }
}
