//! What else could be done.

use super::rounded;
use crate::style::Style;
use crate::table::{text, with_header};
use crate::wrap::paragraph;
use batchfit_fit::{Suggestion, SuggestionKind};
use batchfit_step::units::Bytes;

/// A line for each change that gains samples, in the order of the answer, for which so many are wanted at once; and for each setting of
/// the allocator, since somebody may have one in mind. The others are named below.
pub(super) fn table(suggestions: &[Suggestion], wanted: u64, style: &Style) -> String {
    let is_line = |one: &&Suggestion| {
        one.gained > 0 || (one.kind == SuggestionKind::Allocator && one.micro_batch > 0)
    };
    let (lines, others): (Vec<_>, Vec<_>) = suggestions.iter().partition(is_line);
    let any_steps = lines.iter().any(|one| one.accumulation_steps > 1);
    let any_pace = lines.iter().any(|one| one.samples_per_second.is_some());
    let batch = if any_steps {
        "batch x steps"
    } else {
        "micro-batch"
    };
    let mut header = vec!["change", batch, "gained", ""];
    header.extend(any_pace.then_some("samples/s"));
    header.push("cost");
    let mut table = with_header(&header, &[batch, "gained", "samples/s"]);
    for one in lines {
        let mut row = vec![
            one.change.clone(),
            match (one.micro_batch, any_steps) {
                (0, _) => "-".to_owned(),
                (batch, true) => format!("{batch} x {}", one.accumulation_steps),
                (batch, false) => batch.to_string(),
            },
            match one.gained {
                0 => "0".to_owned(),
                gained => format!("{gained:+}"),
            },
            if one.reaches { "reaches it" } else { "" }.to_owned(),
        ];
        row.extend(any_pace.then(|| {
            let pace = one.samples_per_second;
            pace.map_or_else(|| "-".to_owned(), rounded)
        }));
        row.push(one.cost.clone());
        table.add_row(row);
    }
    if suggestions.iter().all(|one| one.micro_batch == 0) {
        let tried: Vec<&str> = suggestions.iter().map(|one| one.change.as_str()).collect();
        let text = format!(
            "None of these makes a batch of one fit, alone or together: {}",
            tried.join(", ")
        );
        return paragraph("", &text, style.width);
    }
    let title = match wanted {
        1 => "What makes a batch of one fit\n".to_owned(),
        _ => format!("What else, first what takes {wanted} samples at once\n"),
    };
    let mut report = title + &text(&table, style);
    if !others.is_empty() {
        let with_peak = |one: &Suggestion| match one.micro_batch {
            0 if wanted == 1 => one.change.clone(),
            0 => format!("{} (nothing fits)", one.change),
            _ => format!("{} ({})", one.change, Bytes(one.peak_reserved_bytes)),
        };
        let others: Vec<String> = others.into_iter().map(with_peak).collect();
        let title = match wanted {
            1 => "Not one of these alone",
            _ => "No more samples, but so much reserved",
        };
        let others = format!("{title}: {}", others.join(", "));
        report += &paragraph("", &others, style.width);
    }
    report
}
