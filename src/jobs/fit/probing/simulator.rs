//! Simulated probes: the allocator on memory that is not there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::alloc::Settings;
use crate::compile::{CompileError, Recomputed, recomputed};
use crate::device::Capability;
use crate::device::sim::{CardMemory, SimulatedLauncher};
use crate::jobs::EngineError;
use crate::jobs::validate::invalid_variant;
use crate::model::{Variant, Workload};
use crate::probe::{Cancelled, Detail, Evidence, Outline, Probe, Resources, STEPS};
use crate::search::MAX_BATCH;
use crate::units::Bytes;
use crate::worker::Programs;

use super::prober::{Probed, Prober};
use crate::jobs::fit::uncertainty::{Assumed, Uncertainty, of_graph};

/// Probes on a simulated card.
pub(in crate::jobs::fit) struct Simulator {
    device: String,
    programs: Programs,
    settings: Settings,
    launcher: SimulatedLauncher,
    memory: CardMemory,
    /// What is assumed of the model and the card.
    uncertainties: BTreeSet<Uncertainty>,
    /// Becomes true when nobody wants another probe.
    cancel: Arc<AtomicBool>,
    assumed: Assumed,
    ceiling: u64,
    ran: Option<Ran>,
}

/// A recorded batch that ran, and what it reserved.
#[derive(Debug, Clone, Copy)]
struct Ran {
    batch: u64,
    /// By how much its prediction was too low.
    short_by: Bytes,
}

impl Simulator {
    pub(in crate::jobs::fit) fn new(
        device: String,
        workload: Workload,
        capability: Capability,
        settings: Settings,
        memory: CardMemory,
        cancel: &Arc<AtomicBool>,
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
            cancel: Arc::clone(cancel),
            ran: None,
        }
    }

    /// Takes in what a recorded batch reserved when it ran: little is uncertain of batches near it.
    pub(in crate::jobs::fit) fn ran(
        &mut self,
        variant: &Variant,
        (batch, reserved): (u64, Bytes),
        limit: Bytes,
    ) -> Result<(), EngineError> {
        let predicted = self.probe(variant, batch, limit, Detail::Verdict)?.report;
        let predicted = Bytes(predicted.peak_reserved_bytes);
        self.ran = Some(Ran {
            batch,
            short_by: reserved.saturating_sub(predicted),
        });
        Ok(())
    }

    /// The largest batch that may be an answer: the graph holds for no larger one.
    pub(in crate::jobs::fit) fn ceiling(&self) -> u64 {
        self.ceiling
    }

    /// The same for a card on which nothing was measured.
    pub(in crate::jobs::fit) fn transferred(mut self) -> Simulator {
        self.uncertainties.insert(Uncertainty::Card);
        self
    }
}

impl Prober for Simulator {
    fn probe(
        &mut self,
        variant: &Variant,
        batch: u64,
        limit: Bytes,
        detail: Detail,
    ) -> Result<Probed, EngineError> {
        let began = Instant::now();
        let evidence = self.evidence();
        let program = self
            .programs
            .of_unless(&self.cancel, variant)
            .map_err(|error| not_compiled(&error))?;
        let mut allocator = self.memory.allocator(&self.settings, limit);
        let probe = Probe {
            program,
            batch,
            steps: match evidence {
                Evidence::Recorded => 1,
                Evidence::Simulated | Evidence::Probed | Evidence::Trained => STEPS,
            },
            detail,
        };
        let mut resources = Resources {
            allocator: &mut allocator,
            launcher: &mut self.launcher,
            evidence,
        };
        let report = probe.run_unless(&self.cancel, &mut resources);
        let mut report = report.map_err(|Cancelled| EngineError::Cancelled)?;
        let mut uncertainties = self.uncertainties.clone();
        if let Some(estimates) = self.launcher.take_estimates() {
            uncertainties.insert(Uncertainty::Workspaces(estimates.short_by));
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
        Ok(Probed {
            report,
            wall_ms: began.elapsed().as_secs_f64() * 1000.0,
            uncertainties: uncertainties.into_iter().collect(),
        })
    }

    fn outline(&mut self, variant: &Variant, batch: u64) -> Result<Option<Outline>, EngineError> {
        let program = self
            .programs
            .of_unless(&self.cancel, variant)
            .map_err(|error| not_compiled(&error))?;
        Ok(Some(Outline::of(program, batch)))
    }

    fn recomputed(&self, variant: &Variant) -> Recomputed {
        match self.programs.workload() {
            Workload::Graph(graph) => recomputed(graph, variant),
            Workload::Recorded(_) => Recomputed::default(),
        }
    }

    fn largest_recorded(&self) -> Option<u64> {
        match self.programs.workload() {
            Workload::Graph(_) => None,
            Workload::Recorded(steps) => steps.batches.last().copied(),
        }
    }

    fn evidence(&self) -> Evidence {
        match self.programs.workload() {
            Workload::Graph(_) => Evidence::Simulated,
            Workload::Recorded(_) => Evidence::Recorded,
        }
    }

    fn device(&self) -> &str {
        &self.device
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
pub(in crate::jobs::fit) fn not_compiled(error: &CompileError) -> EngineError {
    match error {
        CompileError::Cancelled => EngineError::Cancelled,
        _ => EngineError::Invalid(invalid_variant(error)),
    }
}
