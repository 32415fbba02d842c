//! The table of all lengths: rows, a budget of tokens, and buckets.

use std::ops::Range;

use super::safety::{Outcome, Safety};
use super::{EachLength, of_variant};
use crate::fitting::Result;
use crate::model::{Length, LengthCount, LengthOf, Lengths};
use crate::search::{LengthBatch, buckets, budget, padding};
use crate::{Bucket, FitResult, LengthRow, LengthTable, Recommendation, VariantResult};

/// Into how many buckets lengths are put where the request does not say it.
const USUAL_BUCKETS: u64 = 4;

/// Most recommendations of variants that are listed for all lengths together.
const MOST_VARIANTS: usize = 256;

/// How often a budget is lowered because a smaller batch than the largest safe one leaves no headroom. See Note [Holes] in
/// `search`.
const MOST_LOWERED: usize = 64;

impl EachLength<'_> {
    /// The table of the variant that `safety` is about, and whose batch is smallest at the length at a place.
    pub(super) fn table(&self, decides: usize, safety: &mut Safety<'_>) -> Result<LengthTable> {
        let (lengths, fits) = (self.lengths, &self.fits);
        let rows = rows(lengths, fits, decides, safety);
        let all: Vec<LengthBatch> = rows.iter().map(of_length).collect();
        let nests = nests(lengths);
        let most = lengths.buckets.unwrap_or(USUAL_BUCKETS);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let ranges: Vec<Range<usize>> = if nests {
            buckets(&all, most)
        } else {
            // Nothing is padded to what does not hold it.
            (0..all.len()).map(|index| index..index + 1).collect()
        };
        let mut found = Vec::new();
        for range in ranges {
            let (rows, all) = (&rows[range.clone()], &all[range]);
            found.push(bucket(rows, all, safety)?);
        }
        let mut table = LengthTable {
            of: lengths.of,
            training: safety.training().clone(),
            decides: lengths.each[decides].length,
            budget: None,
            budget_was_run: false,
            buckets: found,
            padding_of_one_bucket: nests.then(|| padding(&all)),
            rows,
        };
        allow(&mut table, budget(&all));
        lower(&mut table, safety)?;
        Ok(table)
    }
}

/// A row for each length. What it recommends is known to be safe.
fn rows(
    lengths: &Lengths,
    fits: &[FitResult],
    decides: usize,
    safety: &mut Safety<'_>,
) -> Vec<LengthRow> {
    let training = safety.training().clone();
    let notes = &of_variant(&fits[decides], &training).notes;
    let lists_variants = fits.iter().map(|fit| fit.variants.len()).sum::<usize>() <= MOST_VARIANTS;
    let without = |recommendation: &Recommendation| {
        let mut short = recommendation.clone();
        short.notes.retain(|note| !notes.contains(note));
        // As long as all the rest; a fit of that length alone says it.
        short.why = None;
        short
    };
    let row = |(one, fit): (&LengthCount, &FitResult)| {
        let recommendation = without(of_variant(fit, &training));
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
    for row in &rows {
        let best = &row.recommendation;
        safety.holds(row.length, best.accumulation_steps, best.micro_batch);
    }
    rows
}

/// What lengths have in common that are put together.
fn bucket(rows: &[LengthRow], all: &[LengthBatch], safety: &mut Safety<'_>) -> Result<Bucket> {
    let count = all
        .iter()
        .fold(0_u64, |sum, one| sum.saturating_add(one.count));
    let smallest = all.iter().map(|one| one.batch).min().unwrap_or(0);
    let steps = rows[0].recommendation.accumulation_steps;
    let lengths: Vec<Length> = rows.iter().map(|row| row.length).collect();
    let micro_batch = match smallest {
        0 => 0,
        _ => match safety.largest(&lengths, steps, smallest)? {
            Outcome::Holds(batch) => batch,
            Outcome::Nothing => 0,
            // A real card is not asked for more than the largest batches.
            Outcome::Unasked => smallest,
        },
    };
    Ok(Bucket {
        lengths: [rows[0].length, rows[rows.len() - 1].length],
        count,
        micro_batch,
        batches: (micro_batch > 0).then(|| count.div_ceil(micro_batch)),
        padding: padding(all),
    })
}

fn of_length(row: &LengthRow) -> LengthBatch {
    LengthBatch {
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

/// Lowers the budget until all batches that it allows leave headroom, as far as simulation can be asked: memory is not monotone in
/// the batch.
fn lower(table: &mut LengthTable, safety: &mut Safety<'_>) -> Result<()> {
    'budgets: for _ in 0..MOST_LOWERED {
        for row in &table.rows {
            let Some(batch) = row.within_budget else {
                return Ok(());
            };
            let steps = row.recommendation.accumulation_steps;
            let leaves = match batch {
                0 => Some(true),
                batch => safety.leaves_headroom(row.length, steps, batch)?,
            };
            match leaves {
                // A real card is not asked for more than the largest batches.
                None => return Ok(()),
                Some(true) => continue,
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
