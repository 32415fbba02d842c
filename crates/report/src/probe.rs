//! What one probe found.

use super::fit::lasting;
use super::style::{Style, assumptions, facts, lines, notes, or_dash, paragraph, sized};
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
        sized("peak allocated", report.peak_allocated_bytes),
        sized("peak reserved", report.peak_reserved_bytes),
        sized("limit", report.limit_bytes),
        sized("model alone", report.model_allocated_bytes),
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
        figures.push(sized("sent by a rank in a step", bytes));
    }
    if let (Some(ms), Some(from)) = (report.optimizer_step_ms, report.speed_from) {
        figures.push((
            "time of a step",
            format!("{} ({})", of_a_step(ms), from.name()),
        ));
    }
    if let Some(used) = report.used_by_others_bytes {
        figures.push(sized("used by other processes", used));
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
            let facts_of_peak = [("moment", peak.moment.clone()), ("held then", held(peak))];
            out += &facts(&facts_of_peak, style);
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
    let steps: Vec<(u64, &StepMemory)> = (1..).zip(&report.steps).collect();
    let ran = report.evidence.is_real();
    lines(&steps, style)
        .number("step", |(at, _)| at.to_string())
        .size("peak allocated", |(_, step)| step.peak_allocated_bytes)
        .size("peak reserved", |(_, step)| step.peak_reserved_bytes)
        .size("left after", |(_, step)| step.allocated_bytes)
        .number("time", |(_, step)| or_dash(step.elapsed_ms.map(of_a_step)))
        .number("kernels", |(_, step)| step.launches.to_string())
        .only_if(ran)
        .number("loss", |(_, step)| last_loss(step))
        .only_if(ran)
        .text()
}

/// How long a step takes: kernels on a GPU may take few milliseconds.
fn of_a_step(ms: f64) -> String {
    match ms {
        ..1000.0 => format!("{ms:.1} ms"),
        _ => lasting(ms),
    }
}

fn ranks(report: &ProbeReport, style: &Style) -> String {
    let itself = || "itself".to_owned();
    lines(&report.ranks, style)
        .number("rank", |rank| rank.rank.to_string())
        .words("stands for", move |rank| {
            rank.stands_for.clone().unwrap_or_else(itself)
        })
        .words("verdict", |rank| verdict(rank.verdict).to_owned())
        .size("peak allocated", |rank| rank.peak_allocated_bytes)
        .size("peak reserved", |rank| rank.peak_reserved_bytes)
        .text()
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
