//! Ways in for the targets in `tests/fuzz`.

use regex::bytes::Regex;

use super::converse::read_lines;
use super::heard::{Heard, Lines};

/// Listens to what a command says, part by part.
pub(in crate::cli) fn heard<'a>(pattern: &Regex, parts: impl IntoIterator<Item = &'a [u8]>) {
    let mut lines = Lines::new(pattern);
    let mut heard = Heard::default();
    for part in parts {
        lines.take(part, &mut heard);
    }
    lines.end(&mut heard);
}

/// Reads the lines of a program that leads a search.
pub(in crate::cli) fn conversed(mut lines: &[u8]) {
    read_lines(&mut lines);
}
