//! What else could be done.

use super::rounded;
use crate::style::{Style, lines, or_dash, paragraph};
use batchfit_fit::{FitResult, Suggestion, SuggestionKind};
use batchfit_step::units::Bytes;

/// A line for each change that gains samples, in the order of the answer, for which so many are wanted at once; and for each setting of
/// the allocator, which people ask about. The others are named below, those that make nothing fit with detail alone.
pub(super) fn table(result: &FitResult, wanted: u64, style: &Style) -> String {
    let suggestions = result.suggestions.as_slice();
    let nothing_fits = result.recommendation.micro_batch == 0;
    let is_line = |one: &&Suggestion| {
        one.gained > 0 || (one.kind == SuggestionKind::Allocator && one.micro_batch > 0)
    };
    let (gaining, others): (Vec<_>, Vec<_>) = suggestions.iter().partition(is_line);
    let any_steps = gaining.iter().any(|one| one.accumulation_steps > 1);
    let any_pace = gaining.iter().any(|one| one.samples_per_second.is_some());
    let batch = if any_steps {
        "batch x steps"
    } else {
        "micro-batch"
    };
    let table = lines(&gaining, style)
        .words("change", |one| one.change.clone())
        .number(batch, |one| match (one.micro_batch, any_steps) {
            (0, _) => "-".to_owned(),
            (batch, true) => format!("{batch} x {}", one.accumulation_steps),
            (batch, false) => batch.to_string(),
        })
        .number("gained", |one| match one.gained {
            0 => "0".to_owned(),
            gained => format!("{gained:+}"),
        })
        .words("", |one| {
            if one.reaches { "reaches it" } else { "" }.to_owned()
        })
        .number("samples/s", |one| {
            or_dash(one.samples_per_second.map(rounded))
        })
        .only_if(any_pace)
        .words("cost", |one| one.cost.clone());
    let fails = suggestions.iter().filter(|one| one.micro_batch == 0);
    let fails: Vec<&str> = fails.map(|one| one.change.as_str()).collect();
    if fails.len() == suggestions.len() {
        let text = match (fails.len(), style.verbose) {
            (count, false) => format!(
                "None of {count} changes makes one sample fit, alone or together; -v names them."
            ),
            (_, true) => format!(
                "None of these makes one sample fit, alone or together: {}",
                fails.join(", ")
            ),
        };
        return paragraph("", &text, style.width);
    }
    let title = match (nothing_fits, wanted) {
        (true, 1) => "What makes one sample fit\n".to_owned(),
        (true, _) => format!("What makes {wanted} samples at once fit\n"),
        (false, _) => format!("Changes, first those with which {wanted} samples fit at once\n"),
    };
    let mut report = title + &table.text();
    let with_peak = |one: &Suggestion| match (one.micro_batch, nothing_fits) {
        (0, true) => one.change.clone(),
        (0, false) => format!("{} (nothing fits)", one.change),
        _ => format!("{} ({})", one.change, Bytes(one.peak_reserved_bytes)),
    };
    let is_shown = |one: &&Suggestion| style.verbose || !nothing_fits || one.micro_batch > 0;
    let count = others.len();
    let others: Vec<String> = others.into_iter().filter(is_shown).map(with_peak).collect();
    let hidden = count - others.len();
    if !others.is_empty() {
        let title = if nothing_fits {
            "Not one of these alone"
        } else {
            "No larger batch with"
        };
        let others = format!("{title}: {}", others.join(", "));
        report += &paragraph("", &others, style.width);
    }
    if hidden > 0 {
        let text = format!("{hidden} other changes are not enough alone; -v names them.");
        report += &paragraph("", &text, style.width);
    }
    report
}
