//! Answers that are stored, and what makes them out of date.

use super::outcomes::{bytes, percent, spaced};
use crate::jobs::NearDocument;
use crate::store::{Outdated, StoredRecommendation};
use batchfit_report::style::{Style, facts, lines, paragraph};

/// Writes a line for each answer.
pub fn answers(answers: &[StoredRecommendation], style: &Style) -> String {
    if answers.is_empty() {
        return "No answer is stored here; `batchfit fit` makes one.\n".to_owned();
    }
    let headroom = |answer: &StoredRecommendation| {
        let headroom = answer.headroom.as_ref();
        headroom.map_or_else(String::new, |it| percent(it.share.fraction()))
    };
    lines(answers, style)
        .words("fit", |answer| answer.fit_id.clone())
        .words("model", variant)
        .words("card", |answer| answer.gpu.clone())
        .number("limit", |answer| bytes(answer.limit_bytes))
        .number("batch", |answer| answer.micro_batch.to_string())
        .number("GPUs", |answer| answer.world_size.to_string())
        .number("headroom", headroom)
        .words("outdated by", |answer| {
            let because = answer.stale.iter().flat_map(|stale| &stale.because);
            let because: Vec<&str> = because.map(|outdated| outdated.what).collect();
            because.join(", ")
        })
        .text()
}

/// Writes one answer, and what has changed since.
pub fn answer(answer: &StoredRecommendation, style: &Style) -> String {
    let mut out = style.strong(&headline(answer));
    out += "\n";
    let mut figures = vec![
        ("fit", answer.fit_id.clone()),
        ("variant", variant(answer)),
        ("card", format!("{} ({})", answer.gpu, answer.device)),
        ("limit", bytes(answer.limit_bytes)),
        ("predicted peak", bytes(answer.peak_reserved_bytes)),
    ];
    if let Some(headroom) = &answer.headroom {
        let share = percent(headroom.share.fraction());
        let says = match (headroom.from.as_str(), headroom.outcomes) {
            ("learnt", 1) => "learnt from one outcome".to_owned(),
            ("learnt", outcomes) => format!("learnt from {outcomes} outcomes"),
            ("others", _) => "learnt from other models on this card".to_owned(),
            ("asked", _) => "as the request asks for".to_owned(),
            _by_itself => "its default headroom".to_owned(),
        };
        figures.push(("headroom", format!("{share}, {says}")));
    }
    let made_with = [
        Some(format!("batchfit {}", answer.batchfit_version)),
        Some(&answer.pytorch)
            .filter(|pytorch| !pytorch.is_empty())
            .map(|pytorch| format!("PyTorch {pytorch}")),
        answer.driver.as_ref().map(|it| format!("driver {it}")),
        answer.cudnn.as_ref().map(|it| format!("cuDNN {it}")),
    ];
    let made_with: Vec<String> = made_with.into_iter().flatten().collect();
    figures.push(("made with", made_with.join(", ")));
    out += &facts(&figures, style);
    if let Some(stale) = &answer.stale {
        let because: Vec<String> = stale.because.iter().map(changed).collect();
        let text = format!(
            "It would be another one today: {}. `batchfit fit --again {}` makes it again.",
            because.join("; "),
            answer.fit_id
        );
        out += "\n";
        out += &paragraph("", &text, style.width);
    }
    out
}

/// Writes the stored answer to a question, or the nearest one.
pub fn near(near: &NearDocument, style: &Style) -> String {
    let text = if near.exact {
        "This very question was answered.".to_owned()
    } else if near.differs.is_empty() {
        "A stale answer to this question is stored.".to_owned()
    } else {
        let differs: Vec<String> = near.differs.iter().map(|name| spaced(name)).collect();
        format!(
            "This question was not answered yet. The nearest answer for the model differs in: {}.",
            differs.join(", ")
        )
    };
    let mut out = paragraph("", &text, style.width);
    out += "\n";
    out += &answer(&near.recommendation, style);
    out
}

fn headline(answer: &StoredRecommendation) -> String {
    match answer.micro_batch {
        0 => format!("{}: no batch fits.\n", answer.model),
        batch => format!(
            "{}: batch {batch}, accumulating {}.\n",
            answer.model, answer.accumulation_steps
        ),
    }
}

/// What is trained, and how, as far as it is no default.
fn variant(answer: &StoredRecommendation) -> String {
    let checkpointing = match answer.checkpointing.as_str() {
        "none" => None,
        some => Some(format!("checkpoint {some}")),
    };
    let strategy = match answer.strategy.as_str() {
        "" | "none" => None,
        some => Some(some.to_owned()),
    };
    let how = match answer.mode.as_str() {
        "train" => answer.optimizer.clone(),
        mode => Some(mode.to_owned()),
    };
    let parts = [
        Some(answer.model.clone()),
        Some(answer.precision.clone()),
        how,
        checkpointing,
        strategy,
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(" ")
}

fn changed(outdated: &Outdated) -> String {
    let what = outdated.what;
    match (&outdated.was, &outdated.now) {
        (Some(was), Some(now)) => format!("{what} was {was} and is {now}"),
        (None, Some(now)) => format!("{what} is {now}"),
        (Some(was), None) => format!("{what} was {was}"),
        (None, None) => format!("{what} has changed"),
    }
}
