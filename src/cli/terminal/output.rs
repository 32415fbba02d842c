//! The only place that writes answers to stdout and problems to stderr.

use std::borrow::Cow;
use std::fs;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use batchfit_platform::{file_of, identity, is_open};
use serde::Serialize;

use crate::cli::error::CliError;
use crate::http::Problem;
use crate::report::style::is_harmful;
use crate::report::{BOLD, DIM, RESET};

/// Prints text for a person, which ends in a line break.
pub(in crate::cli) fn text(text: &str) -> Result<(), CliError> {
    write(&harmless(text))
}

/// Prints a document as JSON, or as text for a person.
pub(in crate::cli) fn answer(
    is_json: bool,
    document: &impl Serialize,
    as_text: impl FnOnce() -> String,
) -> Result<(), CliError> {
    if is_json {
        json(document)
    } else {
        text(&as_text())
    }
}

/// Prints a list that is on one page.
pub(in crate::cli) fn list(
    is_json: bool,
    items: &[impl Serialize],
    as_text: impl FnOnce() -> String,
) -> Result<(), CliError> {
    let page = serde_json::json!({ "items": items, "next": null });
    answer(is_json, &page, as_text)
}

/// What a terminal shows of a text, whatever names a file has in it: control characters could move its cursor, change
/// its title or hide what stands there, and marks turn the direction of writing.
///
/// What reports begin and end bold and dim text with stays: nothing can be hidden with it.
fn harmless(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| (c.is_control() && c != '\n') || is_harmful(c);
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let kept = [BOLD, DIM, RESET]
            .into_iter()
            .find(|sequence| rest.starts_with(sequence));
        let length = kept.map_or(first.len_utf8(), str::len);
        out.push_str(match kept {
            Some(sequence) => sequence,
            None if is_control(first) => "\u{fffd}",
            None => &rest[..length],
        });
        rest = &rest[length..];
    }
    Cow::Owned(out)
}

/// Whether stdout was closed when the process began.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Notes whether stdout is closed; called before anything is opened in its place.
pub extern "C" fn look_at_stdout() {
    let is_open = is_open(io::stdout());
    WAS_CLOSED.store(!is_open, Ordering::Relaxed);
}

fn write(text: &str) -> Result<(), CliError> {
    refuse_closed()?;
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(CliError::writing)
}

/// An error where stdout was closed when this program began.
pub(in crate::cli) fn refuse_closed() -> Result<(), CliError> {
    if WAS_CLOSED.load(Ordering::Relaxed) {
        return Err(CliError::writing(io::Error::other("it is closed")));
    }
    Ok(())
}

/// Whether stdout is closed, in whose place the standard library opens `/dev/null`, or leads there by itself.
pub(in crate::cli) fn is_nowhere() -> bool {
    let stdout = file_of(io::stdout());
    let both = (
        stdout.and_then(|stdout| stdout.metadata()),
        fs::metadata("/dev/null"),
    );
    matches!(both, (Ok(stdout), Ok(null)) if identity(&stdout) == identity(&null))
}

/// Prints what another program reads, as it is.
pub(in crate::cli) fn raw(bytes: &[u8]) -> Result<(), CliError> {
    write(&String::from_utf8_lossy(bytes))
}

/// Prints one JSON document.
pub(in crate::cli) fn json(document: &impl Serialize) -> Result<(), CliError> {
    let mut line = serde_json::to_string_pretty(document)
        .expect("documents have string keys and no infinite numbers");
    line.push('\n');
    write(&line)
}

/// Prints one JSON document as one line.
pub(in crate::cli) fn json_line(document: &impl Serialize) -> Result<(), CliError> {
    let mut line = serde_json::to_string(document)
        .expect("documents have string keys and no infinite numbers");
    line.push('\n');
    write(&line)
}

/// Writes one JSON document to a file, as one line.
pub(in crate::cli) fn json_file(path: &Path, document: &impl Serialize) -> Result<(), CliError> {
    let mut line =
        serde_json::to_vec(document).expect("documents have string keys and no infinite numbers");
    line.push(b'\n');
    fs::write(path, line).map_err(CliError::unwritable(path))
}

/// Warns a person beside the answer.
pub(in crate::cli) fn warning(text: &str) {
    report_line("warning", text);
}

/// Tells a person something beside the answer.
pub(in crate::cli) fn note(text: &str) {
    report_line("note", text);
}

/// Says why there is nothing on stdout, where that is an answer too.
pub(in crate::cli) fn error(text: &str) {
    report_line("error", text);
}

fn report_line(kind: &str, text: &str) {
    // A line of progress may stand there.
    let clear = if io::stderr().is_terminal() {
        "\r\x1b[K"
    } else {
        ""
    };
    // There is no stream left to report on when stderr is gone.
    let _ = writeln!(io::stderr(), "{clear}{kind}: {}", harmless(text));
}

/// Prints why there is no answer to stderr: as the service's problem document, or for a person.
pub(in crate::cli) fn problem(problem: &Problem, json: bool) {
    let text = if json {
        serde_json::to_string_pretty(problem).expect("problems have string keys")
    } else {
        format!("error: {}", harmless(&problem.detail))
    };
    // There is no stream left to report on when stderr is gone.
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use crate::cli::terminal::output::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_as_a_sign_and_bold_stays_bold() {
        let text = "\u{1b}[1mbold\u{1b}[0m\n\u{1b}[2J\u{7}name\u{9b}8m\u{202e}x";

        assert_eq!(
            harmless(text),
            "\u{1b}[1mbold\u{1b}[0m\n\u{fffd}[2J\u{fffd}name\u{fffd}8m\u{fffd}x"
        );
    }
}
