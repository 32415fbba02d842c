//! The only place that writes to stdout.

use std::io::{self, Write};

use serde::Serialize;

use super::trouble::Trouble;

/// Prints text that ends in a line break.
pub(super) fn text(text: &str) -> Result<(), Trouble> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(Trouble::writing)
}

/// Prints one JSON document.
pub(super) fn json(document: &impl Serialize) -> Result<(), Trouble> {
    let mut line = serde_json::to_string_pretty(document)
        .expect("documents have string keys and no infinite numbers");
    line.push('\n');
    text(&line)
}
