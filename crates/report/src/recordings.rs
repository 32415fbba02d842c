//! What recordings say together.

use super::style::Style;
use super::style::paragraph;
use super::table::{text, with_header};
use batchfit_fit::recorded::Check;
use batchfit_step::units::Bytes;

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
    let numbers = ["batch", "allocations", "frees", "streams", "peak asked for"];
    let mut table = with_header(
        &[
            "batch",
            "allocations",
            "frees",
            "streams",
            "peak asked for",
            "case",
        ],
        &numbers,
    );
    for one in &check.recordings {
        table.add_row([
            one.batch.to_string(),
            one.allocations.to_string(),
            one.frees.to_string(),
            one.streams.to_string(),
            Bytes(one.peak_requested_bytes).to_string(),
            one.case.clone().unwrap_or_default(),
        ]);
    }
    text(&table, style)
}

fn alignments(check: &Check, style: &Style) -> String {
    let numbers = ["matched", "only first", "only second"];
    let header = [
        "batches",
        "matched",
        "only first",
        "only second",
        "first difference",
    ];
    let mut table = with_header(&header, &numbers);
    for one in &check.alignments {
        let first = one.first_difference.as_ref();
        table.add_row([
            format!("{} and {}", one.batches[0], one.batches[1]),
            one.matched.to_string(),
            one.unmatched[0].to_string(),
            one.unmatched[1].to_string(),
            first.map_or_else(|| "none".to_owned(), |[a, b]| format!("{a}; {b}")),
        ]);
    }
    text(&table, style)
}

fn sizes(check: &Check, style: &Style) -> String {
    let mut table = with_header(&["kind", "allocations", "bytes"], &["allocations", "bytes"]);
    for kind in &check.sizes {
        table.add_row([
            kind.kind.clone(),
            kind.allocations.to_string(),
            Bytes(kind.bytes_at_peak).to_string(),
        ]);
    }
    text(&table, style)
}

fn borders(check: &Check, style: &Style) -> String {
    let mut table = with_header(&["bytes", "batches", "where"], &["bytes"]);
    for border in &check.borders {
        let batches: Vec<String> = border.batches.iter().map(u64::to_string).collect();
        table.add_row([
            Bytes(border.bytes).to_string(),
            batches.join(", "),
            border.place.clone(),
        ]);
    }
    text(&table, style)
}

fn uncertain(check: &Check, style: &Style) -> String {
    let mut table = with_header(&["goes on as", "where", "bytes at each batch"], &[]);
    for size in &check.uncertain {
        let recorded = size.recorded.iter();
        let recorded: Vec<String> = recorded
            .map(|(batch, bytes)| format!("{batch}: {bytes}"))
            .collect();
        table.add_row([size.kind.clone(), size.place.clone(), recorded.join(", ")]);
    }
    text(&table, style)
}

fn predictions(check: &Check, style: &Style) -> String {
    let numbers = [
        "batch",
        "allocations",
        "bytes at the peak",
        "peak",
        "predicted peak",
    ];
    let header = [
        "batch",
        "from",
        "allocations",
        "bytes at the peak",
        "peak",
        "predicted peak",
    ];
    let mut table = with_header(&header, &numbers);
    for one in &check.predictions {
        let from: Vec<String> = one.from.iter().map(u64::to_string).collect();
        table.add_row([
            one.batch.to_string(),
            from.join(", "),
            format!("{:.1}%", 100.0 * one.allocations),
            format!("{:.1}%", 100.0 * one.bytes_at_peak),
            Bytes(one.peak_requested_bytes).to_string(),
            Bytes(one.predicted_peak_requested_bytes).to_string(),
        ]);
    }
    text(&table, style)
}
