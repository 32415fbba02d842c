//! Says on a terminal what is being done.

use std::cell::Cell;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

use batchfit_platform::terminal_width;

use crate::cli::arguments::Format;
use crate::model::Variant;

/// How often the line changes at most.
const REDRAW: Duration = Duration::from_millis(100);

/// A line on stderr, where that is a terminal; nothing beside a document.
pub(super) struct ProgressLine {
    is_shown: bool,
    redraw: Cell<Instant>,
}

impl ProgressLine {
    pub(super) fn new(format: Format) -> ProgressLine {
        ProgressLine {
            is_shown: format != Format::Json && stderr().is_terminal(),
            redraw: Cell::new(Instant::now()),
        }
    }

    /// Says what is being done now.
    pub(super) fn say(&self, what: &str) {
        let now = Instant::now();
        if self.is_shown && self.redraw.get() <= now {
            self.redraw.set(now + REDRAW);
            let width = terminal_width(stderr()).unwrap_or(80);
            let line: String = what.chars().take(width - 1).collect();
            // A terminal that went away is told by whatever writes the answer.
            let _ = write!(stderr(), "\r{line}\x1b[K");
        }
    }

    /// Takes the line away, before an answer is written.
    pub(super) fn end(&self) {
        if self.is_shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
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
