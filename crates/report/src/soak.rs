//! What many steps of different lengths came to.

use super::probe::verdict;
use super::style::{Style, facts, paragraph, sized};
use batchfit_card::probe::Verdict;
use batchfit_fit::SoakResult;
use batchfit_step::units::Bytes;

/// Writes the verdict, what was reserved at first and at the end, and the batch that is safe.
pub fn soak(soaked: &SoakResult, style: &Style) -> String {
    let report = &soaked.report;
    let over = match report.verdict {
        Verdict::Fits | Verdict::FitsWithRetries => format!("over {} steps", report.steps),
        Verdict::OutOfMemory | Verdict::Failed => format!("in step {}", report.steps + 1),
    };
    let headline = format!(
        "Batch {} {} {over} (simulated).\n",
        soaked.batch,
        verdict(report.verdict)
    );
    let mut out = style.strong(&headline);
    if let Some(cause) = &report.cause {
        out += &paragraph("", cause, style.width);
    }
    out += "\n";
    out += &figures(soaked, style);
    out
}

/// What was reserved at first and at the end, and the batch that is safe.
pub(super) fn figures(soaked: &SoakResult, style: &Style) -> String {
    let report = &soaked.report;
    let last = report.growth.last();
    let mut figures = vec![
        sized("peak allocated", report.peak_allocated_bytes),
        sized("peak reserved", report.peak_reserved_bytes),
        sized("in the first three steps", report.reserved_at_first_bytes),
        (
            "last grown",
            last.map_or_else(
                || "never".to_owned(),
                |last| format!("in step {}", last.step),
            ),
        ),
        sized("limit", soaked.limit_bytes),
        ("retries", report.retries.to_string()),
    ];
    if let Some(step) = report.first_retry {
        figures.push(("first retry", format!("in step {step}")));
    }
    let safe = match &soaked.safe {
        Some(safe) => format!(
            "{}, which reserves {} at most",
            safe.batch,
            Bytes(safe.peak_reserved_bytes)
        ),
        None => "none".to_owned(),
    };
    figures.push(("safe batch", safe));
    facts(&figures, style)
}
