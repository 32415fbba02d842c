//! The steps of a soak: their programs, one for each length and kind, and the order in which they run.

use std::collections::{BTreeSet, HashMap};

use super::{FailingStep, SoakStep, StepKind, on_a_gpu};
use crate::alloc::Settings;
use crate::device::sim::{Card, CardMemory, SimulatedLauncher};
use crate::fitting::Result;
use crate::fitting::engine::{card, lowered, room_on};
use crate::fitting::probing::simulator::not_compiled;
use crate::limits::Cancel;
use crate::model::{
    Checkpointing, Length, LengthCount, Lengths, Mode, Request, RequestError, SoakSchedule,
    Variant, Workload,
};
use crate::probe::{
    Cancelled, Detail, Evidence, Probe, ProbeReport, Shape, SimulatedProcess, Soak, SoakReport,
    Verdict,
};
use crate::program::Program;
use crate::units::Bytes;
use crate::validate::settings_in_force;
use crate::worker::Programs;
use crate::{EngineError, validate_batch};

/// Most allocations of all programs together: some 400 MiB.
const MOST_ALLOCATIONS: usize = 1 << 22;

/// The programs of one length.
struct LengthPrograms {
    training: Program,
    validation: Option<Program>,
}

/// What a soak runs.
pub(super) struct Steps {
    course: SoakSchedule,
    programs: Vec<LengthPrograms>,
    /// What generates, whatever the length of samples that are trained on.
    generation: Option<Program>,
    order: Vec<SoakStep>,
    /// The lengths, where there are several.
    lengths: Vec<Length>,
    memory: CardMemory,
    launcher: SimulatedLauncher,
    settings: Settings,
    limit: Bytes,
    cancel: Cancel,
}

impl Steps {
    /// Compiles the steps of a course for batches up to this one.
    pub(super) fn prepare(
        request: &Request,
        course: SoakSchedule,
        variant: &Variant,
        batch: u64,
        cancel: &Cancel,
    ) -> Result<Steps> {
        let card = card(request).ok_or_else(on_a_gpu)?;
        let workload = &lowered(request, cancel)?.workload;
        let settings = settings_in_force(request, workload)?;
        let memory = card.memory();
        let limit = room_on(request, &settings, memory).limit(&variant.parallel);
        let lengths = request.lengths.as_deref();
        let (questions, counts): (Vec<Request>, Vec<u64>) = match lengths {
            None => (vec![request.clone()], vec![1]),
            Some(lengths) => {
                let at = |one: &LengthCount| -> Result<(Request, u64), RequestError> {
                    Ok((request.at(one.length)?, one.count))
                };
                let all: Vec<_> = lengths.each.iter().map(at).collect::<Result<_, _>>()?;
                all.into_iter().unzip()
            }
        };
        let order = order(&course, &counts);
        let mut programs = Vec::new();
        let generation = course.generation.map(|generation| {
            let question = request.generating(&generation)?;
            let workload = lowered(&question, cancel)?.workload.clone();
            compile(
                &mut Programs::simulated(workload, card.capability),
                &without_gradients(variant),
                cancel,
            )
        });
        let generation = generation.transpose()?;
        let mut allocations = generation
            .as_ref()
            .map_or(0, |program| program.tensors.len());
        for question in questions {
            let of_length = compiled(&question, &course, variant, batch, card, cancel)?;
            allocations += of_length.training.tensors.len();
            let validation = of_length.validation.as_ref();
            allocations += validation.map_or(0, |program| program.tensors.len());
            if allocations > MOST_ALLOCATIONS {
                let problem = format!(
                    "the steps of {} lengths take more memory than is given them; name fewer lengths",
                    counts.len()
                );
                let at = lengths.map_or_else(|| "/model".to_owned(), Lengths::pointer);
                return Err(RequestError::at(at, problem).into());
            }
            programs.push(of_length);
        }
        Ok(Steps {
            course,
            programs,
            generation,
            order,
            lengths: lengths.map_or_else(Vec::new, |lengths| {
                lengths.each.iter().map(|one| one.length).collect()
            }),
            memory,
            launcher: SimulatedLauncher::of(Some(card)),
            settings,
            limit,
            cancel: cancel.clone(),
        })
    }

    /// What the allocator may reserve.
    pub(super) fn limit(&self) -> Bytes {
        self.limit
    }

    /// Whether each length is trained with somewhere, at the size of other steps: a short course does not come to all.
    pub(super) fn come_to_all(&self) -> bool {
        let mut left: BTreeSet<usize> = (0..self.programs.len()).collect();
        for SoakStep(length, kind) in &self.order {
            if *kind == StepKind::Step {
                left.remove(length);
            }
        }
        self.lengths.is_empty() || left.is_empty()
    }

    /// What each step is.
    pub(super) fn into_order(self) -> Vec<SoakStep> {
        self.order
    }

    /// What a step runs.
    fn program(&self, SoakStep(length, kind): SoakStep) -> &Program {
        let programs = &self.programs[length];
        let program = match kind {
            StepKind::Step | StepKind::Last => None,
            StepKind::Validation => programs.validation.as_ref(),
            StepKind::Generation => self.generation.as_ref(),
        };
        program.unwrap_or(&programs.training)
    }

    /// The step because of which a batch does not last: the one that runs out of memory, or that has to retry, or after which no more
    /// is reserved.
    pub(super) fn failing(&self, report: &SoakReport, batch: u64) -> Option<FailingStep> {
        let step = match report.verdict {
            Verdict::OutOfMemory | Verdict::Failed => report.steps + 1,
            Verdict::FitsWithRetries => report.first_retry?,
            Verdict::Fits => report.growth.last()?.step,
        };
        let turn = self.step_at(step)?;
        let of_prompts = turn.1 == StepKind::Generation;
        Some(FailingStep {
            step,
            kind: turn.1,
            batch: batch_of(&self.course, turn.1, batch),
            length: self.lengths.get(turn.0).copied().filter(|_| !of_prompts),
        })
    }

    /// What a step is, counted from 1.
    fn step_at(&self, step: u64) -> Option<SoakStep> {
        let place = usize::try_from(step.checked_sub(1)?).ok()?;
        self.order.get(place).copied()
    }

    /// That step in a process of its own.
    pub(super) fn alone(&self, failing: &FailingStep) -> Result<ProbeReport> {
        let turn = self.step_at(failing.step).unwrap_or(self.order[0]);
        let probe = Probe {
            program: self.program(turn),
            batch: failing.batch,
            steps: 1,
            detail: Detail::Full,
        };
        self.on_card(self.limit, |process| process.probe(&probe))
    }

    /// Runs all steps with this batch.
    pub(super) fn run(&self, batch: u64) -> Result<SoakReport> {
        self.run_within(self.limit, batch)
    }

    /// The same where the allocator may reserve so much.
    pub(super) fn run_within(&self, limit: Bytes, batch: u64) -> Result<SoakReport> {
        let mut shapes = Vec::new();
        let mut places = HashMap::new();
        let steps = self.order.iter().map(|SoakStep(length, kind)| {
            let batch = batch_of(&self.course, *kind, batch);
            let trains = matches!(kind, StepKind::Step | StepKind::Last);
            let of = if trains { StepKind::Step } else { *kind };
            *places.entry((*length, of, batch)).or_insert_with(|| {
                let program = self.program(SoakStep(*length, *kind));
                shapes.push(Shape { program, batch });
                shapes.len() - 1
            })
        });
        let steps: Vec<usize> = steps.collect();
        let soak = Soak {
            shapes: &shapes,
            steps: &steps,
        };
        self.on_card(limit, |process| process.soak(&soak))
    }

    /// Lets something run in a process of its own on the card.
    fn on_card<T>(
        &self,
        limit: Bytes,
        run: impl FnOnce(&mut SimulatedProcess<'_>) -> Result<T, Cancelled>,
    ) -> Result<T> {
        let mut process = SimulatedProcess {
            memory: self.memory,
            settings: &self.settings,
            limit,
            launcher: &mut self.launcher.clone(),
            evidence: Evidence::Simulated,
            cancel: &self.cancel,
        };
        run(&mut process).map_err(|Cancelled| EngineError::Cancelled)
    }
}

/// Samples of a step.
fn batch_of(course: &SoakSchedule, kind: StepKind, batch: u64) -> u64 {
    match kind {
        StepKind::Step => batch,
        StepKind::Last => course.last_batch.map_or(batch, |last| last.min(batch)),
        StepKind::Validation => course
            .validation
            .map_or(batch, |validation| validation.batch),
        StepKind::Generation => course
            .generation
            .map_or(batch, |generation| generation.batch),
    }
}

/// The steps over lengths that so many samples have.
fn order(course: &SoakSchedule, counts: &[u64]) -> Vec<SoakStep> {
    let mut draws = Draws::new(course.seed, counts);
    let mut order = Vec::new();
    let epoch = course.epoch();
    for step in 1..=course.steps {
        let ends = step % epoch == 0 || step == course.steps;
        let kind = if ends { StepKind::Last } else { StepKind::Step };
        order.push(SoakStep(draws.draw(), kind));
        let validation = course.validation.filter(|_| ends);
        for _ in 0..validation.map_or(0, |validation| validation.steps) {
            order.push(SoakStep(draws.draw(), StepKind::Validation));
        }
        let generation = course.generation.filter(|_| ends);
        for _ in 0..generation.map_or(0, |generation| generation.times) {
            // Its prompts have a length of their own.
            order.push(SoakStep(0, StepKind::Generation));
        }
    }
    order
}

/// Places that look random and are the same everywhere: the generator of Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014, with its constants.
struct Draws {
    state: u64,
    /// For each place the samples at it and before it.
    until: Vec<u128>,
}

impl Draws {
    fn new(seed: u64, counts: &[u64]) -> Draws {
        let sum = |sum: &mut u128, count: &u64| {
            *sum += u128::from(*count);
            Some(*sum)
        };
        Draws {
            state: seed,
            until: counts.iter().scan(0, sum).collect(),
        }
    }

    /// A place, each as likely as samples are at it.
    fn draw(&mut self) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mixed = mixed ^ (mixed >> 31);
        let all = self.until.last().copied().unwrap_or(1);
        // At most 512 lengths of 2^40 samples each: the product is below 2^113.
        let sample = (u128::from(mixed) * all) >> 64;
        self.until.partition_point(|until| *until <= sample)
    }
}

/// The programs that train and validate with one length.
fn compiled(
    request: &Request,
    course: &SoakSchedule,
    variant: &Variant,
    batch: u64,
    card: &Card,
    cancel: &Cancel,
) -> Result<LengthPrograms> {
    let lowered = lowered(request, cancel)?;
    let batches = [
        Some(batch),
        course.validation.map(|validation| validation.batch),
    ];
    for batch in batches.into_iter().flatten() {
        validate_batch(lowered, batch)?;
    }
    if matches!(lowered.workload, Workload::Recorded(_)) {
        let problem = "recordings are of the steps that were recorded; describe the model";
        return Err(RequestError::at("/model", problem).into());
    }
    let mut compiler = Programs::simulated(lowered.workload.clone(), card.capability);
    let training = compile(&mut compiler, variant, cancel)?;
    let validation = course
        .validation
        .map(|_| compile(&mut compiler, &without_gradients(variant), cancel));
    Ok(LengthPrograms {
        training,
        validation: validation.transpose()?,
    })
}

/// The same model without gradients.
fn without_gradients(variant: &Variant) -> Variant {
    Variant {
        mode: Mode::Inference,
        checkpointing: Checkpointing::None,
        accumulation: 1,
        clip_grad_norm: None,
        ..variant.clone()
    }
}

fn compile(compiler: &mut Programs, variant: &Variant, cancel: &Cancel) -> Result<Program> {
    let program = compiler
        .of(variant, cancel)
        .map_err(|error| not_compiled(&error))?;
    if program.last_step_is_closed() {
        return Ok(program.clone());
    }
    let problem = "its steps keep tensors from one to the next; no such training can be soaked yet";
    Err(RequestError::at("/training", problem).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_drawn_as_often_as_samples_have_them() {
        let mut draws = Draws::new(7, &[1, 0, 899, 100]);
        let mut counts = [0; 4];
        for _ in 0..100_000 {
            counts[draws.draw()] += 1;
        }

        assert_eq!(counts[1], 0);
        for (place, expected) in [(0, 100), (2, 89_900), (3, 10_000)] {
            let off = f64::from(counts[place] - expected).abs() / f64::from(expected);
            assert!(off < 0.3, "{counts:?}");
        }
    }
}
