//! The soak of what a fit recommends.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::steps::Steps;
use super::{SafeBatch, Soaked, largest};
use crate::jobs::fit::engine::simulated_probe;
use crate::jobs::fit::inquiry::{MOST_MICRO_STEPS, micro_steps};
use crate::jobs::{EngineError, FitResult, Progress, Recommendation};
use crate::model::{Course, Request, Variant};
use crate::probe::{SoakReport, Verdict};
use crate::search::{Plan, exact_plans, one_step, short_plans};
use crate::units::Bytes;

/// Most plans with a smaller micro-batch that are soaked for a target.
const MOST_PLANS: usize = 12;

/// Runs the recommended batch through the request's course. What is recommended afterwards is the largest batch up to it, or the plan
/// for the target with the fewest steps, that lasts: without a retry, and with as much left free as a fit leaves.
pub(in crate::jobs::fit) fn last(
    request: &Request,
    course: &Course,
    result: &mut FitResult,
    progress: &dyn Fn(Progress),
    cancel: &Arc<AtomicBool>,
) -> Result<(), EngineError> {
    let best = &result.recommendation;
    let Some(variant) = result.variants.first().map(|first| first.training.clone()) else {
        return Ok(());
    };
    if best.micro_batch == 0 {
        return Ok(());
    }
    let mut soaking = Soaking {
        request,
        course,
        variant,
        steps: None,
        progress,
        cancel,
    };
    let asked = Plan {
        micro_batch: best.micro_batch,
        accumulation_steps: best.accumulation_steps,
        global_batch: best.global_batch,
        shortfall: best.shortfall,
    };
    let report = soaking.run(&asked)?;
    let limit = soaking.limit();
    let found = if soaking.lasts(&asked, &report)? {
        Some((asked, report.clone()))
    } else {
        match request.target_batch {
            None => soaking.below(&asked)?,
            Some(target) => soaking.towards(target, &asked)?,
        }
    };
    let last = found
        .as_ref()
        .map(|(plan, report)| SafeBatch::of(plan.micro_batch, report));
    result.soak = Some(Soaked {
        batch: asked.micro_batch,
        limit_bytes: limit.0,
        safe: last,
        report,
        order: Vec::new(),
    });
    let changed = recommended(best, course, &asked, found);
    if let Some(first) = result.variants.first_mut() {
        first.recommendation = changed.clone();
    }
    result.recommendation = changed;
    Ok(())
}

/// The recommendation, once its batch was soaked.
fn recommended(
    best: &Recommendation,
    course: &Course,
    asked: &Plan,
    found: Option<(Plan, SoakReport)>,
) -> Recommendation {
    let mut best = best.clone();
    let limit = Bytes(best.limit_bytes);
    let Some((plan, report)) = found else {
        best.notes.push(format!(
            "nothing lasts: not even a batch of one goes through {} steps without a retry and leaves headroom",
            course.length()
        ));
        best.nothing();
        best.why = None;
        return best;
    };
    if plan != *asked {
        best.notes.push(format!(
            "alone, batch {} is safe; over {} steps of all shapes in one process {} is",
            asked.micro_batch,
            course.length(),
            plan.micro_batch
        ));
        // It was that of another batch.
        best.without_speed();
        best.limited_by = format!("what {} steps of all shapes reserve", course.length());
    }
    if best.peak_allocated_bytes != report.peak_allocated_bytes {
        // It is of one step of the batch that was found alone.
        best.why = None;
    }
    best.micro_batch = plan.micro_batch;
    best.accumulation_steps = plan.accumulation_steps;
    best.global_batch = plan.global_batch;
    best.shortfall = plan.shortfall;
    best.peak_allocated_bytes = report.peak_allocated_bytes;
    best.peak_reserved_bytes = report.peak_reserved_bytes;
    best.headroom_bytes = limit.saturating_sub(Bytes(report.peak_reserved_bytes)).0;
    best
}

/// Soaks plans of one variant.
struct Soaking<'a> {
    request: &'a Request,
    course: &'a Course,
    variant: Variant,
    /// The steps of plans with so many micro-steps.
    steps: Option<(u32, Steps)>,
    progress: &'a dyn Fn(Progress),
    cancel: &'a Arc<AtomicBool>,
}

impl Soaking<'_> {
    fn of(&self, micro_steps: u32) -> Variant {
        Variant {
            accumulation: micro_steps,
            ..self.variant.clone()
        }
    }

    fn limit(&self) -> Bytes {
        let steps = self.steps.as_ref();
        steps.map_or(Bytes::ZERO, |(_, steps)| steps.limit())
    }

    fn run(&mut self, plan: &Plan) -> Result<SoakReport, EngineError> {
        let micro_steps = micro_steps(plan.accumulation_steps);
        (self.progress)(Progress {
            probes_done: 0,
            batch: plan.micro_batch,
            note: format!(
                "soaking batch {} for {} steps",
                plan.micro_batch,
                self.course.length()
            ),
        });
        let steps = match self.steps.take() {
            Some((known, steps)) if known == micro_steps => steps,
            _other => Steps::prepare(
                self.request,
                self.course.clone(),
                &self.of(micro_steps),
                plan.micro_batch,
                self.cancel,
            )?,
        };
        let report = steps.run(plan.micro_batch);
        self.steps = Some((micro_steps, steps));
        report
    }

    /// Whether a plan went through without a retry, and left free what one of its steps alone would have to.
    fn lasts(&self, plan: &Plan, report: &SoakReport) -> Result<bool, EngineError> {
        if report.verdict != Verdict::Fits {
            return Ok(false);
        }
        let variant = self.of(micro_steps(plan.accumulation_steps));
        let longest = self.request.alone();
        let simulated = simulated_probe(&longest, &variant, plan.micro_batch, self.cancel)?;
        let headroom = simulated.map_or(Bytes::ZERO, |simulated| simulated.headroom());
        Ok(Bytes(report.peak_reserved_bytes) <= self.limit().saturating_sub(headroom))
    }

    fn tried(&mut self, plan: Plan) -> Result<Option<(Plan, SoakReport)>, EngineError> {
        let report = self.run(&plan)?;
        Ok(self.lasts(&plan, &report)?.then_some((plan, report)))
    }

    /// The largest micro-batch below one that does not last, with as many steps.
    fn below(&mut self, asked: &Plan) -> Result<Option<(Plan, SoakReport)>, EngineError> {
        let mut found = None;
        let of_one = asked.global_batch / asked.micro_batch.max(1);
        largest(asked.micro_batch, &mut |micro_batch| {
            let plan = Plan {
                micro_batch,
                global_batch: of_one * micro_batch,
                ..*asked
            };
            let tried = self.tried(plan)?;
            let safe = tried
                .as_ref()
                .map(|(plan, report)| SafeBatch::of(plan.micro_batch, report));
            found = tried.or(found.take());
            Ok(safe)
        })?;
        Ok(found)
    }

    /// The plan with the fewest steps that makes the target and lasts; where none does, the one that comes closest.
    fn towards(
        &mut self,
        target: u64,
        asked: &Plan,
    ) -> Result<Option<(Plan, SoakReport)>, EngineError> {
        let exact = exact_plans(target, 1).into_iter();
        let smaller = exact.filter(|plan| plan.micro_batch < asked.micro_batch);
        for plan in smaller.take(MOST_PLANS) {
            if let Some(found) = self.tried(plan)? {
                return Ok(Some(found));
            }
        }
        let accumulating = Plan {
            accumulation_steps: u64::from(MOST_MICRO_STEPS),
            ..*asked
        };
        let Some((largest, _)) = self.below(&accumulating)? else {
            return Ok(None);
        };
        let mut closest = short_plans(target, 1, largest.micro_batch);
        closest.extend(one_step(target, 1, largest.micro_batch));
        closest.sort_by_key(|plan| (plan.shortfall, plan.accumulation_steps));
        for plan in closest.into_iter().take(MOST_PLANS) {
            if let Some(found) = self.tried(plan)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}
