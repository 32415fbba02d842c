//! How an answer is shown: how wide, with or without colour, with or without detail, and with nothing in it that a terminal would obey.

use unicode_width::UnicodeWidthStr as _;

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

/// How many columns a text takes.
pub(super) fn columns(text: &str) -> usize {
    text.width()
}

/// The text in lines of at most `width` columns, broken between words alone: a word that is longer has a line of
/// its own and sticks out. There is always one line.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let text = harmless(text);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let needed = columns(word);
        let line = lines.last_mut().expect("there is always one");
        if line.is_empty() {
            line.push_str(word);
            used = needed;
        } else if used + 1 + needed <= width {
            line.push(' ');
            line.push_str(word);
            used += 1 + needed;
        } else {
            lines.push(word.to_owned());
            used = needed;
        }
    }
    lines
}

/// The columns of the longest word.
pub(super) fn longest_word(text: &str) -> usize {
    let text = harmless(text);
    text.split_whitespace().map(columns).max().unwrap_or(0)
}

/// A paragraph that begins with `first`, whose other lines are indented as far.
pub fn paragraph(first: &str, text: &str, width: usize) -> String {
    let indent = columns(first);
    let mut out = String::new();
    for (index, line) in wrapped(text, width.saturating_sub(indent))
        .iter()
        .enumerate()
    {
        let begin = if index == 0 { first } else { "" };
        // By hand: formatting counts characters and not columns.
        let padding = " ".repeat(indent - columns(begin));
        out += format!("{begin}{padding}{line}").trim_end();
        out.push('\n');
    }
    out
}

/// The text with a sign in the place of whatever would move a cursor, hide text or turn its direction: names come
/// from files that others wrote.
pub fn harmless(text: &str) -> String {
    text.replace(is_harmful, "\u{fffd}")
}

/// Whether a character does that.
pub fn is_harmful(c: char) -> bool {
    let turns = matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    turns || (c.is_control() && !c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_alone() {
        let long = "https://example.org/a-long-address";
        for width in 0..80 {
            let lines = wrapped(&format!("See {long} and others."), width);

            assert!(lines.iter().any(|line| line.contains(long)));
            for line in &lines {
                assert!(columns(line) <= width || !line.contains(' '), "{line:?}");
            }
            assert_eq!(lines.join(" "), format!("See {long} and others."));
        }
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(wrapped("模型 模型", 8), ["模型", "模型"]);
        assert_eq!(wrapped("模型 模型", 9), ["模型 模型"]);
    }

    #[test]
    fn other_lines_are_indented_like_the_first() {
        assert_eq!(paragraph("note: ", "a b c", 9), "note: a b\n      c\n");
        assert_eq!(paragraph("note: ", "", 9), "note:\n");
    }

    #[test]
    fn names_cannot_move_the_cursor_or_turn_the_text() {
        assert_eq!(
            wrapped("a\u{1b}[2Jb\tc\r\nd \u{202e}e", 80),
            ["a\u{fffd}[2Jb c d \u{fffd}e"]
        );
    }

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
