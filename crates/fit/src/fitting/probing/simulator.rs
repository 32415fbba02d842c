//! Simulated probes: the allocator on memory that is not there.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::EngineError;
use crate::alloc::Settings;
use crate::compile::{CompileError, Process, RankClass, rank_classes};
use crate::device::Capability;
use crate::device::sim::{Card, CardMemory, SimulatedLauncher};
use crate::fitting::Result;
use crate::limits::Cancel;
use crate::model::{Mode, Request, Variant, Workload};
use crate::probe::{
    Cancelled, Detail, Evidence, PeakMemory, Probe, ProbeReport, STEPS, SimulatedProcess,
    SpeedFrom, Verdict,
};
use crate::program::Program;
use crate::search::MAX_BATCH;
use crate::timing::{is_calibrated, longer_step};
use crate::units::Bytes;
use crate::validate::invalid_variant;
use crate::worker::Programs;

use super::runner::{ProbeOutcome, Runner, RunnerDevice, StepTime};
use crate::fitting::engine::for_others;
use crate::fitting::recommendation::headroom::{Assumed, Uncertainty, VariantHeadroom, of_graph};

/// How many times as long the host takes as the one that was measured: no other pace was given.
const PACE: f64 = 1.0;

/// Probes on a simulated card.
pub(crate) struct Simulator {
    device: String,
    programs: Programs,
    settings: Settings,
    launcher: SimulatedLauncher,
    memory: CardMemory,
    /// The card whose speed is known.
    card: Option<&'static Card>,
    /// What is assumed of the model and the card.
    uncertainties: BTreeSet<Uncertainty>,
    /// Becomes true when no other probe is wanted.
    cancel: Cancel,
    assumed: Assumed,
    ceiling: u64,
    ran: Option<MeasuredBatch>,
    /// The ranks of the variant that was asked about last, whatever it accumulates.
    classes: Option<(Variant, Vec<RankClass>)>,
}

/// A recorded batch that ran, and what it reserved.
#[derive(Debug, Clone, Copy)]
struct MeasuredBatch {
    batch: u64,
    /// By how much its prediction was too low.
    short_by: Bytes,
}

impl Simulator {
    pub(crate) fn new(
        device: String,
        workload: Workload,
        capability: Capability,
        settings: Settings,
        memory: CardMemory,
        cancel: &Cancel,
    ) -> Simulator {
        let (uncertainties, assumed, ceiling) = match &workload {
            Workload::Graph(graph) => (of_graph(graph), Assumed::of(graph), graph.max_batch),
            Workload::Recorded(_) => (vec![Uncertainty::Driver], Assumed::default(), None),
        };
        Simulator {
            device,
            uncertainties: uncertainties.into_iter().collect(),
            assumed,
            ceiling: ceiling.unwrap_or(MAX_BATCH).min(MAX_BATCH),
            programs: Programs::simulated(workload, capability),
            settings,
            launcher: SimulatedLauncher::default(),
            memory,
            card: None,
            cancel: cancel.clone(),
            ran: None,
            classes: None,
        }
    }

    /// Takes in what a recorded batch reserved when it ran: little is uncertain of batches near it.
    pub(crate) fn ran(
        &mut self,
        variant: &Variant,
        (batch, reserved): (u64, Bytes),
        limit: Bytes,
    ) -> Result<()> {
        let predicted = self.probe(variant, batch, limit, Detail::Verdict)?.report;
        let predicted = Bytes(predicted.peak_reserved_bytes);
        self.ran = Some(MeasuredBatch {
            batch,
            short_by: reserved.saturating_sub(predicted),
        });
        Ok(())
    }

    /// The largest batch that may be an answer: the graph holds for no larger one.
    pub(crate) fn ceiling(&self) -> u64 {
        self.ceiling
    }

    /// The same where it is known which card it is, and so how fast.
    pub(crate) fn of_card(self, card: Option<&'static Card>) -> Simulator {
        Simulator {
            card,
            launcher: SimulatedLauncher::of(card),
            ..self
        }
    }

    /// The same for a card on which nothing was measured.
    pub(crate) fn transferred(mut self) -> Simulator {
        self.uncertainties.insert(Uncertainty::Card);
        self
    }
}

impl Simulator {
    /// A probe of a request's variant, and whether it leaves headroom. See [`ProbeOutcome::is_safe`].
    pub(crate) fn safety(
        &mut self,
        request: &Request,
        variant: &Variant,
        batch: u64,
        limit: Bytes,
    ) -> Result<(Verdict, bool)> {
        let mut probed = self.probe(variant, batch, limit, Detail::Verdict)?;
        probed.headroom = VariantHeadroom::of(request, variant);
        let within = |room| self.probe(variant, batch, room, Detail::Verdict);
        let is_safe = probed.is_safe(probed.headroom(limit), limit, within)?;
        Ok((probed.report.verdict, is_safe))
    }

    /// The ranks that differ.
    fn classes(&mut self, variant: &Variant) -> Vec<RankClass> {
        let asked = Variant {
            accumulation: 1,
            ..variant.clone()
        };
        if let Some((known, classes)) = &self.classes
            && *known == asked
        {
            return classes.clone();
        }
        let classes = match self.programs.workload() {
            Workload::Graph(graph) if !variant.parallel.is_none() => rank_classes(graph, variant),
            Workload::Graph(_) | Workload::Recorded(_) => Vec::new(),
        };
        self.classes = Some((asked, classes.clone()));
        classes
    }

    /// Probes a process.
    fn probe_process(
        &mut self,
        (variant, process): (&Variant, Process),
        batch: u64,
        limit: Bytes,
        detail: Detail,
    ) -> Result<ProbeOutcome> {
        let began = Instant::now();
        let evidence = self.device().evidence;
        let program = self
            .programs
            .of_process(&self.cancel, variant, process)
            .map_err(|error| not_compiled(&error))?;
        let memory = CardMemory {
            available: self
                .memory
                .available
                .saturating_sub(for_others(&variant.parallel)),
            ..self.memory
        };
        let probe = Probe {
            program,
            batch,
            steps: match evidence {
                Evidence::Recorded => 1,
                Evidence::Simulated | Evidence::Probed | Evidence::Trained => STEPS,
            },
            detail,
        };
        let mut process = SimulatedProcess {
            memory,
            settings: &self.settings,
            limit,
            launcher: &mut self.launcher,
            evidence,
            cancel: &self.cancel,
        };
        let report = process.probe(&probe);
        let mut report = report.map_err(|Cancelled| EngineError::Cancelled)?;
        let mut uncertainties = self.uncertainties.clone();
        if let Some(estimates) = self.launcher.take_estimates() {
            if estimates.of_grouped_volumes {
                uncertainties.insert(Uncertainty::GroupedVolumes);
            } else if estimates.short_by > Bytes::ZERO {
                uncertainties.insert(Uncertainty::Workspaces(estimates.short_by));
            }
            report.notes.push(estimates.note());
        }
        uncertainties.extend(self.assumed.at(batch));
        if let Workload::Recorded(steps) = self.programs.workload() {
            if variant.accumulation > 1 && steps.accumulation == 1 {
                report.notes.push(
                    "recorded without accumulation: gradients that are kept from one micro-step to the next are added, \
                     as much as there are parameters, which may be more than is needed; record steps with \
                     accumulation for an exact answer"
                        .to_owned(),
                );
            }
            let largest = steps.batches.last().copied().unwrap_or(1);
            let doublings = (batch / largest).checked_ilog2().unwrap_or(0);
            if doublings > 1 {
                uncertainties.insert(Uncertainty::Far(doublings - 1));
            }
            let mut extrapolated = steps.uncertain_at_peak(batch);
            if let Some(ran) = self.ran {
                let distance = Uncertainty::distance(batch, ran.batch);
                uncertainties.remove(&Uncertainty::Driver);
                uncertainties.insert(Uncertainty::beyond(distance));
                if ran.short_by > Bytes::ZERO {
                    uncertainties.insert(Uncertainty::Short(ran.short_by));
                }
                extrapolated = part(extrapolated, distance);
            }
            if extrapolated > Bytes::ZERO {
                uncertainties.insert(Uncertainty::Extrapolated(extrapolated));
            }
        }
        Ok(ProbeOutcome {
            report,
            wall_ms: began.elapsed().as_secs_f64() * 1000.0,
            uncertainties: uncertainties.into_iter().collect(),
            headroom: VariantHeadroom::default(),
        })
    }
}

impl Runner for Simulator {
    fn device(&self) -> RunnerDevice<'_> {
        let (evidence, largest_recorded) = match self.programs.workload() {
            Workload::Graph(_) => (Evidence::Simulated, None),
            Workload::Recorded(steps) => (Evidence::Recorded, steps.batches.last().copied()),
        };
        RunnerDevice {
            name: &self.device,
            evidence,
            largest_recorded,
            is_lost: false,
        }
    }

    fn program(&mut self, variant: &Variant) -> Result<Option<&Program>> {
        let program = self.programs.of(variant, &self.cancel);
        program.map(Some).map_err(|error| not_compiled(&error))
    }

    fn probe(
        &mut self,
        variant: &Variant,
        batch: u64,
        limit: Bytes,
        detail: Detail,
    ) -> Result<ProbeOutcome> {
        let classes = self.classes(variant);
        let mut found = Vec::new();
        for class in &classes {
            let process = Process {
                rank: class.rank,
                ..Process::default()
            };
            // Of several ranks, only the one that binds tells its events.
            let of_all = match detail {
                Detail::Verdict => Detail::Verdict,
                Detail::Full | Detail::Events => Detail::Full,
            };
            let probed = self.probe_process((variant, process), batch, limit, of_all)?;
            let ends = probed.report.verdict == Verdict::OutOfMemory;
            found.push((class, probed));
            if ends {
                // For all: what others would need does not matter any more.
                break;
            }
        }
        let Some(mut probed) = together(found) else {
            return self.probe_process((variant, Process::default()), batch, limit, detail);
        };
        if detail != Detail::Verdict {
            let report = &mut probed.report;
            if variant.parallel.replaces_buckets() && report.verdict == Verdict::Fits {
                let process = Process {
                    rank: report.binding_rank.unwrap_or(0).into(),
                    buckets_go_early: true,
                };
                let other = (variant, process);
                let settled = self.probe_process(other, batch, limit, Detail::Verdict)?;
                report.without_overlap = Some(peaks(&settled.report));
            }
            let ranks = variant.parallel.world_size();
            let program = self.program(variant)?;
            report.communicated_bytes =
                program.map(|program| program.communicated_bytes(ranks, batch));
        }
        if detail == Detail::Events {
            let process = Process {
                rank: probed.report.binding_rank.unwrap_or(0).into(),
                ..Process::default()
            };
            let binding = self.probe_process((variant, process), batch, limit, detail)?;
            probed.report.events = binding.report.events;
        }
        Ok(probed)
    }

    fn step_time(&mut self, variant: &Variant, batch: u64, steps: u64) -> Result<StepTime> {
        if self.cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        if matches!(self.programs.workload(), Workload::Recorded(_)) {
            let why = "recordings say what was allocated, and not what was launched";
            return Ok(StepTime::Unknown(why));
        }
        if !variant.parallel.is_none() {
            return Ok(StepTime::Unknown(
                "what GPUs send each other is not timed in a simulation",
            ));
        }
        if variant.mode == Mode::Train && !variant.optimizer.is_timed() {
            return Ok(StepTime::Unknown("its optimizer was not timed"));
        }
        let Some(card) = self.card else {
            return Ok(StepTime::Unknown(
                "this card is not one whose speed is known",
            ));
        };
        let program = self
            .programs
            .of(variant, &self.cancel)
            .map_err(|error| not_compiled(&error))?;
        let more = steps.saturating_sub(program.micro_steps.into());
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        let time = longer_step(&program.timeline, &card.ceilings, batch, PACE, more);
        let from = if is_calibrated(card) {
            SpeedFrom::Calibrated
        } else {
            SpeedFrom::Estimated
        };
        Ok(match time {
            Some(time) => StepTime::Seconds(time.seconds, from),
            None => StepTime::Unknown("its steps do nothing that is timed"),
        })
    }
}

/// The probe of a job from those of its ranks: one that runs out of memory ends all. Nothing where none was run.
fn together(ranks: Vec<(&RankClass, ProbeOutcome)>) -> Option<ProbeOutcome> {
    let wall_ms = ranks.iter().map(|(_, probed)| probed.wall_ms).sum();
    let stands_for: Vec<String> = ranks.iter().map(|(class, _)| class.ranks()).collect();
    let mut uncertainties = Vec::new();
    let mut reports = Vec::new();
    for (class, probed) in ranks {
        uncertainties.extend(probed.uncertainties);
        let rank = u32::try_from(class.rank).unwrap_or(u32::MAX);
        reports.push((rank, probed.report));
    }
    uncertainties.sort_unstable();
    uncertainties.dedup();
    let of_all = match reports.as_slice() {
        // It is not worth naming.
        [(_, only)] => only.cause.clone(),
        _ => None,
    };
    let mut report = ProbeReport::of_ranks(reports)?;
    report.cause = of_all.or(report.cause);
    for (rank, stands_for) in report.ranks.iter_mut().zip(stands_for) {
        rank.stands_for = Some(stands_for);
    }
    Some(ProbeOutcome {
        report,
        wall_ms,
        uncertainties,
        headroom: VariantHeadroom::default(),
    })
}

/// The most memory of a probe's steps.
fn peaks(report: &ProbeReport) -> PeakMemory {
    PeakMemory {
        peak_allocated_bytes: report.peak_allocated_bytes,
        peak_reserved_bytes: report.peak_reserved_bytes,
    }
}

/// A part of so many bytes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a byte more or less does not matter"
)]
fn part(bytes: Bytes, share: f64) -> Bytes {
    Bytes((bytes.0 as f64 * share) as u64)
}

/// A variant that the model does not have is the request's fault.
pub(crate) fn not_compiled(error: &CompileError) -> EngineError {
    match error {
        CompileError::Cancelled => EngineError::Cancelled,
        _ => EngineError::Invalid(invalid_variant(error)),
    }
}
