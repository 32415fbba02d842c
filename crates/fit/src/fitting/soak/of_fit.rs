//! The soak of what a fit recommends.

use super::safety::{Safety, raise};
use super::steps::Steps;
use super::{SafeBatch, SoakResult, largest};
use crate::fitting::Result;
use crate::fitting::answer::{Entry, forget, ranked, recomputed_by};
use crate::fitting::engine::{card, lowered};
use crate::fitting::lengths::SAFE_AT_ALL;
use crate::fitting::recommendation::alternate_plan::alternate_plan;
use crate::fitting::recommendation::headroom::VariantHeadroom;
use crate::fitting::recommendation::recommend::UNCONFIRMED;
use crate::fitting::variant_search::{MOST_MICRO_STEPS, micro_steps};
use crate::model::{Request, SoakSchedule, Variant};
use crate::probe::{PeakMemory, SoakReport, Verdict};
use crate::search::headroom::least_for_unconfirmed;
use crate::search::{Plan, closest_plans, exact_plans};
use crate::units::{Bytes, Share};
use crate::{FitResult, Limit, LimitKind, Progress, Recommendation, Why, Work};

/// Most plans with a smaller micro-batch that are soaked for a target.
const MOST_PLANS: usize = 12;

/// Most variants that are soaked: each is a training of its own, of seconds for large models.
const MOST_VARIANTS: usize = 8;

/// Runs what is recommended for each variant through the request's course. What is recommended afterwards is the largest batch up to
/// it, or the plan for the target with the fewest steps, that lasts: without a retry, and with as much left free as a fit leaves.
/// The variants are ranked by that.
pub(crate) fn last(
    request: &Request,
    course: &SoakSchedule,
    result: &mut FitResult,
    work: &Work<'_>,
) -> Result<()> {
    if card(request).is_none() {
        return Ok(());
    }
    // Times are those of the length that decides, as before.
    let question = match &result.lengths {
        Some(table) => request.at(table.decides)?,
        None => request.alone(),
    };
    let workload = &lowered(&question, work.cancel)?.workload;
    let mut all = std::mem::take(&mut result.variants);
    let unsoaked = all.split_off(all.len().min(MOST_VARIANTS));
    let mut soaked: Vec<(Entry, Option<SoakResult>, usize)> = Vec::new();
    for (place, one) in all.into_iter().enumerate() {
        let mut soaking = SoakRunner {
            request,
            question: &question,
            course,
            variant: one.training.clone(),
            steps: None,
            failed: None,
            safety: Safety {
                longest: request.alone(),
                kept: VariantHeadroom::of(request, &one.training),
                cancel: work.cancel,
            },
            work,
        };
        let mut recommendation = one.recommendation;
        forget(&mut recommendation.notes);
        let report = match recommendation.micro_batch {
            0 => None,
            _ => Some(soaking.settle(&mut recommendation)?),
        };
        let entry = Entry {
            recomputed: recomputed_by(workload, &one.training),
            variant: one.training,
            recommendation,
        };
        soaked.push((entry, report, place));
    }
    // Optimizers are compared in the order of the request.
    crate::order::by_key(&mut soaked, |(entry, ..)| {
        let mut variants = request.variants.iter();
        variants.position(|variant| *variant == entry.variant)
    });
    let entries: Vec<Entry> = soaked.iter().map(|(entry, ..)| entry.clone()).collect();
    let (mut variants, places) = ranked(&entries, request.compare);
    for probe in &mut result.probes {
        let was = probe.variant as usize;
        let now = soaked.iter().position(|(.., place)| *place == was);
        let now = now.map_or(was, |entry| places[entry]);
        probe.variant = u32::try_from(now).unwrap_or(u32::MAX);
    }
    let best = places.iter().position(|place| *place == 0);
    result.soak = best.and_then(|best| soaked.swap_remove(best).1);
    if !unsoaked.is_empty() {
        let note = format!(
            "the best {MOST_VARIANTS} of {} variants were soaked; the others, which are last, are as safe as each step alone",
            variants.len() + unsoaked.len()
        );
        variants[0].recommendation.notes.push(note);
    }
    for mut one in unsoaked {
        // It cannot be compared with what lasts.
        one.pareto = None;
        forget(&mut one.recommendation.notes);
        let note = "not soaked: each step alone is safe".to_owned();
        one.recommendation.notes.push(note);
        one.rank = u32::try_from(variants.len() + 1).unwrap_or(u32::MAX);
        variants.push(one);
    }
    result.recommendation = variants[0].recommendation.clone();
    result.variants = variants;
    Ok(())
}

/// A plan that lasts, and what it takes at most.
type Lasting = (Plan, PeakMemory);

/// Soaks plans of one variant.
struct SoakRunner<'a> {
    request: &'a Request,
    /// The question about the length whose times are told.
    question: &'a Request,
    course: &'a SoakSchedule,
    variant: Variant,
    /// The steps of plans with so many micro-steps.
    steps: Option<(u32, Steps)>,
    /// The smallest batch that did not last.
    failed: Option<(Plan, SoakReport)>,
    safety: Safety<'a>,
    work: &'a Work<'a>,
}

impl SoakRunner<'_> {
    /// Soaks what is recommended, and recommends what lasts of it.
    fn settle(&mut self, best: &mut Recommendation) -> Result<SoakResult> {
        let asked = best.plan();
        let (report, lasts) = self.tried(asked)?;
        let found = match (lasts, self.request.target_batch) {
            (Some(peaks), _) => Some((asked, peaks)),
            (None, None) => self.below(&asked, 0)?,
            (None, Some(target)) => self.towards(target, &asked)?,
        };
        let mut soaked = SoakResult {
            batch: asked.micro_batch,
            limit_bytes: self.limit().0,
            safe: None,
            fails: None,
            report,
            order: Vec::new(),
        };
        let Some(lasting) = found else {
            self.nothing(best, &mut soaked)?;
            return Ok(soaked);
        };
        let (plan, mut peaks) = self.for_unconfirmed(lasting)?;
        if plan == asked
            && self
                .steps
                .as_ref()
                .is_some_and(|(_, steps)| !steps.come_to_all())
        {
            // Of the length that decides.
            raise(
                &mut peaks,
                best.peak_allocated_bytes,
                best.peak_reserved_bytes,
            );
        }
        soaked.safe = Some(SafeBatch::of(plan.micro_batch, peaks));
        if best.peak_allocated_bytes != peaks.peak_allocated_bytes {
            // It is of one step of the batch that was found alone.
            best.why = None;
        }
        let variant = self.of(micro_steps(plan.accumulation_steps));
        if let Some(simulated) = self.safety.alone(&variant, plan.micro_batch)? {
            best.headroom = simulated.document();
        }
        if plan == asked {
            best.peak_allocated_bytes = peaks.peak_allocated_bytes;
            best.peak_reserved_bytes = peaks.peak_reserved_bytes;
            let limit = Bytes(best.limit_bytes);
            best.headroom_bytes = limit.saturating_sub(Bytes(peaks.peak_reserved_bytes)).0;
            return Ok(soaked);
        }
        let steps = self.course.length();
        if lasting.0 != asked {
            best.notes.push(format!(
                "alone, batch {} is safe; over {steps} steps of all shapes in one process {} is",
                asked.micro_batch, lasting.0.micro_batch
            ));
            best.limited_by = format!("what {steps} steps of all shapes reserve");
        }
        if lasting.0 != plan {
            best.notes.push(UNCONFIRMED.to_owned());
        }
        let of = (self.question, &self.variant);
        alternate_plan(best, &plan, of, peaks, self.work.cancel)?;
        Ok(soaked)
    }

    /// The plan to recommend where one other key alone asks for more headroom: see the fit's
    /// [`for_unconfirmed`](crate::fitting::plan::for_unconfirmed).
    fn for_unconfirmed(&mut self, lasting: Lasting) -> Result<Lasting> {
        let (confirmed, limit) = (self.safety.kept.clone(), self.limit());
        let Some(all) = confirmed.with_unconfirmed(Share::ALL, limit) else {
            return Ok(lasting);
        };
        self.safety.kept = all;
        let plan = lasting.0;
        if let Some(same) = self.lasting(plan)? {
            return Ok(same);
        }
        let least = least_for_unconfirmed(plan.micro_batch);
        if self.request.target_batch.is_none()
            && let Some(fewer) = self.below(&plan, least.saturating_sub(1))?
        {
            return Ok(fewer);
        }
        self.safety.kept.clone_from(&confirmed);
        let is_free = self.request.target_batch.is_none();
        for micro_batch in (least..plan.micro_batch)
            .filter(|_| is_free)
            .take(MOST_PLANS)
        {
            if let Some(fewer) = self.lasting(plan.of_size(micro_batch))? {
                let reserved = Bytes(fewer.1.peak_reserved_bytes);
                self.safety.kept = confirmed.beside(reserved, limit);
                return Ok(fewer);
            }
        }
        Ok(lasting)
    }

    /// Recommends nothing, because of the step that does not last with the smallest batch that was tried.
    fn nothing(&self, best: &mut Recommendation, soaked: &mut SoakResult) -> Result<()> {
        best.notes.retain(|note| !note.starts_with(SAFE_AT_ALL));
        best.notes.push(format!(
            "nothing lasts: not even a batch of one goes through {} steps without a retry and leaves headroom",
            self.course.length()
        ));
        best.nothing();
        best.why = None;
        let (Some((plan, report)), Some((_, steps))) = (&self.failed, &self.steps) else {
            return Ok(());
        };
        best.peak_allocated_bytes = report.peak_allocated_bytes;
        best.peak_reserved_bytes = report.peak_reserved_bytes;
        let Some(failing) = steps.failing(report, plan.micro_batch) else {
            return Ok(());
        };
        let limit = Bytes(best.limit_bytes);
        let reserved = Bytes(report.peak_reserved_bytes);
        let step = failing.step;
        let (kind, what) = match report.verdict {
            Verdict::FitsWithRetries => (
                LimitKind::Fragmentation,
                format!("the allocator has to free its cache and retry in step {step}"),
            ),
            Verdict::Fits => (
                LimitKind::Headroom,
                format!(
                    "{reserved} of {limit} are reserved from step {step} on, which leaves too little free"
                ),
            ),
            Verdict::OutOfMemory | Verdict::Failed => {
                let kind = match self.request.memory_limit {
                    Some(_) => LimitKind::MemoryLimit,
                    None => LimitKind::Device,
                };
                let cause = report.cause.clone();
                (
                    kind,
                    cause.unwrap_or_else(|| format!("step {step} does not end")),
                )
            }
        };
        let text = format!("{failing}: {what}");
        // The same step in a process of its own, whose peak can be told in full.
        let alone = steps.alone(&failing)?;
        best.limited_by.clone_from(&text);
        best.why = Some(Why {
            at_peak: alone.at_peak,
            peak: alone.peak,
            limit: Limit {
                kind,
                batch: Some(failing.batch),
                explanation: text,
                shortage: alone.shortage,
            },
        });
        soaked.fails = Some(failing);
        Ok(())
    }

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

    fn run(&mut self, plan: &Plan) -> Result<SoakReport> {
        let micro_steps = micro_steps(plan.accumulation_steps);
        (self.work.progress)(Progress {
            probes_done: 0,
            batch: plan.micro_batch,
            note: format!(
                "{}: soaking batch {} for {} steps",
                self.variant,
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
                self.work.cancel,
            )?,
        };
        let report = steps.run(plan.micro_batch);
        self.steps = Some((micro_steps, steps));
        report
    }

    /// What comes of a plan, and what it takes where it lasts.
    fn tried(&mut self, plan: Plan) -> Result<(SoakReport, Option<PeakMemory>)> {
        let report = self.run(&plan)?;
        let variant = self.of(micro_steps(plan.accumulation_steps));
        let lasts = match &self.steps {
            Some((_, steps)) => self
                .safety
                .lasts(steps, &variant, plan.micro_batch, &report)?,
            None => None,
        };
        let is_smallest = self
            .failed
            .as_ref()
            .is_none_or(|(failed, _)| plan.micro_batch <= failed.micro_batch);
        if lasts.is_none() && is_smallest {
            self.failed = Some((plan, report.clone()));
        }
        Ok((report, lasts))
    }

    fn lasting(&mut self, plan: Plan) -> Result<Option<Lasting>> {
        let (_, lasts) = self.tried(plan)?;
        Ok(lasts.map(|peaks| (plan, peaks)))
    }

    /// The largest micro-batch between these, which do not last, with as many steps.
    fn below(&mut self, asked: &Plan, above: u64) -> Result<Option<Lasting>> {
        largest(above..asked.micro_batch, |micro_batch| {
            self.lasting(asked.of_size(micro_batch))
        })
    }

    /// The plan with the fewest steps that makes the target and lasts; where none does, the one that comes closest.
    fn towards(&mut self, target: u64, asked: &Plan) -> Result<Option<Lasting>> {
        let exact = exact_plans(target, 1).into_iter();
        let smaller = exact.filter(|plan| plan.micro_batch < asked.micro_batch);
        for plan in smaller.take(MOST_PLANS) {
            if let Some(found) = self.lasting(plan)? {
                return Ok(Some(found));
            }
        }
        let accumulating = Plan {
            accumulation_steps: u64::from(MOST_MICRO_STEPS),
            ..*asked
        };
        let Some((largest, _)) = self.below(&accumulating, 0)? else {
            return Ok(None);
        };
        let closest = closest_plans(target, 1, largest.micro_batch, largest.micro_batch);
        for plan in closest.into_iter().take(MOST_PLANS) {
            if let Some(found) = self.lasting(plan)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}
