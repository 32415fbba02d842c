//! What trainings came to that followed an answer, beside what was predicted.

use crate::jobs::{AccuracyDocument, OutcomeDocument};
use crate::units::Bytes;
use batchfit_report::style::{Style, facts, lines, paragraph};

/// Writes what an outcome changed.
pub fn outcome(outcome: &OutcomeDocument, style: &Style) -> String {
    let mut figures = vec![("ended", spaced(&outcome.outcome))];
    figures.push((
        "predicted peak",
        bytes(outcome.predicted_peak_reserved_bytes),
    ));
    if let Some(peak) = outcome.peak_reserved_bytes {
        figures.push(("peak reserved", bytes(peak)));
    }
    if let Some(error) = outcome.error {
        figures.push(("off by", signed(error)));
    }
    if let Some(headroom) = &outcome.headroom {
        let now = percent(headroom.after);
        figures.push((
            "headroom",
            if (headroom.after - headroom.before).abs() < 1e-9 {
                format!("{now}, as before")
            } else {
                format!("{now}, {} before", percent(headroom.before))
            },
        ));
    }
    let mut out = style.strong(&format!(
        "Batch {}, outcome {}.\n\n",
        outcome.batch, outcome.id
    ));
    out += &facts(&figures, style);
    if let Some(doubt) = &outcome.doubt {
        let why = format!("Kept, but nothing is learnt from it: {}.", doubt.detail);
        out += "\n";
        out += &paragraph("", &why, style.width);
    }
    out
}

/// What is said where there is none.
const NO_OUTCOME: &str = "No outcome was reported; `batchfit outcome ID` reports one.\n";

/// Writes one outcome a line.
pub fn outcomes(outcomes: &[OutcomeDocument], style: &Style) -> String {
    if outcomes.is_empty() {
        return NO_OUTCOME.to_owned();
    }
    lines(outcomes, style)
        .number("batch", |one| one.batch.to_string())
        .words("ended", |one| spaced(&one.outcome))
        .number("predicted", move |one| {
            bytes(one.predicted_peak_reserved_bytes)
        })
        .number("reserved", move |one| {
            one.peak_reserved_bytes.map_or_else(String::new, bytes)
        })
        .number("off by", |one| one.error.map_or_else(String::new, signed))
        .number("steps", |one| {
            one.steps.map_or_else(String::new, |it| it.to_string())
        })
        .words("headroom", |one| match (&one.headroom, &one.doubt) {
            (Some(headroom), _) => percent(headroom.after),
            (None, Some(doubt)) => spaced(&doubt.code),
            (None, None) => String::new(),
        })
        .text()
}

/// Writes a line for each model on each card.
pub fn accuracy(known: &[AccuracyDocument], style: &Style) -> String {
    if known.is_empty() {
        return NO_OUTCOME.to_owned();
    }
    lines(known, style)
        .words("model", |known| known.model.clone())
        .words("card", |known| known.gpu.clone())
        .words("answers", |known| known.source.clone())
        .number("outcomes", |known| known.outcomes.to_string())
        .number("misses", |known| known.misses.to_string())
        .number("off by", |known| {
            known.mean_error.map_or_else(String::new, signed)
        })
        .number("at most", |known| {
            known.largest_error.map_or_else(String::new, signed)
        })
        .number("headroom", |known| percent(known.headroom))
        .text()
}

pub(super) fn spaced(name: &str) -> String {
    name.replace('_', " ")
}

pub(super) fn bytes(bytes: i64) -> String {
    Bytes(bytes.unsigned_abs()).to_string()
}

pub(super) fn percent(part: f64) -> String {
    format!("{:.2}%", part * 100.0)
}

fn signed(part: f64) -> String {
    format!("{:+.2}%", part * 100.0)
}
