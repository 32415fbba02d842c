//! For an issue or a wiki.

use std::fmt::Write as _;

use super::Answer;
use super::lengths::{LengthRow, rows};
use crate::fit::{rounded, shown_name};
use batchfit_step::units::Bytes;

/// A table with a line for each answer; of a single one, a line for each variant.
pub fn markdown(answers: &[Answer]) -> String {
    let rows = rows(answers);
    let answers: Vec<Answer> = rows.iter().map(LengthRow::answer).collect();
    let mut text = String::new();
    if let Some(first) = answers.first() {
        let environment = &first.result.environment;
        let _ = writeln!(
            text,
            "{}, PyTorch {}, batchfit {}\n",
            escaped(shown_name(first.model)),
            environment.pytorch,
            environment.batchfit
        );
    }
    let has_lengths = answers.iter().any(|answer| answer.length.is_some());
    let mut header = vec!["card"];
    if has_lengths {
        header.push("length");
    }
    let mut all = answers.iter().flat_map(|answer| &answer.result.variants);
    let has_speeds = all.any(|variant| variant.recommendation.samples_per_second.is_some());
    header.extend([
        "variant",
        "micro-batch",
        "steps",
        "samples per step",
        "peak reserved",
        "limit",
    ]);
    header.extend(has_speeds.then_some("samples/s"));
    text += &row(header.iter().map(|name| (*name).to_owned()));
    text += &row(header.iter().map(|_| "---".to_owned()));
    for answer in &answers {
        let all = match answers.len() {
            1 => answer.result.variants.as_slice(),
            _ => answer.result.variants.get(..1).unwrap_or_default(),
        };
        for variant in all {
            let best = &variant.recommendation;
            let length = has_lengths.then(|| answer.length.unwrap_or_default().to_owned());
            let figures = [
                variant.training.to_string(),
                best.micro_batch.to_string(),
                best.accumulation_steps.to_string(),
                best.global_batch.to_string(),
                Bytes(best.peak_reserved_bytes).to_string(),
                Bytes(best.limit_bytes).to_string(),
            ];
            let speed = best
                .samples_per_second
                .map_or_else(|| "-".to_owned(), rounded);
            let speed = has_speeds.then_some(speed);
            let card = answer.result.environment.gpu.clone();
            let cells = [card].into_iter().chain(length).chain(figures);
            text += &row(cells.chain(speed));
        }
    }
    text
}

fn row(cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<String> = cells.map(|cell| escaped(&cell)).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// A name in which nothing ends a cell or means anything to a viewer.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '|' | '*' | '`' | '<' | '>' | '[' | ']' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
