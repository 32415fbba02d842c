//! Ways in for the targets in `tests/fuzz`.

use regex_lite::Regex;

use super::ask_tell::read_lines;
use super::run_output::{Lines, RunOutput};

/// Listens to what a command says, part by part.
pub(in crate::cli) fn scan<'a>(pattern: &Regex, parts: impl IntoIterator<Item = &'a [u8]>) {
    let mut lines = Lines::new(pattern);
    let mut heard = RunOutput::default();
    for part in parts {
        lines.take(part, &mut heard);
    }
    lines.end(&mut heard);
}

/// Reads the lines of a program that leads a search.
pub(in crate::cli) fn ask_tell(mut lines: &[u8]) {
    read_lines(&mut lines);
}
