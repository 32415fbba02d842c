//! Tables without frames, and what stands below them.

use super::style::Style;
use super::style::{columns, longest_word, paragraph, wrapped};
use batchfit_step::units::Bytes;

/// What is between two columns.
const GAP: usize = 2;
/// What is before the first.
const INDENT: usize = 1;

/// Rows of cells below a header.
#[derive(Debug)]
pub struct Table {
    header: Vec<String>,
    /// Which columns hold numbers: those are aligned to the right, and only their headings are wrapped.
    is_number: Vec<bool>,
    rows: Vec<Row>,
}

#[derive(Debug)]
enum Row {
    /// One for each column.
    Cells(Vec<String>),
    /// What is about the rows below.
    Line(String),
}

/// A table whose named columns are aligned to the right.
pub fn with_header(header: &[&str], numbers: &[&str]) -> Table {
    Table {
        header: header.iter().map(|name| (*name).to_owned()).collect(),
        is_number: header.iter().map(|name| numbers.contains(name)).collect(),
        rows: Vec::new(),
    }
}

/// A column: its heading, and what a row has in it.
struct Column<'a, T> {
    heading: &'a str,
    is_number: bool,
    cell: Box<dyn Fn(&T) -> String + 'a>,
}

/// A line for each row, below the headings of its columns.
#[must_use]
#[expect(missing_debug_implementations, reason = "columns are functions")]
pub struct Lines<'a, T> {
    rows: &'a [T],
    style: &'a Style,
    columns: Vec<Column<'a, T>>,
}

/// A table of these rows, of which the columns are to be said.
pub fn lines<'a, T>(rows: &'a [T], style: &'a Style) -> Lines<'a, T> {
    let columns = Vec::new();
    Lines {
        rows,
        style,
        columns,
    }
}

impl<'a, T> Lines<'a, T> {
    /// A column of words.
    pub fn words(self, heading: &'a str, cell: impl Fn(&T) -> String + 'a) -> Self {
        self.column(heading, false, Box::new(cell))
    }

    /// A column that is aligned to the right.
    pub fn number(self, heading: &'a str, cell: impl Fn(&T) -> String + 'a) -> Self {
        self.column(heading, true, Box::new(cell))
    }

    fn column(
        mut self,
        heading: &'a str,
        is_number: bool,
        cell: Box<dyn Fn(&T) -> String + 'a>,
    ) -> Self {
        self.columns.push(Column {
            heading,
            is_number,
            cell,
        });
        self
    }

    /// A column of sizes.
    pub fn size(self, heading: &'a str, bytes: impl Fn(&T) -> u64 + 'a) -> Self {
        self.number(heading, move |row| Bytes(bytes(row)).to_string())
    }

    /// The last column is there only where it has something to tell.
    pub fn only_if(mut self, tells: bool) -> Self {
        self.columns
            .truncate(self.columns.len() - usize::from(!tells));
        self
    }

    /// The table.
    pub fn text(&self) -> String {
        let columns = &self.columns;
        let cells = |row: &T| Row::Cells(columns.iter().map(|one| (one.cell)(row)).collect());
        let headings = columns.iter().map(|one| one.heading.to_owned());
        let table = Table {
            header: headings.collect(),
            is_number: columns.iter().map(|one| one.is_number).collect(),
            rows: self.rows.iter().map(cells).collect(),
        };
        text(&table, self.style)
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

impl Table {
    /// Adds a row, which has a cell for each column.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(Row::Cells(cells.into_iter().collect()));
    }

    /// Adds a line across all columns.
    pub(super) fn add_line(&mut self, line: String) {
        self.rows.push(Row::Line(line));
    }

    fn cells(&self, index: usize) -> impl Iterator<Item = &str> {
        self.rows.iter().filter_map(move |row| match row {
            Row::Cells(cells) => cells.get(index).map(String::as_str),
            Row::Line(_) => None,
        })
    }

    /// How wide each column is, so that all of them fit where their words do.
    fn widths(&self, style: &Style) -> Vec<usize> {
        let measure = |index: usize| ColumnWidth::of(self, index, style.width);
        let measures: Vec<ColumnWidth> = (0..self.header.len()).map(measure).collect();
        let gaps = INDENT + GAP * self.header.len().saturating_sub(1);
        let room = style.width.saturating_sub(gaps);
        let mut widths: Vec<usize> = measures.iter().map(|column| column.widest).collect();
        if widths.iter().sum::<usize>() <= room {
            return widths;
        }
        // Headings first: a second line of the header costs less than second lines of rows.
        let wrapped: Vec<usize> = measures
            .iter()
            .map(|column| column.wrapped_heading)
            .collect();
        shrink(&mut widths, &wrapped, room);
        let narrowest: Vec<usize> = measures.iter().map(|column| column.narrowest).collect();
        shrink(&mut widths, &narrowest, room);
        widths
    }

    fn row(&self, cells: &[String], widths: &[usize]) -> String {
        let wrap = |(cell, width): (&String, &usize)| wrapped(cell, *width);
        let cells: Vec<Vec<String>> = cells.iter().zip(widths).map(wrap).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        let mut out = String::new();
        for line in 0..height {
            let mut text = " ".repeat(INDENT);
            for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
                let part = cell.get(line).map_or("", String::as_str);
                let padding = " ".repeat(width.saturating_sub(columns(part)));
                let [before, after] = if self.is_number[index] {
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
fn shrink(widths: &mut [usize], least: &[usize], room: usize) {
    while widths.iter().sum::<usize>() > room {
        let can_shrink = (0..widths.len()).filter(|index| widths[*index] > least[*index]);
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
    fn of(table: &Table, index: usize, most: usize) -> ColumnWidth {
        let heading = &table.header[index];
        let widest = |measure: &dyn Fn(&str) -> usize| {
            let cells = table.cells(index);
            cells.map(|cell| measure(cell).min(most)).max().unwrap_or(0)
        };
        // As it will be shown, with single spaces.
        let whole = |text: &str| columns(&wrapped(text, usize::MAX).join(" "));
        let wrapped_heading = widest(&whole).max(longest_word(heading));
        ColumnWidth {
            widest: wrapped_heading.max(whole(heading)),
            wrapped_heading,
            narrowest: if table.is_number[index] {
                wrapped_heading
            } else {
                widest(&longest_word).max(longest_word(heading))
            },
        }
    }
}

/// The table as text.
pub fn text(table: &Table, style: &Style) -> String {
    let widths = table.widths(style);
    let mut out = style.quiet(&table.row(&table.header, &widths));
    for row in &table.rows {
        match row {
            Row::Cells(cells) => out += &table.row(cells, &widths),
            Row::Line(line) => {
                out += &paragraph(&" ".repeat(INDENT), line, style.width);
            }
        }
    }
    out
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

    fn style(width: usize) -> Style {
        Style {
            width,
            ..Style::default()
        }
    }

    fn cards() -> Table {
        let mut table = with_header(&["card", "peak reserved", "cost"], &["peak reserved"]);
        for (card, peak, cost) in [
            ("a100-40g", "39.1 GiB", "recomputes 24 of 24 blocks"),
            ("t4", "9.8 GiB", "-"),
        ] {
            table.add_row([card, peak, cost].map(str::to_owned));
        }
        table
    }

    #[test]
    fn a_table_with_room_has_a_line_a_row() {
        assert_eq!(
            text(&cards(), &style(80)),
            " card      peak reserved  cost\n \
             a100-40g       39.1 GiB  recomputes 24 of 24 blocks\n \
             t4              9.8 GiB  -\n"
        );
    }

    #[test]
    fn headings_are_wrapped_before_rows_and_rows_between_words() {
        assert_eq!(
            text(&cards(), &style(48)),
            " card           peak  cost\n            \
             reserved\n \
             a100-40g   39.1 GiB  recomputes 24 of 24 blocks\n \
             t4          9.8 GiB  -\n"
        );
        assert_eq!(
            text(&cards(), &style(40)),
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
            let text = text(&cards(), &style(width));

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
        let mut table = cards();
        let words = "word ".repeat(1 << 15);
        table.add_row([words, "1 B".to_owned(), "x".repeat(1 << 17)]);

        let text = text(&table, &style(80));

        assert!(text.len() < 1 << 30);
        assert!(text.contains(&"x".repeat(1 << 17)));
    }

    #[test]
    fn facts_are_wrapped_beside_their_names() {
        assert_eq!(
            facts(&[("limit", "1 B of 2 B".to_owned())], &style(17)),
            "  limit  1 B of 2\n         B\n"
        );
    }
}
