//! The only place that writes answers to stdout and problems to stderr.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;

use super::trouble::Trouble;
use crate::http::Problem;

/// Prints text for a person, which ends in a line break.
pub(super) fn text(text: &str) -> Result<(), Trouble> {
    write(&harmless(text))
}

/// What a terminal shows of a text, whatever names a file has in it: control characters could move its cursor, change
/// its title or hide what stands there.
fn harmless(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && c != '\n';
    if text.contains(is_control) {
        Cow::Owned(text.replace(is_control, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

fn write(text: &str) -> Result<(), Trouble> {
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
    write(&line)
}

/// Tells a person something beside the answer.
pub(super) fn warning(text: &str) {
    // There is nobody left to tell that stderr is gone.
    let _ = writeln!(io::stderr(), "warning: {text}");
}

/// Prints why there is no answer to stderr: as the service's problem document, or for a person.
pub(super) fn problem(problem: &Problem, json: bool) {
    let text = if json {
        serde_json::to_string_pretty(problem).expect("problems have string keys")
    } else {
        format!("error: {}", harmless(&problem.detail))
    };
    // There is nobody left to tell that stderr is gone.
    let _ = writeln!(io::stderr(), "{text}");
}
