//! What a replay found.

use std::fmt::Write as _;

use super::probe::verdict;
use super::style::{Style, facts, lines, notes, or_dash, paragraph, sized};
use batchfit_card::replay::{
    AddressSource, ComparisonReport, Finding, Findings, LineBytes, RecordingFormat, ReplayReport,
};
use batchfit_step::units::Bytes;

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
            sized("peak allocated", report.peak_allocated_bytes),
            sized("peak reserved", report.peak_reserved_bytes),
            ("limit", limit(report)),
            ("allocator", allocator(&report.allocator)),
            ("retries", report.retries.to_string()),
            ("refused allocations", report.ooms.to_string()),
            ("segments at the peak", segments(report)),
        ],
        style,
    );
    // Without lines, that nothing grows is not known.
    let said = &report.findings;
    if said.has_stacks || said.finding != Finding::NothingWrong {
        out += "\n";
        out += &findings(said, style);
    }
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

/// What is wrong, what shows it, what to change, and who holds the memory.
pub(super) fn findings(findings: &Findings, style: &Style) -> String {
    let mut out = style.strong(&paragraph("", verdict_of(findings.finding), style.width));
    for evidence in &findings.evidence {
        out += &paragraph("- ", evidence, style.width);
    }
    if let Some(advice) = &findings.advice {
        out += &paragraph("change: ", advice, style.width);
    }
    if !findings.has_stacks {
        return out;
    }
    out += "\nWho holds the memory when most is allocated\n";
    let others = &findings.others_at_peak;
    let mut held: Vec<&LineBytes> = findings.at_peak.iter().collect();
    held.extend((others.blocks > 0).then_some(others));
    let name = |line: &LineBytes| match &line.line {
        Some(line) => line.clone(),
        None if std::ptr::eq(line, others) => "(other lines)".to_owned(),
        None => "(no line of Python)".to_owned(),
    };
    let table = lines(&held, style)
        .words("line", |line| name(line))
        .size("bytes", |line| line.bytes)
        .number("blocks", |line| line.blocks.to_string());
    out + &table.text()
}

fn verdict_of(finding: Finding) -> &'static str {
    match finding {
        Finding::NothingWrong => "The recording shows nothing wrong with the program.",
        Finding::Growth => "Memory grows: something is kept from each round.",
        Finding::Fragmentation => "Memory is fragmented.",
        Finding::AnotherProcess => "Something else holds memory of the GPU.",
        Finding::BatchTooLarge => "The batch is too large.",
    }
}

fn compared(comparison: &ComparisonReport, style: &Style) -> String {
    lines(&comparison.rows, style)
        .words("allocator", |row| allocator(&row.allocator))
        .size("peak reserved", |row| row.peak_reserved_bytes)
        .number("retries", |row| row.retries.to_string())
        .words("ends", |row| verdict(row.verdict).to_owned())
        .number("no retries from", |row| {
            or_dash(row.smallest_limit_bytes.map(Bytes))
        })
        .text()
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
