//! What a fit asks of a device, and who looks on.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::fitting::Result;
use crate::limits::Cancel;
use crate::model::Variant;
use crate::probe::{Detail, Evidence, Outline, ProbeReport, SpeedFrom, Verdict};
use crate::program::Program;
use crate::search::Goal;
use crate::units::Bytes;
use crate::worker::Caller;
use crate::{EngineError, Headroom, Progress, Work};

use crate::fitting::recommendation::headroom::{Uncertainty, VariantHeadroom};

/// A finished probe.
#[derive(Debug, Clone)]
pub(crate) struct ProbeOutcome {
    /// What it found.
    pub(crate) report: ProbeReport,
    /// How long it took, loading included.
    pub(crate) wall_ms: f64,
    /// What it had to assume, in order.
    pub(crate) uncertainties: Vec<Uncertainty>,
    /// Who says what is left free.
    pub(crate) headroom: VariantHeadroom,
}

impl ProbeOutcome {
    /// The headroom below `limit`.
    pub(crate) fn headroom(&self, limit: Bytes) -> Bytes {
        self.headroom.bytes(&self.uncertainties, limit)
    }

    /// Whether it ran steadily and left `headroom` free.
    pub(crate) fn leaves(&self, headroom: Bytes, limit: Bytes) -> bool {
        // What ran without a retry runs the same under any limit that it did not pass.
        Goal::FinishSteadily.is_met_by(self.report.course())
            && Bytes(self.report.peak_reserved_bytes) <= limit.saturating_sub(headroom)
    }

    /// The same for the answer's document.
    pub(crate) fn document(&self, limit: Bytes) -> Headroom {
        self.headroom.document(&self.uncertainties, limit)
    }

    /// Whether it runs steadily, and would where `headroom` less than `limit` can be had, which `within` says where the peak does
    /// not. See Note [Steady batches] in `search`.
    pub(crate) fn is_safe(
        &self,
        headroom: Bytes,
        limit: Bytes,
        within: impl FnOnce(Bytes) -> Result<ProbeOutcome>,
    ) -> Result<bool> {
        let is_steady =
            |probed: &ProbeOutcome| Goal::FinishSteadily.is_met_by(probed.report.course());
        if self.leaves(headroom, limit) || !is_steady(self) || headroom >= limit {
            return Ok(self.leaves(headroom, limit));
        }
        Ok(is_steady(&within(limit.saturating_sub(headroom))?))
    }
}

/// How long an optimizer step takes, as far as that is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StepTime {
    /// So many seconds, all its micro-steps together.
    Seconds(f64, SpeedFrom),
    /// Unknown, for this reason.
    Unknown(&'static str),
}

impl StepTime {
    /// An optimizer step of `steps` micro-steps by a probe that ran `micro_steps` of them, unless its report knows better.
    pub(crate) fn measured(report: &ProbeReport, micro_steps: u32, steps: u64) -> StepTime {
        let ran = report.micro_steps_run.unwrap_or(micro_steps);
        // The first step also tunes and fills caches.
        let warm = report.steps.iter().skip(1);
        let warm = warm.filter_map(|step| step.elapsed_ms);
        match warm.min_by(f64::total_cmp) {
            Some(ms) => {
                let seconds = steps as f64 * ms / 1000.0 / f64::from(ran.max(1));
                StepTime::Seconds(seconds, SpeedFrom::Measured)
            }
            // It never ends.
            None if report.verdict == Verdict::OutOfMemory => {
                StepTime::Seconds(f64::INFINITY, SpeedFrom::Measured)
            }
            None => StepTime::Unknown("no step was timed"),
        }
    }

    /// Writes it into the report of a probe whose steps finish.
    pub(crate) fn write_to(self, report: &mut ProbeReport) {
        let ends = matches!(report.verdict, Verdict::Fits | Verdict::FitsWithRetries);
        if let (StepTime::Seconds(seconds, from), true) = (self, ends) {
            report.optimizer_step_ms = Some(1000.0 * seconds);
            report.speed_from = Some(from);
        }
    }

    /// Samples a second on one GPU, of so many micro-steps of so many samples.
    pub(crate) fn speed(self, steps: u64, batch: u64) -> Option<f64> {
        match self {
            StepTime::Seconds(seconds, _) => Some(batch as f64 * steps as f64 / seconds),
            StepTime::Unknown(_) => None,
        }
    }
}

/// What a runner runs on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunnerDevice<'a> {
    /// As a request would name it.
    pub(crate) name: &'a str,
    /// Whether its kernels run.
    pub(crate) evidence: Evidence,
    /// The largest batch that was recorded, where it answers from recordings.
    pub(crate) largest_recorded: Option<u64>,
    /// Whether it can run nothing any more, and nothing can take its place.
    pub(crate) is_lost: bool,
}

/// Runs probes of the model of one request on one device.
pub(crate) trait Runner {
    /// What it runs on.
    fn device(&self) -> RunnerDevice<'_>;

    /// The step program of a variant; `None` where only a probe can tell what it needs.
    fn program(&mut self, _: &Variant) -> Result<Option<&Program>> {
        Ok(None)
    }

    /// Runs three steps of `batch`, with `limit` for the allocator.
    fn probe(
        &mut self,
        variant: &Variant,
        batch: u64,
        limit: Bytes,
        detail: Detail,
    ) -> Result<ProbeOutcome>;

    /// How long an optimizer step of so many micro-steps takes, without running it: of a variant with as many, or with several.
    fn step_time(&mut self, _: &Variant, _batch: u64, _steps: u64) -> Result<StepTime> {
        Ok(StepTime::Unknown("nothing was run that tells it"))
    }
}

/// Reports progress, and notices when the work is cancelled.
pub(crate) struct Observer<'a> {
    work: Work<'a>,
    probes: Cell<u32>,
    batch: Cell<u64>,
}

impl<'a> Observer<'a> {
    pub(crate) fn new(work: &Work<'a>) -> Observer<'a> {
        Observer {
            work: *work,
            probes: Cell::new(0),
            batch: Cell::new(0),
        }
    }

    /// Announces a probe of `batch`, unless the work is cancelled.
    pub(crate) fn before(&self, batch: u64, note: &str) -> Result<()> {
        if self.work.cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        self.batch.set(batch);
        self.tell(note);
        Ok(())
    }

    /// Tells what goes on.
    pub(crate) fn tell(&self, note: &str) {
        (self.work.progress)(Progress {
            probes_done: self.probes.get(),
            batch: self.batch.get(),
            note: note.to_owned(),
        });
    }

    /// Becomes true when the work is cancelled.
    pub(crate) fn cancel(&self) -> &'a Cancel {
        self.work.cancel
    }

    /// Counts a finished probe.
    pub(crate) fn after(&self) {
        self.probes.set(self.probes.get() + 1);
    }

    /// Calls a worker for the caller of this work.
    pub(crate) fn call<T>(&self, work: impl FnOnce(Caller<'_>) -> T) -> T {
        work(Caller {
            cancel: self.work.cancel,
            notice: &|note| self.tell(note),
        })
    }
}

/// A prober that remembers the probes of one variant, and tells a observer of each new one.
pub(crate) struct ProbeCache<'a> {
    prober: &'a mut dyn Runner,
    observer: &'a Observer<'a>,
    variant: Variant,
    pub(crate) limit: Bytes,
    /// The largest batch that may be an answer.
    pub(crate) ceiling: u64,
    /// That of its probes.
    pub(crate) headroom: VariantHeadroom,
    /// By accumulation and batch.
    seen: BTreeMap<(u32, u64), ProbeOutcome>,
    /// By accumulation, the largest batch whose outline is seen to be within the limit, and the smallest that is not.
    outlined: BTreeMap<u32, (u64, u64)>,
}

impl<'a> ProbeCache<'a> {
    pub(crate) fn new(
        prober: &'a mut dyn Runner,
        observer: &'a Observer<'a>,
        variant: Variant,
        (limit, ceiling): (Bytes, u64),
        headroom: VariantHeadroom,
    ) -> ProbeCache<'a> {
        ProbeCache {
            prober,
            observer,
            variant,
            limit,
            ceiling,
            headroom,
            seen: BTreeMap::new(),
            outlined: BTreeMap::new(),
        }
    }

    /// Has all its probes leave this headroom from now on.
    pub(crate) fn keep(&mut self, headroom: VariantHeadroom) {
        for probed in self.seen.values_mut() {
            probed.headroom = headroom.clone();
        }
        self.headroom = headroom;
    }

    /// Whether its device can run nothing any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.prober.device().is_lost
    }

    pub(crate) fn evidence(&self) -> Evidence {
        self.prober.device().evidence
    }

    /// The largest batch that was recorded, where its device answers from recordings.
    pub(crate) fn largest_recorded(&self) -> Option<u64> {
        self.prober.device().largest_recorded
    }

    /// Micro-steps in each step of its probes.
    pub(crate) fn accumulation(&self) -> u32 {
        self.variant.accumulation
    }

    /// Has probes run so many micro-steps in each step from now on.
    pub(crate) fn accumulate(&mut self, micro_steps: u32) {
        self.variant.accumulation = micro_steps;
    }

    /// What a probe of `batch` needs at least, where that can be told without it.
    pub(crate) fn outline(&mut self, batch: u64) -> Result<Option<Outline>> {
        let program = self.prober.program(&self.variant)?;
        Ok(program.map(|program| Outline::of(program, batch)))
    }

    /// Whether no probe has to tell that `batch` runs out of memory: its tensors alone are larger than the limit.
    pub(crate) fn is_beyond(&mut self, batch: u64) -> Result<bool> {
        let accumulation = self.accumulation();
        let (within, beyond) = *self.outlined.entry(accumulation).or_insert((0, u64::MAX));
        if batch <= within || batch >= beyond {
            return Ok(batch >= beyond);
        }
        let outline = self.outline(batch)?;
        let is_beyond = outline.is_some_and(|outline| outline.allocated > self.limit);
        let known = if is_beyond {
            (within, batch)
        } else {
            (batch, beyond)
        };
        self.outlined.insert(accumulation, known);
        Ok(is_beyond)
    }

    /// Bytes that a rank sends to others in a step; `None` where one process trains, or it is unknown.
    pub(crate) fn communicated(&mut self, batch: u64) -> Result<Option<u64>> {
        if self.variant.parallel.is_none() || self.evidence() == Evidence::Recorded {
            return Ok(None);
        }
        let ranks = self.variant.parallel.world_size();
        let program = self.prober.program(&self.variant)?;
        Ok(program.map(|program| program.communicated_bytes(ranks, batch)))
    }

    /// How long an optimizer step of `steps` micro-steps takes: what a probe measured, where its device is real.
    ///
    /// What was probed with fewer micro-steps takes as many times what each of those took, with its share of the update.
    pub(crate) fn step_time(&mut self, batch: u64, steps: u64) -> Result<StepTime> {
        if !self.evidence().is_real() {
            return self.prober.step_time(&self.variant, batch, steps);
        }
        let micro_steps = self.accumulation();
        let report = &self.probe(batch)?.report;
        Ok(StepTime::measured(report, micro_steps, steps))
    }

    /// The probe of `batch`, run now unless it was run before.
    pub(crate) fn probe(&mut self, batch: u64) -> Result<&ProbeOutcome> {
        self.run(batch, Detail::Verdict)
    }

    /// The same with what the peak was made of.
    pub(crate) fn probe_in_full(&mut self, batch: u64) -> Result<&ProbeOutcome> {
        let key = (self.accumulation(), batch);
        // A real probe is always written down in full, because it takes seconds anyway.
        let is_brief = |probed: &ProbeOutcome| probed.report.at_peak.is_empty();
        if !self.evidence().is_real() && self.seen.get(&key).is_some_and(is_brief) {
            self.seen.remove(&key);
        }
        self.run(batch, Detail::Full)
    }

    fn run(&mut self, batch: u64, detail: Detail) -> Result<&ProbeOutcome> {
        let key = (self.accumulation(), batch);
        if !self.seen.contains_key(&key) {
            let note = if self.evidence().is_real() {
                "probing on the GPU"
            } else {
                "simulating"
            };
            self.observer
                .before(batch, &format!("{}: {note} batch {batch}", self.variant))?;
            let mut probed = self
                .prober
                .probe(&self.variant, batch, self.limit, detail)?;
            probed.headroom = self.headroom.clone();
            self.observer.after();
            if probed.report.verdict == Verdict::Failed {
                return Err(self.failed(&probed.report));
            }
            self.seen.insert(key, probed);
        }
        Ok(&self.seen[&key])
    }

    /// See [`ProbeOutcome::is_safe`].
    pub(crate) fn is_safe(&mut self, headroom: Bytes, limit: Bytes, batch: u64) -> Result<bool> {
        let probed = if limit == self.limit {
            self.probe(batch)?.clone()
        } else {
            self.probe_within(limit, batch, Detail::Verdict)?
        };
        probed.is_safe(headroom, limit, |budget| {
            self.probe_within(budget, batch, Detail::Verdict)
        })
    }

    /// A probe under another limit. Not remembered.
    pub(crate) fn probe_within(
        &mut self,
        limit: Bytes,
        batch: u64,
        detail: Detail,
    ) -> Result<ProbeOutcome> {
        self.observer.before(
            batch,
            &format!("{}: simulating batch {batch} within {limit}", self.variant),
        )?;
        let mut probed = self.prober.probe(&self.variant, batch, limit, detail)?;
        probed.headroom = self.headroom.clone();
        self.observer.after();
        Ok(probed)
    }

    /// Steps did not run, for another reason than memory. Nothing is known of memory then.
    fn failed(&self, report: &ProbeReport) -> EngineError {
        let cause = report.cause.as_deref().unwrap_or("the steps did not run");
        EngineError::DeviceFailed {
            device: self.prober.device().name.to_owned(),
            cause: format!("batch {}: {cause}", report.batch),
        }
    }

    /// The probe that was run with this many micro-steps.
    pub(crate) fn seen(&self, accumulation: u32, batch: u64) -> Option<&ProbeOutcome> {
        self.seen.get(&(accumulation, batch))
    }

    /// All probes run, in the order of their batches.
    pub(crate) fn probes(&self) -> impl Iterator<Item = (u32, &ProbeOutcome)> {
        self.seen
            .iter()
            .map(|((accumulation, _), probed)| (*accumulation, probed))
    }
}
