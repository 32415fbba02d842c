//! What recordings say together.

use super::style::{Style, lines, paragraph};
use batchfit_fit::recorded::{Alignment, Check};

/// Writes the recordings, how they align, what sizes follow, and how well one that is left out is predicted.
pub fn recordings(check: &Check, style: &Style) -> String {
    let mut out = String::new();
    let mut section = |title: &str, lines: String| {
        out += &style.strong(&paragraph("", title, style.width));
        out += &lines;
        out.push('\n');
    };
    section("Recordings", of_recordings(check, style));
    if !check.alignments.is_empty() {
        section("How each aligns with the next", alignments(check, style));
    }
    let title = format!(
        "Sizes, when most is allocated at batch {}",
        check.sizes_batch
    );
    section(&title, sizes(check, style));
    if !check.borders.is_empty() {
        let title = "Memory that only some recordings have: kernels chose other algorithms";
        section(title, borders(check, style));
    }
    if !check.uncertain.is_empty() {
        let title = "Sizes that do not follow from the recordings; a larger batch would tell";
        section(title, uncertain(check, style));
    }
    if !check.predictions.is_empty() {
        let title = "Each recording as the others predict it: allocations at their place and with their size";
        section(title, predictions(check, style));
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn of_recordings(check: &Check, style: &Style) -> String {
    lines(&check.recordings, style)
        .number("batch", |one| one.batch.to_string())
        .number("allocations", |one| one.allocations.to_string())
        .number("frees", |one| one.frees.to_string())
        .number("streams", |one| one.streams.to_string())
        .size("peak asked for", |one| one.peak_requested_bytes)
        .words("case", |one| one.case.clone().unwrap_or_default())
        .text()
}

fn alignments(check: &Check, style: &Style) -> String {
    let first = |one: &Alignment| {
        one.first_difference
            .as_ref()
            .map(|[a, b]| format!("{a}; {b}"))
    };
    lines(&check.alignments, style)
        .words("batches", |one| {
            format!("{} and {}", one.batches[0], one.batches[1])
        })
        .number("matched", |one| one.matched.to_string())
        .number("only first", |one| one.unmatched[0].to_string())
        .number("only second", |one| one.unmatched[1].to_string())
        .words("first difference", move |one| {
            first(one).unwrap_or_else(|| "none".to_owned())
        })
        .text()
}

fn sizes(check: &Check, style: &Style) -> String {
    lines(&check.sizes, style)
        .words("kind", |kind| kind.kind.clone())
        .number("allocations", |kind| kind.allocations.to_string())
        .size("bytes", |kind| kind.bytes_at_peak)
        .text()
}

fn borders(check: &Check, style: &Style) -> String {
    lines(&check.borders, style)
        .size("bytes", |border| border.bytes)
        .words("batches", |border| listed(&border.batches))
        .words("where", |border| border.place.clone())
        .text()
}

fn uncertain(check: &Check, style: &Style) -> String {
    let recorded = |(batch, bytes): &(u64, u64)| format!("{batch}: {bytes}");
    lines(&check.uncertain, style)
        .words("goes on as", |size| size.kind.clone())
        .words("where", |size| size.place.clone())
        .words("bytes at each batch", move |size| {
            let recorded: Vec<_> = size.recorded.iter().map(recorded).collect();
            recorded.join(", ")
        })
        .text()
}

fn predictions(check: &Check, style: &Style) -> String {
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    lines(&check.predictions, style)
        .number("batch", |one| one.batch.to_string())
        .words("from", |one| listed(&one.from))
        .number("allocations", move |one| percent(one.allocations))
        .number("bytes at the peak", move |one| percent(one.bytes_at_peak))
        .size("peak", |one| one.peak_requested_bytes)
        .size("predicted peak", |one| one.predicted_peak_requested_bytes)
        .text()
}

fn listed(batches: &[u64]) -> String {
    let batches: Vec<_> = batches.iter().map(u64::to_string).collect();
    batches.join(", ")
}
