//! A fit for each of several lengths, and what follows for all of them together.
//!
//! Graphs have the batch as their only symbol, so each length is a graph and a program of its own: a compilation and a search,
//! one after the other, each as if it had been asked alone. What is tabled is the largest safe batch of each, whatever target or
//! objective the request has; those decide what is recommended of it.

mod safety;
mod table;

use std::collections::{BTreeMap, btree_map};

use super::engine::FitEngine;
use super::plan::BatchTarget;
use crate::fitting::Result;
use crate::fitting::recommendation::alternate_plan::{lowered_to, nothing_of};
use crate::limits::Cancel;
use crate::model::{Length, Lengths, Objective, Request, RequestError, Variant};
use crate::{EngineError, FitResult, LengthTable, LimitKind, Progress, Recommendation, Work};
use safety::{Outcome, Safety};

/// How the note begins that a batch was found which is safe at all lengths.
pub(super) const SAFE_AT_ALL: &str = "safe at all ";

/// The fits of each length: tables of any variant follow from them.
pub(super) struct EachLength<'a> {
    request: &'a Request,
    lengths: &'a Lengths,
    /// Of each length, without a target and an objective.
    fits: Vec<FitResult>,
    cancel: &'a Cancel,
}

/// Answers for each length, and for all of them.
pub(super) fn fit_each<'a>(
    engine: &FitEngine,
    request: &'a Request,
    lengths: &'a Lengths,
    work: &'a Work<'a>,
) -> Result<(FitResult, EachLength<'a>)> {
    let mut asking = LengthRunner {
        engine,
        lengths,
        work,
        done: 0,
    };
    let mut fits = Vec::new();
    for place in 0..lengths.each.len() {
        let mut question = at(request, lengths, lengths.each[place].length)?;
        question.target_batch = None;
        question.objective = Objective::LargestBatch;
        fits.push(asking.fit(&question, place)?);
    }
    let each = EachLength {
        request,
        lengths,
        fits,
        cancel: work.cancel,
    };
    let (decides, training, mut result) = each.deciding(&mut asking)?;
    first(&mut result, &training);
    let mut safety = Safety::new(request, lengths, training.clone(), work.cancel);
    let table = each.table(decides, &mut safety)?;
    each.settle(&table, &mut safety, &mut result.recommendation)?;
    if let Some(first) = result.variants.first_mut() {
        first.recommendation = result.recommendation.clone();
    }
    result.lengths = Some(table);
    Ok((result, each))
}

/// Asks about one length after the other.
struct LengthRunner<'a> {
    engine: &'a FitEngine,
    lengths: &'a Lengths,
    work: &'a Work<'a>,
    /// Probes that were run before.
    done: u32,
}

impl LengthRunner<'_> {
    /// The answer to a question about the length at a place.
    fn fit(&mut self, question: &Request, place: usize) -> Result<FitResult> {
        let length = self.lengths.each[place].length;
        let probes = std::cell::Cell::new(0);
        let told = |inner: Progress| {
            probes.set(inner.probes_done);
            (self.work.progress)(Progress {
                probes_done: self.done + inner.probes_done,
                note: format!(
                    "{} of {}, {} {length}: {}",
                    place + 1,
                    self.lengths.each.len(),
                    self.lengths.of.name(),
                    inner.note
                ),
                ..inner
            });
        };
        let fit = {
            let work = Work {
                progress: &told,
                ..*self.work
            };
            self.engine.answer(question, &work)
        };
        self.done += probes.get();
        fit.map_err(|error| about(error, self.lengths, length))
    }
}

impl EachLength<'_> {
    /// Which length decides, with which variant, and what the request is answered with there. It is the one whose batch is smallest, of
    /// equal ones the longest. All lengths train alike, so the variant that is best there is that of all.
    fn deciding(&self, asking: &mut LengthRunner<'_>) -> Result<(usize, Variant, FitResult)> {
        let has_wish = self.request.target_batch.is_some()
            || self.request.objective != Objective::LargestBatch;
        let mut answers: BTreeMap<usize, FitResult> = BTreeMap::new();
        let mut answer = |place: usize| -> Result<FitResult> {
            Ok(match answers.entry(place) {
                btree_map::Entry::Occupied(known) => known.get().clone(),
                btree_map::Entry::Vacant(unknown) => {
                    let found = if has_wish {
                        let length = self.lengths.each[place].length;
                        asking.fit(&at(self.request, self.lengths, length)?, place)?
                    } else {
                        self.fits[place].clone()
                    };
                    unknown.insert(found).clone()
                }
            })
        };
        let longest = self.fits.len() - 1;
        let mut variant = best(&self.fits[longest]);
        // Each time around another variant may be the best where the batch is smallest; there are few.
        for _ in 0..self.fits[longest].variants.len() {
            let there = best(&answer(self.smallest(&variant))?);
            if there == variant {
                break;
            }
            variant = there;
        }
        let decides = self.smallest(&variant);
        let found = answer(decides)?;
        Ok((decides, variant, found))
    }

    /// Where the batch of a variant is smallest, of equal ones the longest.
    fn smallest(&self, variant: &Variant) -> usize {
        let batch = |place: &usize| of_variant(&self.fits[*place], variant).micro_batch;
        let longest_first = (0..self.fits.len()).rev();
        longest_first.min_by_key(batch).unwrap_or(0)
    }

    /// The table of a variant that was not the best when the table was made.
    pub(super) fn table_of(&self, variant: &Variant) -> Result<LengthTable> {
        let mut safety = Safety::new(self.request, self.lengths, variant.clone(), self.cancel);
        self.table(self.smallest(variant), &mut safety)
    }

    /// Lowers what is recommended until it leaves headroom at all lengths, and says which of them decides.
    fn settle(
        &self,
        table: &LengthTable,
        safety: &mut Safety<'_>,
        best: &mut Recommendation,
    ) -> Result<()> {
        let name = self.lengths.of.name();
        let decides = table.decides;
        if best.micro_batch == 0 {
            let of_host = best
                .why
                .as_ref()
                .is_some_and(|why| why.limit.kind == LimitKind::Host);
            best.notes.push(if of_host {
                format!("what is offloaded is as much at every {name}, so that no length fits")
            } else {
                format!("of {name} {decides} nothing fits, so that no batch is safe at all lengths")
            });
            return Ok(());
        }
        let target = BatchTarget::of(self.request, &table.training);
        let asked = best.plan();
        safety.holds(decides, asked.accumulation_steps, asked.micro_batch);
        let outcome = safety.plan(&asked, target)?;
        let all = table.rows.len();
        match outcome {
            // A real card is not asked for more than the largest batches.
            Outcome::Unasked => best.notes.push(format!(
                "no more than is safe at any of {all} lengths; {name} {decides} decides"
            )),
            Outcome::Holds(plan) if plan == asked => best.notes.push(format!(
                "{SAFE_AT_ALL}{all} lengths; {name} {decides} decides"
            )),
            Outcome::Holds(plan) => {
                let refused = safety.refused_plan().unwrap_or(decides);
                let question = at(self.request, self.lengths, decides)?;
                let why = format!(
                    "{name} {refused}, where {} samples at a time leave too little free",
                    asked.micro_batch
                );
                let of = (&question, &table.training);
                lowered_to(best, &plan, of, why, self.cancel)?;
                best.notes.push(format!(
                    "{SAFE_AT_ALL}{all} lengths; {name} {refused} decides: memory is not monotone in the batch, and {} is not safe there",
                    asked.micro_batch
                ));
            }
            Outcome::Nothing => {
                let refused = safety.refused_plan().unwrap_or(decides);
                nothing_of(
                    best,
                    format!(
                        "{name} {refused}: no batch was found that leaves headroom at all {all} lengths"
                    ),
                );
            }
        }
        Ok(())
    }
}

/// The question about one length.
pub(super) fn at(request: &Request, lengths: &Lengths, length: Length) -> Result<Request> {
    let question = request.at(length);
    question.map_err(|invalid| about(EngineError::Invalid(invalid), lengths, length))
}

/// An error, with the length that it is about.
fn about(error: EngineError, lengths: &Lengths, length: Length) -> EngineError {
    let of_length = |invalid: &RequestError| {
        invalid.pointer.starts_with("/model") || invalid.pointer.starts_with("/lengths")
    };
    match error {
        EngineError::Invalid(invalid) if of_length(&invalid) && lengths.each.len() > 1 => {
            EngineError::Invalid(RequestError {
                pointer: lengths.pointer(),
                problem: format!("{} {length}: {}", lengths.of.name(), invalid.problem),
                ..invalid
            })
        }
        other => other,
    }
}

/// The best variant of a fit.
fn best(fit: &FitResult) -> Variant {
    let first = fit.variants.first();
    first
        .map(|first| first.training.clone())
        .unwrap_or_default()
}

/// What a fit recommends for a variant.
fn of_variant<'f>(fit: &'f FitResult, variant: &Variant) -> &'f Recommendation {
    let mut all = fit.variants.iter();
    let found = all.find(|one| one.training == *variant);
    found.map_or(&fit.recommendation, |one| &one.recommendation)
}

/// Puts a variant first.
fn first(result: &mut FitResult, variant: &Variant) {
    let place = result
        .variants
        .iter()
        .position(|one| one.training == *variant);
    if let Some(place @ 1..) = place {
        let moved = result.variants.remove(place);
        result.recommendation = moved.recommendation.clone();
        result.variants.insert(0, moved);
        for (rank, one) in (1..).zip(&mut result.variants) {
            one.rank = rank;
        }
        for probe in &mut result.probes {
            let was = probe.variant as usize;
            if was == place {
                probe.variant = 0;
            } else if was < place {
                probe.variant += 1;
            }
        }
    }
}
