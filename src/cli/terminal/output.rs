//! The only place that writes answers to stdout and problems to stderr, and says there what is being done; how wide and colourful stdout is.

use std::borrow::Cow;
use std::cell::Cell;
use std::env;
use std::fs;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use batchfit_platform::{file_of, identity, is_open, terminal_width};
use serde::Serialize;

use crate::cli::Outcome;
use crate::cli::arguments::Format;
use crate::cli::error::CliError;
use crate::http::Problem;
use crate::model::Variant;
use crate::report::style::is_harmful;
use crate::report::{BOLD, DIM, RESET, Style};

/// Prints text for a person, which ends in a line break. Whoever prints has an answer.
pub(in crate::cli) fn text(text: &str) -> Result<Outcome, CliError> {
    write(&harmless(text))
}

/// Prints a document as JSON, or as text for a person.
pub(in crate::cli) fn answer(
    is_json: bool,
    document: &impl Serialize,
    as_text: impl FnOnce() -> String,
) -> Result<Outcome, CliError> {
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
) -> Result<Outcome, CliError> {
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

fn write(text: &str) -> Result<Outcome, CliError> {
    refuse_closed()?;
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    written
        .and_then(|()| stdout.flush())
        .map(|()| Outcome::Answered)
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
pub(in crate::cli) fn raw(bytes: &[u8]) -> Result<Outcome, CliError> {
    write(&String::from_utf8_lossy(bytes))
}

/// Prints one JSON document.
pub(in crate::cli) fn json(document: &impl Serialize) -> Result<Outcome, CliError> {
    let mut line = serde_json::to_string_pretty(document)
        .expect("documents have string keys and no infinite numbers");
    line.push('\n');
    write(&line)
}

/// Prints one JSON document as one line.
pub(in crate::cli) fn json_line(document: &impl Serialize) -> Result<Outcome, CliError> {
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

/// Narrower than this nothing is laid out well.
const NARROWEST: usize = 40;

/// What is known of stdout, for [`styled`].
#[derive(Debug, Default)]
struct TerminalInfo {
    is_terminal: bool,
    /// The columns that the terminal says it has.
    width: Option<usize>,
    /// `COLUMNS`.
    columns: Option<String>,
    /// Whether `NO_COLOR` is set to anything.
    no_color: bool,
    /// `CLICOLOR`.
    clicolor: Option<String>,
    /// `TERM`.
    terminal: Option<String>,
}

/// The style of what is written to stdout.
pub(in crate::cli) fn style(verbose: bool) -> Style {
    let text = |name| env::var_os(name).and_then(|value| value.into_string().ok());
    styled(
        &TerminalInfo {
            is_terminal: io::stdout().is_terminal(),
            width: terminal_width(io::stdout()),
            columns: text("COLUMNS"),
            no_color: env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
            clicolor: text("CLICOLOR"),
            terminal: text("TERM"),
        },
        verbose,
    )
}

fn styled(surroundings: &TerminalInfo, verbose: bool) -> Style {
    let asked = surroundings
        .columns
        .as_deref()
        .and_then(|columns| columns.parse().ok());
    let width = asked.or(surroundings.width).filter(|width| *width > 0);
    let has_colors = surroundings.terminal.as_deref() != Some("dumb");
    let wants_colors = !surroundings.no_color && surroundings.clicolor.as_deref() != Some("0");
    Style {
        width: width.map_or(Style::default().width, |width| width.max(NARROWEST)),
        color: surroundings.is_terminal && has_colors && wants_colors,
        verbose,
    }
}

/// How often the line changes at most.
const REDRAW: Duration = Duration::from_millis(100);

/// A line on stderr, where that is a terminal; nothing beside a document.
pub(in crate::cli) struct ProgressLine {
    is_shown: bool,
    redraw: Cell<Instant>,
}

impl ProgressLine {
    pub(in crate::cli) fn new(format: Format) -> ProgressLine {
        ProgressLine {
            is_shown: format != Format::Json && io::stderr().is_terminal(),
            redraw: Cell::new(Instant::now()),
        }
    }

    /// Says what is being done now.
    pub(in crate::cli) fn say(&self, what: &str) {
        let now = Instant::now();
        if self.is_shown && self.redraw.get() <= now {
            self.redraw.set(now + REDRAW);
            let width = terminal_width(io::stderr()).unwrap_or(80);
            let line: String = what.chars().take(width - 1).collect();
            // A terminal that went away is told by whatever writes the answer.
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
        }
    }

    /// Takes the line away, before an answer is written.
    pub(in crate::cli) fn end(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
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
pub(in crate::cli) fn progress_text(note: &str, variants: &[Variant]) -> String {
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
    use crate::cli::terminal::output::*;
    use crate::model::Precision;

    #[test]
    fn what_a_terminal_would_obey_is_shown_as_a_sign_and_bold_stays_bold() {
        let text = "\u{1b}[1mbold\u{1b}[0m\n\u{1b}[2J\u{7}name\u{9b}8m\u{202e}x";

        assert_eq!(
            harmless(text),
            "\u{1b}[1mbold\u{1b}[0m\n\u{fffd}[2J\u{fffd}name\u{fffd}8m\u{fffd}x"
        );
    }

    fn terminal() -> TerminalInfo {
        TerminalInfo {
            is_terminal: true,
            width: Some(132),
            terminal: Some("xterm".to_owned()),
            ..TerminalInfo::default()
        }
    }

    #[test]
    fn a_terminal_has_its_width_and_colours() {
        let seen = styled(&terminal(), true);

        assert_eq!((seen.width, seen.color, seen.verbose), (132, true, true));
    }

    type Change<'a> = &'a dyn Fn(&mut TerminalInfo);

    #[test]
    fn what_people_say_about_colours_goes_before_what_a_terminal_has() {
        let text = |value: &str| Some(value.to_owned());
        let changes: [(&str, Change<'_>); 4] = [
            ("NO_COLOR", &|it| it.no_color = true),
            ("CLICOLOR", &|it| it.clicolor = text("0")),
            ("TERM", &|it| it.terminal = text("dumb")),
            ("a pipe", &|it| it.is_terminal = false),
        ];
        for (case, change) in changes {
            let mut surroundings = terminal();
            change(&mut surroundings);
            assert!(!styled(&surroundings, false).color, "{case}");
        }
        let wanted = TerminalInfo {
            clicolor: text("1"),
            ..terminal()
        };
        assert!(styled(&wanted, false).color);
    }

    #[test]
    fn columns_go_before_the_terminal_and_nonsense_is_ignored() {
        let width = |columns: &str, width| {
            let columns = Some(columns.to_owned());
            styled(
                &TerminalInfo {
                    width,
                    columns,
                    ..TerminalInfo::default()
                },
                false,
            )
            .width
        };

        assert_eq!(width("72", Some(132)), 72);
        assert_eq!(width("1", None), NARROWEST);
        for nonsense in ["", "0", "-3", "wide", "99999999999999999999999"] {
            assert_eq!(
                width(nonsense, None),
                Style::default().width,
                "{nonsense:?}"
            );
        }
        assert_eq!(width("wide", Some(132)), 132);
        assert_eq!(width("", Some(0)), Style::default().width);
    }

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
