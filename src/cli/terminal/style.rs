//! How wide and colourful stdout is.

use std::env;
use std::io::{self, IsTerminal as _};

use batchfit_platform::terminal_width;

use crate::report::Style;

/// Narrower than this nothing is laid out well.
const NARROWEST: usize = 40;

/// What is known of stdout, for [`style`].
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
pub(in crate::cli) fn stdout(verbose: bool) -> Style {
    let text = |name| env::var_os(name).and_then(|value| value.into_string().ok());
    style(
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

fn style(surroundings: &TerminalInfo, verbose: bool) -> Style {
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

#[cfg(test)]
mod tests {
    use crate::cli::terminal::style::*;

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
        let seen = style(&terminal(), true);

        assert_eq!((seen.width, seen.color, seen.verbose), (132, true, true));
    }

    #[test]
    fn what_people_say_about_colours_goes_before_what_a_terminal_has() {
        let text = |value: &str| Some(value.to_owned());
        for (case, surroundings) in [
            (
                "NO_COLOR",
                TerminalInfo {
                    no_color: true,
                    ..terminal()
                },
            ),
            (
                "CLICOLOR",
                TerminalInfo {
                    clicolor: text("0"),
                    ..terminal()
                },
            ),
            (
                "TERM",
                TerminalInfo {
                    terminal: text("dumb"),
                    ..terminal()
                },
            ),
            (
                "a pipe",
                TerminalInfo {
                    is_terminal: false,
                    ..terminal()
                },
            ),
        ] {
            assert!(!style(&surroundings, false).color, "{case}");
        }
        let wanted = TerminalInfo {
            clicolor: text("1"),
            ..terminal()
        };
        assert!(style(&wanted, false).color);
    }

    #[test]
    fn columns_go_before_the_terminal_and_nonsense_is_ignored() {
        let width = |columns: &str, width| {
            let columns = Some(columns.to_owned());
            style(
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
}
