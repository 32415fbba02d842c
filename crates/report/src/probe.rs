//! What one probe found.

use super::fit::lasting;
use super::style::Style;
use super::style::paragraph;
use super::table::{assumptions, facts, notes, text, with_header};
use super::why::{categories, held, modules};
use batchfit_card::probe::{Evidence, ProbeReport, StepMemory, Verdict};
use batchfit_step::units::Bytes;

/// Writes the verdict, the peaks, the steps and what the peak was made of.
pub fn probe(report: &ProbeReport, style: &Style) -> String {
    let evidence = match report.evidence {
        Evidence::Simulated => "simulated",
        Evidence::Recorded => "simulated from recordings",
        Evidence::Probed => "probed on the GPU",
        Evidence::Trained => "trained",
    };
    let mut out = style.strong(&format!(
        "Batch {} {} ({evidence}).\n",
        report.batch,
        verdict(report.verdict)
    ));
    if let Some(cause) = &report.cause {
        out += &paragraph("", cause, style.width);
    }
    out += "\n";
    let mut figures = vec![
        (
            "peak allocated",
            Bytes(report.peak_allocated_bytes).to_string(),
        ),
        (
            "peak reserved",
            Bytes(report.peak_reserved_bytes).to_string(),
        ),
        ("limit", Bytes(report.limit_bytes).to_string()),
        (
            "model alone",
            Bytes(report.model_allocated_bytes).to_string(),
        ),
        (
            "retries",
            report
                .retries_by_step()
                .unwrap_or_else(|| report.retries.to_string()),
        ),
        ("refused allocations", report.ooms.to_string()),
    ];
    if let Some(without) = report.without_overlap {
        let reserved = Bytes(without.peak_reserved_bytes);
        figures.push(("reserved without overlap", reserved.to_string()));
    }
    if let Some(bytes) = report.communicated_bytes {
        figures.push(("sent by a rank in a step", Bytes(bytes).to_string()));
    }
    if let (Some(ms), Some(from)) = (report.optimizer_step_ms, report.speed_from) {
        figures.push((
            "time of a step",
            format!("{} ({})", of_a_step(ms), from.name()),
        ));
    }
    if let Some(used) = report.used_by_others_bytes {
        figures.push(("used by other processes", Bytes(used).to_string()));
    }
    out += &facts(&figures, style);
    if !report.steps.is_empty() {
        out += "\nSteps\n";
        out += &steps(report, style);
    }
    if report.ranks.len() > 1 {
        out += "\nRanks\n";
        out += &ranks(report, style);
    }
    if !report.at_peak.is_empty() {
        out += "\nAt the peak\n";
        if let Some(peak) = &report.peak {
            let lines = [("moment", peak.moment.clone()), ("held then", held(peak))];
            out += &facts(&lines, style);
            out += "\n";
        }
        out += &categories(&report.at_peak, style);
        if let Some(peak) = &report.peak {
            out += "\n";
            out += &modules(peak, style);
        }
    }
    if !report.notes.is_empty() || !report.assumptions.is_empty() {
        out += "\n";
        out += &assumptions(&report.assumptions, style);
        out += &notes(&report.notes, style);
    }
    out
}

fn steps(report: &ProbeReport, style: &Style) -> String {
    let mut columns = vec![
        "step",
        "peak allocated",
        "peak reserved",
        "left after",
        "time",
    ];
    let ran = report.evidence.is_real();
    if ran {
        columns.extend(["kernels", "loss"]);
    }
    let mut table = with_header(&columns, &columns);
    for (index, step) in report.steps.iter().enumerate() {
        let mut row = vec![
            (index + 1).to_string(),
            Bytes(step.peak_allocated_bytes).to_string(),
            Bytes(step.peak_reserved_bytes).to_string(),
            Bytes(step.allocated_bytes).to_string(),
            step.elapsed_ms.map_or_else(|| "-".to_owned(), of_a_step),
        ];
        if ran {
            row.push(step.launches.to_string());
            row.push(last_loss(step));
        }
        table.add_row(row);
    }
    text(&table, style)
}

/// How long a step takes: kernels on a GPU may take few milliseconds.
fn of_a_step(ms: f64) -> String {
    match ms {
        ..1000.0 => format!("{ms:.1} ms"),
        _ => lasting(ms),
    }
}

fn ranks(report: &ProbeReport, style: &Style) -> String {
    let columns = [
        "rank",
        "stands for",
        "verdict",
        "peak allocated",
        "peak reserved",
    ];
    let mut table = with_header(&columns, &["rank", "peak allocated", "peak reserved"]);
    for rank in &report.ranks {
        let itself = || "itself".to_owned();
        table.add_row([
            rank.rank.to_string(),
            rank.stands_for.clone().unwrap_or_else(itself),
            verdict(rank.verdict).to_owned(),
            Bytes(rank.peak_allocated_bytes).to_string(),
            Bytes(rank.peak_reserved_bytes).to_string(),
        ]);
    }
    text(&table, style)
}

/// The loss of the last micro-step.
fn last_loss(step: &StepMemory) -> String {
    match step.losses.last() {
        None => "-".to_owned(),
        Some(None) => "not finite".to_owned(),
        Some(Some(loss)) => format!("{loss:.4}"),
    }
}

/// A verdict in a sentence about a batch.
pub(super) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fits => "fits",
        Verdict::FitsWithRetries => "fits with retries",
        Verdict::OutOfMemory => "runs out of memory",
        Verdict::Failed => "failed",
    }
}
