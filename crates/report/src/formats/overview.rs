//! Several answers beside each other: cards, lengths, or both.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::Answer;
use super::lengths::{LengthRow, rows};
use crate::fit::{figure, micro_batch, peak, rounded, shown_name};
use crate::style::{Style, lines, notes, or_dash};
use batchfit_fit::VariantResult;
use batchfit_step::units::Bytes;

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
    let has_few = answers
        .iter()
        .all(|answer| answer.result.variants.len() <= MOST_VARIANTS);
    let most = if has_few { MOST_VARIANTS } else { 1 };
    let lines_of = answers.iter().flat_map(|answer| {
        let shown = answer.result.variants.iter().take(most);
        shown.map(move |variant| (answer, variant, &variant.recommendation))
    });
    let shown: Vec<_> = lines_of.collect();
    let has_costs = has_few && shown.iter().any(|(_, one, _)| one.cost.is_some());
    let has_speed = |one: &VariantResult| one.recommendation.samples_per_second.is_some();
    let mut all = answers.iter().flat_map(|answer| &answer.result.variants);
    let has_speeds = all.any(has_speed);
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
    let of_variants = if has_few { "variant" } else { "best variant" };
    let lines = lines(&shown, style)
        .words("card", |(answer, ..)| {
            card(answer).trim_start_matches("sim:").to_owned()
        })
        .only_if(has_cards)
        .number("length", |(answer, ..)| {
            answer.length.unwrap_or_default().to_owned()
        })
        .only_if(has_lengths)
        .words(of_variants, |(_, one, _)| one.training.to_string())
        .only_if(has_variants)
        .number("micro-batch", |(.., best)| micro_batch(best))
        .number("steps", |(.., best)| figure(best, best.accumulation_steps))
        .number("samples per step", |(.., best)| {
            figure(best, best.global_batch)
        })
        .number("peak reserved", |(.., best)| peak(best))
        .size("limit", |(.., best)| best.limit_bytes)
        .only_if(has_cards)
        .number("samples/s", |(.., best)| {
            or_dash(best.samples_per_second.map(rounded))
        })
        .only_if(has_speeds)
        .words("cost", |(_, one, _)| one.cost.clone().unwrap_or_default())
        .only_if(has_costs);
    let out = style.strong(&format!("{title}\n")) + "\n" + &lines.text();
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
