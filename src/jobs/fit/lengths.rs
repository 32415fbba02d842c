//! A fit for each of several lengths, and what follows for all of them together.
//!
//! Graphs have the batch as their only symbol, so each length is a graph and a program of its own: a compilation and a search,
//! one after the other, each as if it had been asked alone.

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::engine::{FitEngine, simulated_probe};
use super::inquiry::micro_steps;
use crate::jobs::{
    Bucket, Engine as _, EngineError, FitResult, LengthRow, LengthTable, Progress, Recommendation,
    VariantResult,
};
use crate::model::{Counted, Invalid, Length, LengthOf, Lengths, Request, Variant};
use crate::search::{OfLength, buckets, budget, padding};

/// Into how many buckets lengths are put where the request does not say it.
const USUAL_BUCKETS: u64 = 4;

/// Most recommendations of variants that are listed for all lengths together.
const MOST_VARIANTS: usize = 256;

/// How often a budget is lowered because a smaller batch than the largest safe one leaves no headroom. See Note [Holes] in
/// `search`.
const MOST_LOWERED: usize = 64;

/// Answers for each length, and for all of them.
pub(super) fn fit_each(
    engine: &FitEngine,
    request: &Request,
    lengths: &Lengths,
    progress: &dyn Fn(Progress),
    cancel: &Arc<AtomicBool>,
) -> Result<FitResult, EngineError> {
    let mut fits = Vec::new();
    let mut done = 0;
    for (number, one) in (1..).zip(&lengths.each) {
        let question = at(request, lengths, one.length)?;
        let probes = Cell::new(0);
        let told = |inner: Progress| {
            probes.set(inner.probes_done);
            progress(Progress {
                probes_done: done + inner.probes_done,
                note: format!(
                    "{number} of {}, {} {}: {}",
                    lengths.each.len(),
                    lengths.of.name(),
                    one.length,
                    inner.note
                ),
                ..inner
            });
        };
        let fit = engine.fit(&question, &told, cancel);
        fits.push(fit.map_err(|error| about(error, lengths, one.length))?);
        done += probes.get();
    }
    let (decides, training) = deciding(&fits);
    let mut table = table(lengths, &fits, &training, decides);
    let run = |row: &LengthRow, batch: u64| {
        if cancel.load(Ordering::Relaxed) {
            return Err(EngineError::Cancelled);
        }
        let question = at(request, lengths, row.length)?;
        let steps = row.recommendation.accumulation_steps;
        let variant = Variant {
            accumulation: micro_steps(steps.max(1)),
            ..training.clone()
        };
        let simulated = simulated_probe(&question, &variant, batch, cancel)?;
        Ok(simulated.map(|simulated| simulated.leaves_headroom()))
    };
    lower(&mut table, &run)?;
    let mut result = fits.swap_remove(decides);
    first(&mut result, &training);
    let best = &mut result.recommendation;
    let (name, decides) = (lengths.of.name(), table.decides);
    best.notes.push(match best.micro_batch {
        0 => format!("of {name} {decides} nothing fits, so that no batch is safe at all lengths"),
        _ => format!(
            "safe at all {} lengths; {name} {decides} decides",
            table.rows.len()
        ),
    });
    if let Some(first) = result.variants.first_mut() {
        first.recommendation = best.clone();
    }
    result.lengths = Some(table);
    Ok(result)
}

/// The question about one length.
fn at(request: &Request, lengths: &Lengths, length: Length) -> Result<Request, EngineError> {
    let question = request.at(length);
    question.map_err(|invalid| about(EngineError::Invalid(invalid), lengths, length))
}

/// An error, with the length that it is about.
fn about(error: EngineError, lengths: &Lengths, length: Length) -> EngineError {
    let of_length = |invalid: &Invalid| {
        invalid.pointer.starts_with("/model") || invalid.pointer.starts_with("/lengths")
    };
    match error {
        EngineError::Invalid(invalid) if of_length(&invalid) && lengths.each.len() > 1 => {
            EngineError::Invalid(Invalid {
                pointer: lengths.pointer(),
                problem: format!("{} {length}: {}", lengths.of.name(), invalid.problem),
                ..invalid
            })
        }
        other => other,
    }
}

/// Which fit decides, and with which variant: the one whose batch is smallest, of equal ones the longest. All lengths train
/// alike, so the variant that is best there is that of all.
fn deciding(fits: &[FitResult]) -> (usize, Variant) {
    let best = |fit: &FitResult| {
        let first = fit.variants.first();
        first
            .map(|first| first.training.clone())
            .unwrap_or_default()
    };
    let smallest = |variant: &Variant| {
        let batch = |index: &usize| of_variant(&fits[*index], variant).micro_batch;
        let longest_first = (0..fits.len()).rev();
        longest_first.min_by_key(batch).unwrap_or(0)
    };
    let mut decides = fits.len() - 1;
    let mut variant = best(&fits[decides]);
    // Each time around another variant may be the best where the batch is smallest; there are few.
    for _ in 0..fits[decides].variants.len() {
        decides = smallest(&variant);
        let there = best(&fits[decides]);
        if there == variant {
            break;
        }
        variant = there;
    }
    (decides, variant)
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

fn table(lengths: &Lengths, fits: &[FitResult], training: &Variant, decides: usize) -> LengthTable {
    let notes = &of_variant(&fits[decides], training).notes;
    let lists_variants = fits.iter().map(|fit| fit.variants.len()).sum::<usize>() <= MOST_VARIANTS;
    let without = |recommendation: &Recommendation| {
        let mut short = recommendation.clone();
        short.notes.retain(|note| !notes.contains(note));
        // As long as all the rest; a fit of that length alone says it.
        short.why = None;
        short
    };
    let row = |(one, fit): (&Counted, &FitResult)| {
        let recommendation = without(of_variant(fit, training));
        let units = one.length.units(lengths.of);
        LengthRow {
            length: one.length,
            units,
            count: one.count,
            batch_units: units.saturating_mul(recommendation.micro_batch),
            recommendation,
            within_budget: None,
            variants: match fit.variants.as_slice() {
                several @ [_, _, ..] if lists_variants => several
                    .iter()
                    .map(|variant| VariantResult {
                        recommendation: without(&variant.recommendation),
                        ..variant.clone()
                    })
                    .collect(),
                _ => Vec::new(),
            },
        }
    };
    let rows: Vec<LengthRow> = lengths.each.iter().zip(fits).map(row).collect();
    let all: Vec<OfLength> = rows.iter().map(of_length).collect();
    let most = lengths.buckets.unwrap_or(USUAL_BUCKETS);
    let nests = nests(lengths);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let ranges: Vec<Range<usize>> = if nests {
        buckets(&all, most)
    } else {
        // Nothing is padded to what does not hold it.
        (0..all.len()).map(|index| index..index + 1).collect()
    };
    let bucket = |range: Range<usize>| {
        let (rows, all) = (&rows[range.clone()], &all[range]);
        let count = all
            .iter()
            .fold(0_u64, |sum, one| sum.saturating_add(one.count));
        let micro_batch = all.iter().map(|one| one.batch).min().unwrap_or(0);
        Bucket {
            lengths: [rows[0].length, rows[rows.len() - 1].length],
            count,
            micro_batch,
            batches: (micro_batch > 0).then(|| count.div_ceil(micro_batch)),
            padding: padding(all),
        }
    };
    let buckets = ranges.into_iter().map(bucket).collect();
    let mut table = LengthTable {
        of: lengths.of,
        training: training.clone(),
        decides: lengths.each[decides].length,
        budget: None,
        budget_was_run: false,
        buckets,
        padding_of_one_bucket: nests.then(|| padding(&all)),
        rows,
    };
    allow(&mut table, budget(&all));
    table
}

fn of_length(row: &LengthRow) -> OfLength {
    OfLength {
        units: row.units,
        count: row.count,
        batch: row.recommendation.micro_batch,
    }
}

/// Whether each size holds the one before it, so that its samples can be padded to it.
fn nests(lengths: &Lengths) -> bool {
    let holds = |small: Length, large: Length| {
        let pairs = small.sides().into_iter().zip(large.sides());
        lengths.of == LengthOf::SeqLen || pairs.into_iter().all(|(small, large)| small <= large)
    };
    let mut pairs = lengths.each.windows(2);
    pairs.all(|pair| holds(pair[0].length, pair[1].length))
}

/// Sets the budget, and what it allows at each length.
fn allow(table: &mut LengthTable, budget: Option<u64>) {
    table.budget = budget;
    for row in &mut table.rows {
        row.within_budget = budget.map(|budget| budget / row.units.max(1));
    }
}

/// Whether a batch of a row's length does, where simulation can be asked.
type LeavesHeadroom<'a> = dyn Fn(&LengthRow, u64) -> Result<Option<bool>, EngineError> + 'a;

/// Lowers the budget until all batches that it allows leave headroom, as far as simulation can be asked: memory is not monotone in
/// the batch.
fn lower(table: &mut LengthTable, leaves_headroom: &LeavesHeadroom<'_>) -> Result<(), EngineError> {
    let mut safe: HashSet<(Length, u64)> = HashSet::new();
    'budgets: for _ in 0..MOST_LOWERED {
        for row in &table.rows {
            let Some(batch) = row.within_budget else {
                return Ok(());
            };
            let is_known = batch == 0
                || batch == row.recommendation.micro_batch
                || safe.contains(&(row.length, batch));
            let leaves = if is_known {
                Some(true)
            } else {
                leaves_headroom(row, batch)?
            };
            match leaves {
                // A real card is not asked for more than the largest batches.
                None => return Ok(()),
                Some(true) => {
                    safe.insert((row.length, batch));
                    continue;
                }
                Some(false) => {}
            }
            let fewer = batch * row.units - 1;
            allow(table, Some(fewer));
            continue 'budgets;
        }
        table.budget_was_run = table.budget.is_some();
        return Ok(());
    }
    allow(table, None);
    Ok(())
}
