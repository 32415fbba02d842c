//! How an answer is shown: how wide, with or without colour, with or without detail.

/// What a reader can see and wants to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// How many columns a line may have. Words are never broken: a longer one sticks out.
    pub width: usize,
    /// Whether escape sequences for bold and dim text may be used.
    pub color: bool,
    /// Whether to show what the answer rests on: probes, steps, assumptions.
    pub verbose: bool,
}

impl Default for Style {
    /// What is written to a file or a pipe.
    fn default() -> Style {
        Style {
            width: 100,
            color: false,
            verbose: false,
        }
    }
}

/// Begins bold text.
pub const BOLD: &str = "\u{1b}[1m";
/// Begins dim text.
pub const DIM: &str = "\u{1b}[2m";
/// Ends both.
pub const RESET: &str = "\u{1b}[0m";

impl Style {
    /// Lines that stand out.
    pub fn strong(&self, lines: &str) -> String {
        self.painted(lines, BOLD)
    }

    /// Lines that step back.
    pub(super) fn quiet(&self, lines: &str) -> String {
        self.painted(lines, DIM)
    }

    /// Each line by itself, so that a pager that shows a part of them shows it right.
    fn painted(&self, lines: &str, begin: &str) -> String {
        if !self.color {
            return lines.to_owned();
        }
        let paint = |line: &str| match line.strip_suffix('\n') {
            Some("") => line.to_owned(),
            Some(line) => format!("{begin}{line}{RESET}\n"),
            None => format!("{begin}{line}{RESET}"),
        };
        lines.split_inclusive('\n').map(paint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_only_where_it_may_be_and_ends_with_each_line() {
        let plain = Style::default();
        let coloured = Style {
            color: true,
            ..plain
        };

        assert_eq!(plain.strong("a\nb\n"), "a\nb\n");
        assert_eq!(
            coloured.strong("a\n\nb\n"),
            "\u{1b}[1ma\u{1b}[0m\n\n\u{1b}[1mb\u{1b}[0m\n"
        );
        assert_eq!(coloured.quiet("a"), "\u{1b}[2ma\u{1b}[0m");
    }
}
