//! What a replay found.

use std::fmt::Write as _;

use super::probe::verdict;
use super::style::Style;
use super::table::{facts, notes, text, with_header};
use super::wrap::paragraph;
use crate::replay::{AddressSource, ComparisonReport, RecordingFormat, ReplayReport};
use crate::units::Bytes;

/// Writes the verdict, how it compares with the recording, the peaks and the comparison of settings.
pub fn replay(report: &ReplayReport, style: &Style) -> String {
    let mut out = String::new();
    if let Some(case) = &report.recording.case {
        out += &paragraph("", case, style.width);
    }
    let mut first = format!("The recording {}", verdict(report.verdict));
    if report.recording.ends_out_of_memory {
        first += ", up to where it stopped";
    }
    first += match report.addresses {
        AddressSource::Recorded => " (replayed with the recorded addresses).",
        AddressSource::Simulated => " (replayed on simulated memory).",
    };
    out += &style.strong(&paragraph("", &first, style.width));
    let exactness = match (report.equals_recording, &report.first_difference) {
        (Some(true), _) => format!(
            "All {} events came out as PyTorch's, addresses included.",
            report.recording.events
        ),
        (_, Some(difference)) => format!(
            "It is not as recorded. {}: recorded `{}`, replayed `{}`",
            difference.place,
            difference.recorded.as_deref().unwrap_or("nothing"),
            difference.replayed.as_deref().unwrap_or("nothing"),
        ),
        (_, None) => String::new(),
    };
    if !exactness.is_empty() {
        out += &paragraph("", &exactness, style.width);
    }
    if let Some(stop) = &report.stopped {
        let stopped = format!(
            "It stops at {}: {} are asked for where {} are allocated and {} reserved.",
            stop.place,
            Bytes(stop.requested_bytes),
            Bytes(stop.allocated_bytes),
            Bytes(stop.reserved_bytes),
        );
        out += &paragraph("", &stopped, style.width);
    }
    out += "\n";
    out += &facts(
        &[
            (
                "peak allocated",
                Bytes(report.peak_allocated_bytes).to_string(),
            ),
            (
                "peak reserved",
                Bytes(report.peak_reserved_bytes).to_string(),
            ),
            ("limit", limit(report)),
            ("allocator", allocator(&report.allocator)),
            ("retries", report.retries.to_string()),
            ("refused allocations", report.ooms.to_string()),
            ("segments at the peak", segments(report)),
        ],
        style,
    );
    if let Some(comparison) = &report.comparison {
        let _ = writeln!(
            out,
            "\nWhat if, under {}, best first",
            match comparison.limit_bytes {
                Some(limit) => format!("a limit of {}", Bytes(limit)),
                None => "no limit".to_owned(),
            }
        );
        out += &compared(comparison, style);
    }
    if !report.notes.is_empty() {
        out += "\n";
        out += &notes(&report.notes, style);
    }
    out
}

fn compared(comparison: &ComparisonReport, style: &Style) -> String {
    let numbers = ["peak reserved", "retries", "no retries from"];
    let header = ["allocator", numbers[0], numbers[1], "ends", numbers[2]];
    let mut table = with_header(&header, &numbers);
    for row in &comparison.rows {
        table.add_row([
            allocator(&row.allocator),
            Bytes(row.peak_reserved_bytes).to_string(),
            row.retries.to_string(),
            verdict(row.verdict).to_owned(),
            row.smallest_limit_bytes
                .map_or_else(|| "-".to_owned(), |limit| Bytes(limit).to_string()),
        ]);
    }
    text(&table, style)
}

fn limit(report: &ReplayReport) -> String {
    match (report.limit_bytes, report.recording.format) {
        (Some(limit), _) => Bytes(limit).to_string(),
        (None, RecordingFormat::Trace) => "none".to_owned(),
        (None, RecordingFormat::Snapshot) => "not told by the snapshot".to_owned(),
    }
}

fn allocator(text: &str) -> String {
    if text.is_empty() {
        "default".to_owned()
    } else {
        text.to_owned()
    }
}

fn segments(report: &ReplayReport) -> String {
    let peak = &report.peak;
    let free = peak.reserved_bytes.saturating_sub(peak.allocated_bytes);
    format!("{}, {} of them free", peak.segments.len(), Bytes(free))
}
