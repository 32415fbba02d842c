//! What a search for the largest batch of a command came to.

use crate::jobs::SearchDocument;
use crate::search::ask_tell::{Observation, Outcome, Recommended};
use crate::units::Bytes;
use batchfit_report::style::{Style, facts, lines, notes, or_dash, paragraph, sized};

/// Writes what to train with, and with detail every run. `command` is what ran.
pub fn search(command: &str, document: &SearchDocument, style: &Style) -> String {
    let runs = document.observations.len();
    let s = if runs == 1 { "" } else { "s" };
    let mut report = paragraph("", &format!("{command}: {runs} run{s}"), style.width);
    let Some(found) = &document.recommendation else {
        return report;
    };
    report += "\n";
    report += &style.strong(&paragraph("", &recommendation(found), style.width));
    report += "\n";
    report += &facts(&figures(found), style);
    if style.verbose {
        report += "\nRuns\n";
        report += &table(&document.observations, style);
    }
    if !found.notes.is_empty() {
        report += "\n";
        report += &notes(&found.notes, style);
    }
    report
}

/// Assignments for a shell; the peak is empty where it is not known.
pub fn search_env(document: &SearchDocument) -> String {
    let Some(found) = &document.recommendation else {
        return String::new();
    };
    let peak = found.peak_reserved_bytes.map(|bytes| bytes.to_string());
    let values = [
        ("MICRO_BATCH", found.micro_batch.to_string()),
        ("ACCUMULATION_STEPS", found.accumulation_steps.to_string()),
        ("GLOBAL_BATCH", found.global_batch.to_string()),
        ("WORLD_SIZE", document.request.world_size.to_string()),
        ("PEAK_RESERVED_BYTES", peak.unwrap_or_default()),
    ];
    let line = |(name, value): (&str, String)| format!("export BATCHFIT_{name}={value}\n");
    values.into_iter().map(line).collect()
}

fn recommendation(found: &Recommended) -> String {
    if found.micro_batch == 0 {
        return match found.max_batch {
            0 => "Nothing fits.".to_owned(),
            _ => "Nothing fits without retries.".to_owned(),
        };
    }
    batchfit_report::fit::in_steps(
        found.micro_batch,
        found.accumulation_steps,
        found.global_batch,
        found.shortfall,
    )
}

fn figures(found: &Recommended) -> Vec<(&'static str, String)> {
    let mut figures = Vec::new();
    match (found.peak_reserved_bytes, found.limit_bytes) {
        (Some(peak), Some(limit)) => figures.push((
            "peak reserved",
            format!("{}; the limit is {}", Bytes(peak), Bytes(limit)),
        )),
        (Some(peak), None) => figures.push(sized("peak reserved", peak)),
        (None, _) => {}
    }
    let (smooth, finishing) = (found.max_batch_without_retries, found.max_batch);
    figures.push((
        "largest batch",
        if smooth == finishing {
            smooth.to_string()
        } else {
            format!("{smooth} without retries of the allocator, {finishing} with them")
        },
    ));
    figures.push(("limited by", found.limited_by.clone()));
    if found.micro_batch > 0 {
        let evidence = format!(
            "{}; the program itself ran with this batch",
            found.evidence.name()
        );
        figures.push(("evidence", evidence));
    }
    figures
}

fn table(runs: &[Observation], style: &Style) -> String {
    let runs: Vec<_> = (1..).zip(runs).collect();
    lines(&runs, style)
        .number("run", |(at, _)| at.to_string())
        .number("batch", |(_, run)| run.batch.to_string())
        .words("outcome", |(_, run)| outcome(run.outcome).to_owned())
        .number("peak reserved", |(_, run)| {
            or_dash(run.peak_reserved_bytes.map(Bytes))
        })
        .text()
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Fits => "fits",
        Outcome::FitsWithRetries => "fits with retries",
        Outcome::OutOfMemory => "runs out of memory",
        Outcome::Crashed => "crashed",
    }
}
