//! How an answer is shown: how wide, with or without colour, with or without detail, in tables without frames, and with nothing in it that a
//! terminal would obey.

use batchfit_step::units::Bytes;
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

/// What is between two columns.
const GAP: usize = 2;
/// What is before the first.
const INDENT: usize = 1;

/// A column: its heading, and what each row has in it.
#[derive(Debug)]
struct Column<'a> {
    heading: &'a str,
    /// Whether it holds numbers: it is aligned to the right then, and only its heading is wrapped.
    is_number: bool,
    cells: Vec<String>,
}

/// A line for each row, below the headings of its columns.
#[must_use]
#[derive(Debug)]
pub struct Lines<'a, T> {
    rows: &'a [T],
    style: &'a Style,
    columns: Vec<Column<'a>>,
    /// What is about a row and those below it, across all columns.
    above: Vec<Option<String>>,
}

/// A table of these rows, of which the columns are to be said.
pub fn lines<'a, T>(rows: &'a [T], style: &'a Style) -> Lines<'a, T> {
    Lines {
        rows,
        style,
        columns: Vec::new(),
        above: Vec::new(),
    }
}

impl<'a, T> Lines<'a, T> {
    /// A column of words.
    pub fn words(self, heading: &'a str, cell: impl Fn(&T) -> String) -> Self {
        self.column(heading, false, cell)
    }

    /// A column that is aligned to the right.
    pub fn number(self, heading: &'a str, cell: impl Fn(&T) -> String) -> Self {
        self.column(heading, true, cell)
    }

    fn column(mut self, heading: &'a str, is_number: bool, cell: impl Fn(&T) -> String) -> Self {
        let cells = self.rows.iter().map(cell).collect();
        self.columns.push(Column {
            heading,
            is_number,
            cells,
        });
        self
    }

    /// A column of sizes.
    pub fn size(self, heading: &'a str, bytes: impl Fn(&T) -> u64) -> Self {
        self.number(heading, |row| Bytes(bytes(row)).to_string())
    }

    /// The last column is there only where it has something to tell.
    pub fn only_if(mut self, tells: bool) -> Self {
        self.columns
            .truncate(self.columns.len() - usize::from(!tells));
        self
    }

    /// What stands above a row.
    pub(super) fn above(mut self, line: impl Fn(&T) -> Option<String>) -> Self {
        self.above = self.rows.iter().map(line).collect();
        self
    }

    /// The table.
    pub fn text(&self) -> String {
        let widths = self.widths();
        let mut out = (self.style).quiet(&self.row(|column| column.heading, &widths));
        for index in 0..self.rows.len() {
            if let Some(Some(line)) = self.above.get(index) {
                out += &paragraph(&" ".repeat(INDENT), line, self.style.width);
            }
            out += &self.row(|column| &column.cells[index], &widths);
        }
        out
    }

    /// How wide each column is, so that all of them fit where their words do.
    fn widths(&self) -> Vec<usize> {
        let measure = |column| ColumnWidth::of(column, self.style.width);
        let measures: Vec<ColumnWidth> = self.columns.iter().map(measure).collect();
        let gaps = INDENT + GAP * self.columns.len().saturating_sub(1);
        let room = self.style.width.saturating_sub(gaps);
        let mut widths: Vec<usize> = measures.iter().map(|column| column.widest).collect();
        // Headings first: a second line of the header costs less than second lines of rows.
        shrink(&mut widths, &measures, room, |one| one.wrapped_heading);
        shrink(&mut widths, &measures, room, |one| one.narrowest);
        widths
    }

    fn row(&self, cell: impl for<'c> Fn(&'c Column<'a>) -> &'c str, widths: &[usize]) -> String {
        let all = self.columns.iter().zip(widths);
        let cells: Vec<_> = all.map(|(one, width)| wrapped(cell(one), *width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        let mut out = String::new();
        for line in 0..height {
            let mut text = " ".repeat(INDENT);
            for (column, (cell, width)) in self.columns.iter().zip(cells.iter().zip(widths)) {
                let part = cell.get(line).map_or("", String::as_str);
                let padding = " ".repeat(width.saturating_sub(columns(part)));
                let [before, after] = if column.is_number {
                    [padding.as_str(), ""]
                } else {
                    ["", padding.as_str()]
                };
                for part in [before, part, after] {
                    text.push_str(part);
                }
                text.push_str(&" ".repeat(GAP));
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Makes the widest columns narrower, none below its least, until all of them fit or none can be.
fn shrink(
    widths: &mut [usize],
    columns: &[ColumnWidth],
    room: usize,
    least: impl Fn(&ColumnWidth) -> usize,
) {
    while widths.iter().sum::<usize>() > room {
        let can_shrink = (0..widths.len()).filter(|index| widths[*index] > least(&columns[*index]));
        let Some(widest) = can_shrink.max_by_key(|index| widths[*index]) else {
            return;
        };
        widths[widest] -= 1;
    }
}

/// How wide a column may be.
struct ColumnWidth {
    /// With nothing wrapped.
    widest: usize,
    /// With its heading wrapped alone.
    wrapped_heading: usize,
    /// With all wrapped that may be.
    narrowest: usize,
}

impl ColumnWidth {
    /// `most` is the width of the whole: what is longer sticks out of its own row, and moves no other.
    fn of(column: &Column<'_>, most: usize) -> ColumnWidth {
        let heading = column.heading;
        let widest = |measure: &dyn Fn(&str) -> usize| {
            let cells = column.cells.iter();
            cells.map(|cell| measure(cell).min(most)).max().unwrap_or(0)
        };
        // As it will be shown, with single spaces.
        let whole = |text: &str| columns(&wrapped(text, usize::MAX).join(" "));
        let wrapped_heading = widest(&whole).max(longest_word(heading));
        ColumnWidth {
            widest: wrapped_heading.max(whole(heading)),
            wrapped_heading,
            narrowest: if column.is_number {
                wrapped_heading
            } else {
                widest(&longest_word).max(longest_word(heading))
            },
        }
    }
}

/// A size by its name.
pub fn sized(name: &'static str, bytes: u64) -> (&'static str, String) {
    (name, Bytes(bytes).to_string())
}

/// What is known, or a dash.
pub fn or_dash(known: Option<impl ToString>) -> String {
    known.map_or_else(|| "-".to_owned(), |known| known.to_string())
}

/// Two columns: what, and how much.
pub fn facts(facts: &[(&str, String)], style: &Style) -> String {
    let names = facts.iter().map(|(name, _)| columns(name));
    let width = names.max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| {
        paragraph(&format!("  {name:width$}  "), value, style.width)
    };
    facts.iter().map(line).collect()
}

/// Remarks below a table; nothing when there are none.
pub fn notes(notes: &[String], style: &Style) -> String {
    marked("note: ", notes, style)
}

/// What an answer assumes.
pub(super) fn assumptions(assumptions: &[String], style: &Style) -> String {
    marked("assumption: ", assumptions, style)
}

fn marked(mark: &str, texts: &[String], style: &Style) -> String {
    let all = texts.iter();
    all.map(|text| paragraph(mark, text, style.width)).collect()
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

    fn style(width: usize) -> Style {
        Style {
            width,
            ..Style::default()
        }
    }

    const CARDS: [[&str; 3]; 2] = [
        ["a100-40g", "39.1 GiB", "recomputes 24 of 24 blocks"],
        ["t4", "9.8 GiB", "-"],
    ];

    fn cards(cards: &[[&str; 3]], width: usize) -> String {
        lines(cards, &style(width))
            .words("card", |card| card[0].to_owned())
            .number("peak reserved", |card| card[1].to_owned())
            .words("cost", |card| card[2].to_owned())
            .text()
    }

    #[test]
    fn a_table_with_room_has_a_line_a_row() {
        assert_eq!(
            cards(&CARDS, 80),
            " card      peak reserved  cost\n \
             a100-40g       39.1 GiB  recomputes 24 of 24 blocks\n \
             t4              9.8 GiB  -\n"
        );
    }

    #[test]
    fn headings_are_wrapped_before_rows_and_rows_between_words() {
        assert_eq!(
            cards(&CARDS, 48),
            " card           peak  cost\n            \
             reserved\n \
             a100-40g   39.1 GiB  recomputes 24 of 24 blocks\n \
             t4          9.8 GiB  -\n"
        );
        assert_eq!(
            cards(&CARDS, 40),
            " card          peak  cost\n           \
             reserved\n \
             a100-40g  39.1 GiB  recomputes 24 of 24\n                     \
             blocks\n \
             t4         9.8 GiB  -\n"
        );
    }

    #[test]
    fn no_width_breaks_a_word_or_loses_one() {
        for width in 0..100 {
            let text = cards(&CARDS, width);

            for word in ["a100-40g", "39.1 GiB", "recomputes", "blocks", "reserved"] {
                assert!(text.contains(word), "{width}: {text}");
            }
            if width >= 31 {
                assert!(text.lines().all(|line| columns(line) <= width), "{text}");
            }
        }
    }

    #[test]
    fn a_name_of_many_lines_is_laid_out_in_time() {
        let (words, cost) = ("word ".repeat(1 << 15), "x".repeat(1 << 17));

        let text = cards(&[CARDS[0], CARDS[1], [&words, "1 B", &cost]], 80);

        assert!(text.len() < 1 << 30);
        assert!(text.contains(&cost));
    }

    #[test]
    fn facts_are_wrapped_beside_their_names() {
        assert_eq!(
            facts(&[("limit", "1 B of 2 B".to_owned())], &style(17)),
            "  limit  1 B of 2\n         B\n"
        );
    }
}
