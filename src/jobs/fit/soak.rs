//! Whether a batch stays safe over many steps of different lengths, with short batches and validation between epochs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use utoipa::ToSchema;

use super::engine::{lowered, room_on};
use super::probing::simulator::not_compiled;
use crate::device::sim::{Card, SimulatedLauncher};
use crate::jobs::validate::{settings_in_force, validate_single};
use crate::jobs::{EngineError, validate_batch};
use crate::model::{Checkpointing, DeviceChoice, Invalid, Mode, Request, Variant, Workload};
use crate::probe::{
    Cancelled, Evidence, LARGEST_BATCH, Resources, Shape, Soak, SoakReport, Verdict,
};
use crate::program::Program;
use crate::worker::Programs;

/// Most steps of a soak, validation included: some minutes for the largest models.
pub const MOST_SOAKED: u64 = 100_000;

/// Most lengths that steps may have.
pub const MOST_SOAKED_LENGTHS: usize = 512;

/// Most allocations of all programs together: some 400 MiB.
const MOST_ALLOCATIONS: usize = 1 << 22;

/// What a training is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Samples per micro-step.
    pub batch: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// Optimizer steps of an epoch; all of them where it is `None`.
    pub epoch: Option<u64>,
    /// Samples of the last step of each epoch, where they are fewer.
    pub last_batch: Option<u64>,
    /// What runs after each epoch.
    pub validation: Option<Validation>,
    /// By which lengths are drawn, each as likely as any other.
    pub seed: u64,
}

/// A loop without gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validation {
    /// Samples at a time.
    pub batch: u64,
    /// How often.
    pub steps: u64,
}

/// What came of a soak, and the batch that it leaves.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Soaked {
    /// Samples per micro-step.
    pub batch: u64,
    /// What the allocator may reserve.
    pub limit_bytes: u64,
    /// What came of that batch.
    pub report: SoakReport,
    /// The largest batch up to that one which goes through all steps without a retry, with what it reserves at most; null where
    /// none does.
    pub safe: Option<SafeBatch>,
    /// What each step was.
    pub order: Vec<Turn>,
}

/// The place of a step's length in the list of lengths, and what kind of step it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
pub struct Turn(usize, TurnKind);

/// Kinds of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnKind {
    /// An optimizer step.
    Step,
    /// The last optimizer step of an epoch.
    Last,
    /// A batch of validation.
    Validation,
}

/// A batch that went through a soak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct SafeBatch {
    /// Samples per micro-step.
    pub batch: u64,
    /// Most bytes reserved.
    pub peak_reserved_bytes: u64,
}

impl Schedule {
    /// The steps over so many lengths.
    fn order(&self, lengths: usize) -> Vec<Turn> {
        let mut draws = Draws(self.seed);
        let mut order = Vec::new();
        let epoch = self.epoch.unwrap_or(self.steps).max(1);
        for step in 1..=self.steps {
            let ends = step % epoch == 0 || step == self.steps;
            let kind = if ends { TurnKind::Last } else { TurnKind::Step };
            order.push(Turn(draws.below(lengths), kind));
            let validation = self.validation.filter(|_| ends);
            for _ in 0..validation.map_or(0, |validation| validation.steps) {
                order.push(Turn(draws.below(lengths), TurnKind::Validation));
            }
        }
        order
    }

    /// How many steps there are, validation included.
    fn length(&self) -> u64 {
        let epoch = self.epoch.unwrap_or(self.steps).max(1);
        let validation = self.validation.map_or(0, |validation| validation.steps);
        let epochs = self.steps.div_ceil(epoch);
        self.steps.saturating_add(epochs.saturating_mul(validation))
    }

    fn batch_of(&self, kind: TurnKind, batch: u64) -> u64 {
        match kind {
            TurnKind::Step => batch,
            TurnKind::Last => self.last_batch.map_or(batch, |last| last.min(batch)),
            TurnKind::Validation => self.validation.map_or(batch, |validation| validation.batch),
        }
    }
}

/// Numbers that look random and are the same everywhere: the generator of Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014, with its constants.
struct Draws(u64);

impl Draws {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mixed = mixed ^ (mixed >> 31);
        let place = (u128::from(mixed) * count as u128) >> 64;
        usize::try_from(place).expect("less than a count in memory")
    }
}

/// Runs a schedule over `questions`: one model on one simulated card, at the lengths that its steps have.
pub fn soak(
    questions: &[Request],
    schedule: &Schedule,
    cancel: &Arc<AtomicBool>,
) -> Result<Soaked, EngineError> {
    let invalid =
        |pointer: &str, problem: String| EngineError::Invalid(Invalid::at(pointer, problem));
    let Some(first) = questions.first() else {
        return Err(invalid("/model", "there is nothing to train".to_owned()));
    };
    for request in questions {
        validate_single(request).map_err(EngineError::Invalid)?;
    }
    let variant = &first.variants[0];
    if variant.mode != Mode::Train || variant.recorded || !variant.parallel.is_none() {
        let problem = "a soak is of the training of one process whose model is described";
        return Err(invalid("/training", problem.to_owned()));
    }
    let card = match &first.device {
        DeviceChoice::Sim(name) => Card::find(name),
        DeviceChoice::Auto | DeviceChoice::Cuda(_) => None,
    };
    let Some(card) = card else {
        let problem = "a soak is of a simulated card; name one, such as sim:h200";
        return Err(invalid("/device", problem.to_owned()));
    };
    if schedule.length() > MOST_SOAKED || questions.len() > MOST_SOAKED_LENGTHS {
        let problem = format!(
            "{} steps of {} lengths are more than the {MOST_SOAKED} of {MOST_SOAKED_LENGTHS} that are run",
            schedule.length(),
            questions.len()
        );
        return Err(invalid("", problem));
    }
    let lowered_first = lowered(first, cancel)?;
    let settings =
        settings_in_force(first, &lowered_first.workload).map_err(EngineError::Invalid)?;
    let memory = card.memory();
    let limit = room_on(first, &settings, memory).limit(&variant.parallel);
    let order = schedule.order(questions.len());
    let programs = compiled(questions, schedule, card, cancel)?;
    let run = |batch: u64| -> Result<SoakReport, EngineError> {
        let mut shapes = Vec::new();
        let mut places = HashMap::new();
        let steps = order.iter().map(|Turn(length, kind)| {
            let batch = schedule.batch_of(*kind, batch);
            let is_validation = *kind == TurnKind::Validation;
            *places
                .entry((*length, is_validation, batch))
                .or_insert_with(|| {
                    let (training, validation) = &programs[*length];
                    let program = match validation {
                        Some(validation) if is_validation => validation,
                        _ => training,
                    };
                    shapes.push(Shape { program, batch });
                    shapes.len() - 1
                })
        });
        let steps: Vec<usize> = steps.collect();
        let soak = Soak {
            shapes: &shapes,
            steps: &steps,
        };
        let mut allocator = memory.allocator(&settings, limit);
        let mut launcher = SimulatedLauncher::default();
        let mut resources = Resources {
            allocator: &mut allocator,
            launcher: &mut launcher,
            evidence: Evidence::Simulated,
        };
        soak.run_unless(cancel, &mut resources)
            .map_err(|Cancelled| EngineError::Cancelled)
    };
    let report = run(schedule.batch)?;
    let safe = safe(schedule.batch, &report, &run)?;
    Ok(Soaked {
        batch: schedule.batch,
        limit_bytes: limit.0,
        report,
        safe,
        order,
    })
}

/// The largest batch without retries: all smaller ones are taken to go through where a larger one does.
fn safe(
    batch: u64,
    report: &SoakReport,
    run: &dyn Fn(u64) -> Result<SoakReport, EngineError>,
) -> Result<Option<SafeBatch>, EngineError> {
    let of = |batch: u64, report: &SoakReport| SafeBatch {
        batch,
        peak_reserved_bytes: report.peak_reserved_bytes,
    };
    if report.verdict == Verdict::Fits {
        return Ok(Some(of(batch, report)));
    }
    let mut found = None;
    let (mut fits, mut too_large) = (0, batch);
    while too_large - fits > 1 {
        let middle = fits + (too_large - fits) / 2;
        let report = run(middle)?;
        if report.verdict == Verdict::Fits {
            found = Some(of(middle, &report));
            fits = middle;
        } else {
            too_large = middle;
        }
    }
    Ok(found)
}

/// For each length the program that trains, and the one that validates.
fn compiled(
    questions: &[Request],
    schedule: &Schedule,
    card: &Card,
    cancel: &Arc<AtomicBool>,
) -> Result<Vec<(Program, Option<Program>)>, EngineError> {
    let mut programs = Vec::new();
    let mut allocations = 0;
    for request in questions {
        let lowered = lowered(request, cancel)?;
        let batches = [
            Some(schedule.batch),
            schedule.validation.map(|validation| validation.batch),
        ];
        for batch in batches.into_iter().flatten() {
            validate_batch(lowered, batch.min(LARGEST_BATCH)).map_err(EngineError::Invalid)?;
        }
        if matches!(lowered.workload, Workload::Recorded(_)) {
            let problem = "recordings are of the steps that were recorded; describe the model";
            return Err(EngineError::Invalid(Invalid::at("/model", problem)));
        }
        let mut compiler = Programs::simulated(lowered.workload.clone(), card.capability);
        let variant = &request.variants[0];
        let mut compile = |variant: &Variant| {
            let program = compiler
                .of_unless(cancel, variant)
                .map_err(|error| not_compiled(&error))?;
            if program.last_step_is_closed() {
                return Ok(program.clone());
            }
            let problem =
                "its steps keep tensors from one to the next; no such training can be soaked yet";
            Err(EngineError::Invalid(Invalid::at("/training", problem)))
        };
        let training = compile(variant)?;
        let validation = schedule.validation.map(|_| {
            compile(&Variant {
                mode: Mode::Inference,
                checkpointing: Checkpointing::None,
                accumulation: 1,
                clip_grad_norm: None,
                ..variant.clone()
            })
        });
        let validation = validation.transpose()?;
        allocations += training.tensors.len();
        allocations += validation
            .as_ref()
            .map_or(0, |program| program.tensors.len());
        if allocations > MOST_ALLOCATIONS {
            let problem = format!(
                "the steps of {} lengths take more memory than is given them; name fewer lengths",
                questions.len()
            );
            return Err(EngineError::Invalid(Invalid::at("/model/seq_len", problem)));
        }
        programs.push((training, validation));
    }
    Ok(programs)
}
