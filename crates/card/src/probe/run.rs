//! The loop over a program's instructions.

use super::events::EventLog;
use super::peak::{Phase, Shortage};
use super::proof;
use super::repeat::Repeats;
use super::report::{Evidence, FIRST_STEPS, ProbeReport, StepMemory, Verdict};
use super::run_state::RunState;
use super::timeline::{MemoryOverTime, Written};
use crate::alloc::{CachingAllocator, Observer, SegmentSource, Stream};
use crate::device::{Launch, LaunchError, Launcher};
use crate::limits::Cancel;
use crate::program::{Instruction, Program, Section, Size, TensorId};
use crate::units::Bytes;

/// Steps of a probe: the second one finds optimizer state in place, the third repeats it.
pub const STEPS: usize = 3;

/// Most steps of a probe that goes on, because its first steps made the allocator retry and no two steps were alike yet.
const MOST_STEPS: usize = 12;

/// Most micro-steps of a step that a GPU runs. From the second on, when gradients exist, each repeats the one before
/// allocation by allocation, so more would only take longer.
pub const MICRO_STEPS_ON_A_GPU: u32 = 8;

/// Instructions between two looks at whether the report is still wanted: some ten microseconds on simulated
/// memory.
const CANCEL_CHECK_EVERY: usize = 256;

/// The report is not wanted any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

/// How much of a probe is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Peaks and verdict: what a search asks for.
    Verdict,
    /// Timeline and categories too.
    Full,
    /// Each allocation and free too, where the allocator tells an observer that keeps them.
    Events,
}

/// A program to be run at one batch.
#[derive(Debug, Clone, Copy)]
pub struct Probe<'a> {
    /// What runs.
    pub program: &'a Program,
    /// Samples per micro-step.
    pub batch: u64,
    /// How many steps.
    pub steps: usize,
    /// How much is written down.
    pub detail: Detail,
}

/// What a program runs with.
pub struct Resources<'a, S: SegmentSource, O: Observer = ()> {
    /// Where tensors live. Holds nothing when a probe starts; holds nothing again when it ends.
    pub allocator: &'a mut CachingAllocator<S, O>,
    /// What runs the launches.
    pub launcher: &'a mut dyn Launcher,
    /// Whether that is a real GPU, and otherwise what the program follows from.
    pub evidence: Evidence,
}

/// Why a run ended before its last step.
pub(super) enum Stopped {
    OutOfMemory { tensor: TensorId, asked: Bytes },
    Failed(LaunchError),
    Cancelled,
}

impl From<LaunchError> for Stopped {
    fn from(error: LaunchError) -> Stopped {
        Stopped::Failed(error)
    }
}

impl Probe<'_> {
    /// Runs construction and the steps, then gives all memory back.
    pub fn run<S: SegmentSource, O: Observer>(
        &self,
        resources: &mut Resources<'_, S, O>,
    ) -> ProbeReport {
        let report = self.run_cancellable(resources, &Cancel::NEVER);
        report.expect("nothing else can cancel it")
    }

    /// The same, but ends soon after `cancel`, and gives the memory back then too.
    pub fn run_cancellable<S: SegmentSource, O: Observer>(
        &self,
        resources: &mut Resources<'_, S, O>,
        cancel: &Cancel,
    ) -> Result<ProbeReport, Cancelled> {
        let limit = resources.allocator.limit().unwrap_or(Bytes(u64::MAX));
        let mut run = Run {
            probe: self,
            cancel,
            held: RunState::by(self, resources.evidence),
            resources,
            recording: (self.detail != Detail::Verdict).then(|| MemoryOverTime::of(self.program)),
            events: (self.detail == Detail::Events).then(EventLog::default),
            step: 0,
        };
        let mut steps = Vec::new();
        let mut model_allocated = Bytes::ZERO;
        let ended = run.go(&mut steps, &mut model_allocated);
        let stats = *run.resources.allocator.stats();
        let recording = run.recording.take();
        let mut events = run.events.take();
        if let Some(events) = &mut events {
            // What went before a refusal, and the refusal.
            events.hear_frees(run.resources.allocator.observer().events());
        }
        let step = run.step;
        let evidence = run.resources.evidence;
        let shortage = match &ended {
            Err(Stopped::OutOfMemory { asked, .. }) => {
                Some(Shortage::of(run.resources.allocator, *asked))
            }
            Ok(()) | Err(Stopped::Failed(_) | Stopped::Cancelled) => None,
        };
        run.resources.allocator.reset();
        if matches!(ended, Err(Stopped::Cancelled)) {
            return Err(Cancelled);
        }
        let unproven = match &ended {
            Ok(()) if evidence.is_real() => proof::lacking(&steps),
            Ok(()) | Err(_) => None,
        };
        let verdict = match &ended {
            Ok(()) if unproven.is_some() => Verdict::Failed,
            Ok(()) if stats.num_alloc_retries == 0 => Verdict::Fits,
            Ok(()) => Verdict::FitsWithRetries,
            Err(Stopped::OutOfMemory { .. }) => Verdict::OutOfMemory,
            Err(Stopped::Failed(_) | Stopped::Cancelled) => Verdict::Failed,
        };
        let stopped = ended.err().map(|stopped| self.cause(&stopped, step));
        let cause = stopped.or(unproven);
        let peak = |of: fn(&StepMemory) -> u64, now: Bytes| {
            let unfinished = if cause.is_some() { now.0 } else { 0 };
            steps.iter().map(of).max().unwrap_or(0).max(unfinished)
        };
        let written = recording.map_or_else(Written::default, |it| it.finish(self.program));
        let mut notes = proof::notes(&steps);
        let asked = self.program.micro_steps;
        let run = asked.min(most_micro_steps(evidence));
        if run < asked {
            notes.push(format!(
                "{run} of the {asked} micro-steps of each step ran: from the second on, each repeats the one before"
            ));
        }
        Ok(ProbeReport {
            host_bytes: self.program.host_bytes,
            peak_allocated_bytes: peak(|step| step.peak_allocated_bytes, stats.peak_allocated()),
            peak_reserved_bytes: peak(|step| step.peak_reserved_bytes, stats.peak_reserved()),
            retries: stats.num_alloc_retries,
            ooms: stats.num_ooms,
            model_allocated_bytes: model_allocated.0,
            steps,
            micro_steps_run: (run < asked).then_some(run),
            at_peak: written.at_peak,
            peak: written.peak,
            shortage,
            timeline: written.timeline,
            events: events.map(|log| Box::new(log.finish())),
            cause,
            notes,
            ..ProbeReport::new(self.batch, verdict, evidence, limit)
        })
    }

    pub(super) fn cause(&self, stopped: &Stopped, step: u32) -> String {
        let during = match step {
            0 => "construction".to_owned(),
            step => format!("step {step}"),
        };
        match stopped {
            Stopped::OutOfMemory { tensor, asked } => {
                let label = &self.program.tensor(*tensor).label;
                format!("no room for {asked} in {during}: {label}")
            }
            Stopped::Failed(error) => format!("{during}: {error}"),
            Stopped::Cancelled => format!("{during}: {Cancelled}"),
        }
    }
}

/// A number that can be written as JSON.
fn finite(loss: f64) -> Option<f64> {
    loss.is_finite().then_some(loss)
}

/// Most micro-steps of a step that run one by one.
fn most_micro_steps(evidence: Evidence) -> u32 {
    if evidence.is_real() {
        MICRO_STEPS_ON_A_GPU
    } else {
        u32::MAX
    }
}

/// A probe under way.
pub(super) struct Run<'a, 'r, S: SegmentSource, O: Observer> {
    pub(super) probe: &'a Probe<'a>,
    pub(super) cancel: &'a Cancel,
    pub(super) resources: &'a mut Resources<'r, S, O>,
    pub(super) held: RunState,
    pub(super) recording: Option<MemoryOverTime>,
    pub(super) events: Option<EventLog>,
    /// 0 is construction.
    pub(super) step: u32,
}

impl<S: SegmentSource, O: Observer> Run<'_, '_, S, O> {
    fn go(
        &mut self,
        steps: &mut Vec<StepMemory>,
        model_allocated: &mut Bytes,
    ) -> Result<(), Stopped> {
        let program = self.probe.program;
        self.resources.launcher.prepare(program, self.probe.batch)?;
        self.execute(&program.construction)?;
        self.resources.launcher.finish_step()?;
        *model_allocated = self.resources.allocator.stats().allocated();
        let mut is_quiet = false;
        for sections in program.steps(MOST_STEPS.max(self.probe.steps)) {
            if self.step as usize >= self.probe.steps && (is_quiet || !self.may_settle(steps)) {
                break;
            }
            self.step += 1;
            let upheavals = self.resources.allocator.stats().upheavals();
            let retries = self.resources.allocator.stats().num_alloc_retries;
            self.resources.allocator.reset_peaks();
            if let Some(recording) = &mut self.recording {
                recording.begin_step();
            }
            if let Some(events) = &mut self.events {
                events.begin_band(self.step, Some(Phase::Forward));
            }
            for section in sections {
                if self.resources.evidence.is_real() {
                    // One micro-step ran before those that repeat.
                    for _ in 0..section.times.min(MICRO_STEPS_ON_A_GPU - 1) {
                        self.execute(&section.instructions)?;
                    }
                } else {
                    self.simulate(section)?;
                }
            }
            let done = self.resources.launcher.finish_step()?;
            let stats = self.resources.allocator.stats();
            let real = self.resources.evidence.is_real();
            steps.push(StepMemory {
                peak_allocated_bytes: stats.peak_allocated().0,
                peak_reserved_bytes: stats.peak_reserved().0,
                allocated_bytes: stats.allocated().0,
                retries: Some(stats.num_alloc_retries - retries),
                launches: done.launches,
                losses: done.losses.into_iter().map(finite).collect(),
                elapsed_ms: real.then_some(done.elapsed_ms),
            });
            is_quiet = self.resources.allocator.stats().upheavals() == upheavals;
            if self.repeats() && is_quiet && self.settles_at_once() {
                let left = self.probe.steps.saturating_sub(self.step as usize);
                self.repeat_last(steps, left);
                break;
            }
        }
        if let (MOST_STEPS.., false, Some(last)) = (steps.len(), is_quiet, steps.last_mut()) {
            // It never settled: further steps are unknown.
            last.retries = None;
        }
        Ok(())
    }

    /// Whether the allocator had to retry in the first steps, and not since: more steps tell whether it is for good.
    fn may_settle(&self, steps: &[StepMemory]) -> bool {
        let retries = |step: &StepMemory| step.retries.unwrap_or(0);
        let (first, later) = steps.split_at(FIRST_STEPS.min(steps.len()));
        self.probe.steps > FIRST_STEPS
            && first.iter().any(|step| retries(step) > 0)
            && later.iter().all(|step| retries(step) == 0)
    }

    /// Whether all steps that come are like the one that was done last.
    fn repeats(&self) -> bool {
        self.step as usize >= self.probe.program.steps.len().max(2)
    }

    /// Whether a later step that was served from free blocks alone shows what all after it do. See Note [Repeated
    /// requests] in `alloc`: such a step leaves the blocks as they were, if it keeps nothing.
    fn settles_at_once(&self) -> bool {
        // A timeline shows every step.
        !self.resources.evidence.is_real()
            && self.recording.is_none()
            && self.probe.program.last_step_is_closed()
    }

    /// Takes the next steps to be like the last.
    fn repeat_last(&mut self, steps: &mut Vec<StepMemory>, times: usize) {
        if let Some(last) = steps.last().cloned() {
            steps.extend(std::iter::repeat_n(last, times));
        }
        self.step += u32::try_from(times).unwrap_or(u32::MAX);
    }

    /// Runs a section as often as it says, or counts the repeats that cannot do anything new.
    pub(super) fn simulate(&mut self, section: &Section) -> Result<(), Stopped> {
        let mut repeats = Repeats::default();
        let mut left = section.times;
        while left > 0 {
            if let (Some(recording), true) = (&mut self.recording, section.times > 1) {
                recording.keep_readings();
            }
            if let Some(events) = &mut self.events {
                events.begin_repeat();
            }
            self.execute(&section.instructions)?;
            left -= 1;
            let recording = self.recording.as_mut();
            let readings = recording.map_or_else(Vec::new, MemoryOverTime::take_readings);
            if left == 0 {
                break;
            }
            let Some(mark) = self.resources.allocator.checkpoint() else {
                continue;
            };
            let Some(cycle) = repeats.after(&mark, self.held.cache.digest(), readings) else {
                continue;
            };
            let times = u64::from(left / cycle.repeats);
            left %= cycle.repeats;
            self.resources.allocator.count_again(&cycle.before, times);
            if let Some(recording) = &mut self.recording {
                recording.note_again(self.step, &cycle.readings, times);
            }
            if let Some(events) = &mut self.events {
                events.note_again(cycle.repeats, times);
            }
            // What is left is less than a cycle.
            for _ in 0..std::mem::take(&mut left) {
                self.execute(&section.instructions)?;
            }
        }
        Ok(())
    }

    pub(super) fn execute(&mut self, instructions: &[Instruction]) -> Result<(), Stopped> {
        for (index, instruction) in instructions.iter().enumerate() {
            if index % CANCEL_CHECK_EVERY == 0 && self.cancel.is_cancelled() {
                return Err(Stopped::Cancelled);
            }
            match instruction {
                Instruction::Allocate(id) => self.allocate(*id)?,
                Instruction::Launch(call) => {
                    let plan = call.workspace.and_then(|id| self.held.plans.get(&id));
                    self.resources.launcher.launch(&Launch {
                        call,
                        batch: self.probe.batch,
                        addresses: &self.held.tables.addresses,
                        sizes: &self.held.tables.sizes,
                        plan: plan.copied().unwrap_or(0),
                    })?;
                }
                Instruction::Free(id) => self.free(*id),
            }
        }
        Ok(())
    }

    fn allocate(&mut self, id: TensorId) -> Result<(), Stopped> {
        let index = id.0 as usize;
        let program = self.probe.program;
        let tensor = program.tensor(id);
        let asked = self.held.sizes[tensor.size.0 as usize];
        let allocator = &mut *self.resources.allocator;
        let block = if let Size::Workspace(convolution) = *program.size(id) {
            let convolution = (program, convolution);
            let launcher = &mut *self.resources.launcher;
            let granted =
                self.held
                    .cache
                    .grant(convolution, self.probe.batch, allocator, launcher)?;
            let refused = Stopped::OutOfMemory {
                tensor: id,
                asked: Bytes::ZERO,
            };
            let granted = granted.ok_or(refused)?;
            self.held.plans.insert(id, granted.plan);
            granted.block
        } else if asked == Bytes::ZERO {
            None
        } else {
            let refused = |_| Stopped::OutOfMemory { tensor: id, asked };
            Some(
                allocator
                    .malloc_on(Stream(u64::from(tensor.stream)), asked)
                    .map_err(refused)?,
            )
        };
        let address = block.map_or(0, |block| allocator.address(block).0);
        self.held.tables.place(id, address);
        self.held.blocks[index] = block;
        if let (Some(recording), Some(block)) = (&mut self.recording, block) {
            let stats = allocator.stats();
            let memory = (stats.allocated(), stats.reserved());
            let size = allocator.size(block);
            recording.allocated(self.step, (id, tensor.category), size, memory);
            let phase = recording.phase();
            if let Some(events) = &mut self.events {
                events.begin_band(self.step, (self.step > 0).then_some(phase));
                let owner = events.owner_of(program, id);
                events.hear(allocator.observer().events(), owner, size);
                allocator.observer_mut().forget();
            }
        }
        Ok(())
    }

    fn free(&mut self, id: TensorId) {
        let index = id.0 as usize;
        let Some(block) = self.held.blocks[index].take() else {
            return;
        };
        let allocator = &mut *self.resources.allocator;
        let size = allocator.size(block);
        allocator.free(block);
        self.held.tables.place(id, 0);
        if let Some(recording) = &mut self.recording {
            let category = self.probe.program.tensors[index].category;
            let stats = allocator.stats();
            let memory = (stats.allocated(), stats.reserved());
            recording.freed(self.step, (id, category), size, memory);
        }
        if let Some(events) = &mut self.events {
            events.hear_frees(allocator.observer().events());
            allocator.observer_mut().forget();
        }
    }
}
