//! What trainings came to that followed an answer, beside what was predicted.

use crate::jobs::{AccuracyDocument, OutcomeDocument};
use crate::units::Bytes;
use batchfit_report::style::Style;
use batchfit_report::style::paragraph;
use batchfit_report::table::{facts, text, with_header};

/// Writes what an outcome changed.
pub fn outcome(outcome: &OutcomeDocument, style: &Style) -> String {
    let mut figures = vec![("ended", spaced(&outcome.outcome))];
    let bytes = |bytes: i64| Bytes(bytes.unsigned_abs()).to_string();
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

/// Writes one outcome a line.
pub fn outcomes(outcomes: &[OutcomeDocument], style: &Style) -> String {
    let head = [
        "batch",
        "ended",
        "predicted",
        "reserved",
        "off by",
        "steps",
        "headroom",
    ];
    let rows = outcomes.iter().map(|outcome| {
        let bytes = |bytes: i64| Bytes(bytes.unsigned_abs()).to_string();
        vec![
            outcome.batch.to_string(),
            spaced(&outcome.outcome),
            bytes(outcome.predicted_peak_reserved_bytes),
            outcome.peak_reserved_bytes.map_or_else(String::new, bytes),
            outcome.error.map_or_else(String::new, signed),
            outcome.steps.map_or_else(String::new, |it| it.to_string()),
            match (&outcome.headroom, &outcome.doubt) {
                (Some(headroom), _) => percent(headroom.after),
                (None, Some(doubt)) => spaced(&doubt.code),
                (None, None) => String::new(),
            },
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return "No outcome was reported; `batchfit outcome ID` reports one.\n".to_owned();
    }
    let numbers = ["batch", "predicted", "reserved", "off by", "steps"];
    listed((&head, &numbers), rows, style)
}

/// Writes a line for each model on each card.
pub fn accuracy(known: &[AccuracyDocument], style: &Style) -> String {
    let head = [
        "model", "card", "answers", "outcomes", "misses", "off by", "at most", "headroom",
    ];
    let rows = known.iter().map(|known| {
        vec![
            known.model.clone(),
            known.gpu.clone(),
            known.source.clone(),
            known.outcomes.to_string(),
            known.misses.to_string(),
            known.mean_error.map_or_else(String::new, signed),
            known.largest_error.map_or_else(String::new, signed),
            percent(known.headroom),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return "No outcome was reported; `batchfit outcome ID` reports one.\n".to_owned();
    }
    let numbers = ["outcomes", "misses", "off by", "at most", "headroom"];
    listed((&head, &numbers), rows, style)
}

pub(super) fn listed(
    (head, numbers): (&[&str], &[&str]),
    rows: Vec<Vec<String>>,
    style: &Style,
) -> String {
    let mut table = with_header(head, numbers);
    for row in rows {
        table.add_row(row);
    }
    text(&table, style)
}

pub(super) fn spaced(name: &str) -> String {
    name.replace('_', " ")
}

pub(super) fn percent(part: f64) -> String {
    format!("{:.2}%", part * 100.0)
}

fn signed(part: f64) -> String {
    format!("{:+.2}%", part * 100.0)
}
