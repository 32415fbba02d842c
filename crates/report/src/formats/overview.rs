//! Several answers beside each other: cards, lengths, or both.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::Answer;
use super::lengths::{LengthRow, rows};
use crate::fit::{rounded, shown_name};
use crate::style::Style;
use crate::table::{notes, text, with_header};
use batchfit_step::units::Bytes;

/// Columns that hold numbers.
const NUMBERS: [&str; 7] = [
    "length",
    "micro-batch",
    "steps",
    "samples per step",
    "peak reserved",
    "limit",
    "samples/s",
];

/// Up to so many variants of an answer have a line each; of more only the best has one.
const MOST_VARIANTS: usize = 4;

/// A table with a line for each answer, or each of a few variants of it; `no_gpu` is why they are about cards that the command did not name.
pub fn overview(answers: &[Answer], no_gpu: Option<&str>, style: &Style) -> String {
    let rows = rows(answers);
    let answers: Vec<Answer> = rows.iter().map(LengthRow::answer).collect();
    let Some(first) = answers.first() else {
        return String::new();
    };
    let differ =
        |of: &dyn Fn(&Answer) -> String| answers.iter().any(|answer| of(answer) != of(first));
    let card = |answer: &Answer| answer.result.environment.device.clone();
    let variant = |answer: &Answer| answer.variant().to_string();
    let has_cards = differ(&card);
    let has_lengths = answers.iter().any(|answer| answer.length.is_some());
    let has_variants = answers
        .iter()
        .any(|answer| answer.result.variants.len() > 1);
    let mut header = Vec::new();
    header.extend(has_cards.then_some("card"));
    header.extend(has_lengths.then_some("length"));
    let has_few = answers
        .iter()
        .all(|answer| answer.result.variants.len() <= MOST_VARIANTS);
    let shown = |answer: &Answer| {
        let all = if has_few { MOST_VARIANTS } else { 1 };
        answer
            .result
            .variants
            .iter()
            .take(all)
            .cloned()
            .collect::<Vec<_>>()
    };
    let has_costs = has_few
        && answers.iter().any(|answer| {
            let mut variants = answer.result.variants.iter();
            variants.any(|variant| variant.cost.is_some())
        });
    let title_of_variants = if has_few { "variant" } else { "best variant" };
    header.extend(has_variants.then_some(title_of_variants));
    header.extend(["micro-batch", "steps", "samples per step", "peak reserved"]);
    let has_speeds = answers.iter().any(|answer| {
        let mut variants = answer.result.variants.iter();
        variants.any(|variant| variant.recommendation.samples_per_second.is_some())
    });
    header.extend(has_cards.then_some("limit"));
    header.extend(has_speeds.then_some("samples/s"));
    header.extend(has_costs.then_some("cost"));
    let mut table = with_header(&header, &NUMBERS);
    for answer in &answers {
        for variant in shown(answer) {
            let best = &variant.recommendation;
            let mut cells = Vec::new();
            cells.extend(has_cards.then(|| card(answer).trim_start_matches("sim:").to_owned()));
            cells.extend(has_lengths.then(|| answer.length.unwrap_or_default().to_owned()));
            cells.extend(has_variants.then(|| variant.training.to_string()));
            if best.micro_batch == 0 {
                let lacks = best.missing_bytes.map_or_else(String::new, |missing| {
                    format!(" (lacks {})", Bytes(missing))
                });
                cells.push(format!("none{lacks}"));
                cells.extend(["-", "-", "-"].map(str::to_owned));
            } else {
                cells.extend([
                    best.micro_batch.to_string(),
                    best.accumulation_steps.to_string(),
                    best.global_batch.to_string(),
                    Bytes(best.peak_reserved_bytes).to_string(),
                ]);
            }
            cells.extend(has_cards.then(|| Bytes(best.limit_bytes).to_string()));
            let speed = best
                .samples_per_second
                .map_or_else(|| "-".to_owned(), rounded);
            cells.extend(has_speeds.then_some(speed));
            cells.extend(has_costs.then(|| variant.cost.clone().unwrap_or_default()));
            table.add_row(cells);
        }
    }
    let mut title = shown_name(first.model).to_owned();
    if !has_cards {
        let _ = write!(
            title,
            " on {} ({}), up to {}",
            first.result.environment.gpu,
            card(first),
            Bytes(first.best().limit_bytes)
        );
    }
    if !has_variants {
        let _ = write!(title, ", {}", variant(first));
    }
    let out = style.strong(&format!("{title}\n")) + "\n" + &text(&table, style);
    out + &below(&answers, no_gpu, style)
}

/// What is said below the table.
fn below(answers: &[Answer], no_gpu: Option<&str>, style: &Style) -> String {
    let mut said = without_bf16(answers);
    if let Some(why) = no_gpu {
        let mut text = "batchfit found no GPU here and simulated these; `--on CARD` says more about one, and what fits where nothing does".to_owned();
        if style.verbose {
            text = format!("{text} ({why})");
        }
        said.insert(0, text);
    }
    if said.is_empty() {
        return String::new();
    }
    format!("\n{}", notes(&said, style))
}

/// What to say of cards that are asked about bf16 and have none.
fn without_bf16(answers: &[Answer]) -> Vec<String> {
    let is_without = |answer: &&Answer| {
        let mut notes = answer.best().notes.iter();
        notes.any(|note| note.starts_with("this card has no bfloat16"))
    };
    let card = |answer: &Answer| answer.result.environment.device.replacen("sim:", "", 1);
    let cards: BTreeSet<String> = answers.iter().filter(is_without).map(card).collect();
    let said = |card: String| format!("{card} has no bfloat16: `--amp fp16` is what it is fast in");
    cards.into_iter().map(said).collect()
}
