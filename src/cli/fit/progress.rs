//! Says on a terminal what is being done.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::arguments::Format;
use crate::model::Variant;

/// A line on stderr, where that is a terminal; nothing beside a document.
pub(super) struct ProgressLine(ProgressBar);

impl ProgressLine {
    pub(super) fn new(format: Format) -> ProgressLine {
        let target = match format {
            Format::Json => ProgressDrawTarget::hidden(),
            _ => ProgressDrawTarget::stderr(),
        };
        let style = ProgressStyle::with_template("{spinner} {wide_msg}")
            .expect("the template is well formed");
        let bar = ProgressBar::with_draw_target(None, target).with_style(style);
        bar.enable_steady_tick(Duration::from_millis(100));
        ProgressLine(bar)
    }

    /// Says what is being done now.
    pub(super) fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// Takes the line away, before an answer is written.
    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for ProgressLine {
    /// Before an error is written.
    fn drop(&mut self) {
        self.end();
    }
}

/// What the engine does, which begins with the variant that it does it for, with how many variants there are.
pub(super) fn progress_text(note: &str, variants: &[Variant]) -> String {
    let begins = |(_, variant): &(usize, &Variant)| {
        note.strip_prefix(&variant.to_string())
            .is_some_and(|rest| rest.starts_with(':'))
    };
    match variants.iter().enumerate().find(begins) {
        Some((index, _)) if variants.len() > 1 => {
            format!("variant {} of {}, {note}", index + 1, variants.len())
        }
        Some(_) | None => note.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Precision;

    #[test]
    fn one_of_several_variants_is_counted() {
        let fp32 = Variant::default();
        let bf16 = Variant {
            precision: Precision::Bf16,
            ..Variant::default()
        };
        let several = [fp32.clone(), bf16];

        let note = "bf16 adamw foreach: simulating batch 8";
        assert_eq!(
            progress_text(note, &several),
            format!("variant 2 of 2, {note}")
        );
        assert_eq!(
            progress_text("starting the GPU", &several),
            "starting the GPU"
        );
        let note = "fp32 adamw foreach: simulating batch 8";
        assert_eq!(progress_text(note, &[fp32]), note);
    }
}
