//! What stands below the figures: assumptions and notes, each once.

use std::borrow::Cow;

use super::ShownRequest;
use crate::style::Style;
use crate::style::paragraph;
use batchfit_card::device::sim::UNMEASURED;
use batchfit_fit::{FitResult, LimitKind, MARGIN};

/// How many assumptions are shown without detail.
const FEW: usize = 2;

/// How many notes are.
const MOST_NOTES: usize = 3;

/// Assumptions, notes, and what else there is to see.
pub(super) fn all(result: &FitResult, request: &ShownRequest, style: &Style) -> String {
    let shown = if style.verbose {
        result.assumptions.len()
    } else {
        result.assumptions.len().min(FEW)
    };
    let mut out = String::new();
    for assumption in &result.assumptions[..shown] {
        out += &paragraph("assumption: ", assumption, style.width);
    }
    let mut notes = notes(result, style.verbose);
    if is_fragmented(result, request) {
        notes.push((vec![1], FRAGMENTED));
    }
    let all = notes.len();
    if !style.verbose {
        // What says what to do, first.
        notes.sort_by_key(|(_, note)| !note.contains('`'));
        notes.truncate(MOST_NOTES);
    }
    let hidden = all - notes.len();
    for (ranks, note) in notes {
        let is_of_the_answer = ranks.first() == Some(&1);
        let first = if is_of_the_answer {
            "note: ".to_owned()
        } else {
            format!("note on {}: ", named(&ranks))
        };
        let note = if style.verbose {
            Cow::Borrowed(note)
        } else {
            brief(note)
        };
        out += &paragraph(&first, &note, style.width);
    }
    if let Some(hint) = hint(result, (shown, hidden), style.verbose) {
        out += &style.quiet(&paragraph("", &hint, style.width));
    }
    out
}

const FRAGMENTED: &str = "fragmentation is what stops larger batches: `--allocator expandable_segments:True` often allows more \
                          (`--suggest` says how much)";

/// Whether a twentieth or more of the batch is lost to fragmentation, which settings of a simulated allocator may avoid.
fn is_fragmented(result: &FitResult, request: &ShownRequest) -> bool {
    let best = &result.recommendation;
    let limit = best.why.as_ref().map(|why| why.limit.kind);
    limit == Some(LimitKind::Fragmentation)
        && best.max_batch_without_retries < best.max_batch_steady / 20 * 19
        && result.environment.device.starts_with("sim:")
        && result.suggested_for.is_none()
        && !(request.allocator.as_ref()).is_some_and(|set| set.contains("expandable_segments"))
}

/// What is not known of a card or of several, and the margin that is kept for it, without their reasons.
fn brief(note: &str) -> Cow<'_, str> {
    let has_reasons = [UNMEASURED, MARGIN, " process groups: "]
        .iter()
        .any(|ending| note.contains(ending));
    match note.split_once(": ").filter(|_| has_reasons) {
        Some((claim, _)) => Cow::Owned(format!("{claim} (-v says why)")),
        None => Cow::Borrowed(note),
    }
}

fn hint(result: &FitResult, (shown, notes): (usize, usize), verbose: bool) -> Option<String> {
    let more = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("one more {what}")),
        count => Some(format!("{count} more {what}s")),
    };
    let probes = (!result.probes.is_empty()).then(|| "the probes behind this answer".to_owned());
    let assumptions = more(result.assumptions.len() - shown, "assumption");
    let hidden: Vec<String> = [assumptions, more(notes, "note"), probes]
        .into_iter()
        .flatten()
        .collect();
    (!verbose && !hidden.is_empty()).then(|| format!("-v shows {}.", hidden.join(" and ")))
}

/// Every note once, with the variants that it is about: those of the answer first. Without detail, notes that
/// differ from an earlier one in figures alone are left out.
fn notes(result: &FitResult, verbose: bool) -> Vec<(Vec<u32>, &str)> {
    let mut notes: Vec<(Vec<u32>, &str)> = Vec::new();
    let of_variants = result.variants.iter().flat_map(|variant| {
        let notes = variant.recommendation.notes.iter();
        notes.map(|note| (variant.rank, note.as_str()))
    });
    let of_the_answer = result.recommendation.notes.iter();
    for (rank, note) in of_the_answer
        .map(|note| (1, note.as_str()))
        .chain(of_variants)
    {
        let same = |other: &str| other == note || (!verbose && pattern(other) == pattern(note));
        match notes.iter_mut().find(|(_, other)| same(other)) {
            Some((ranks, _)) if ranks.last() == Some(&rank) => {}
            Some((ranks, _)) => ranks.push(rank),
            None => notes.push((vec![rank], note)),
        }
    }
    notes
}

/// A note without its figures.
fn pattern(note: &str) -> String {
    note.replace(|c: char| c.is_ascii_digit(), "")
}

fn named(ranks: &[u32]) -> String {
    match ranks {
        [one] => format!("variant {one}"),
        several => {
            let several: Vec<String> = several.iter().map(u32::to_string).collect();
            format!("variants {}", several.join(", "))
        }
    }
}
