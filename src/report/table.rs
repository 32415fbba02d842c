//! Tables without frames.

use comfy_table::{CellAlignment, Table, presets};

/// A table whose named columns are aligned to the right.
pub(super) fn with_header(header: &[&str], numbers: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for (index, name) in header.iter().enumerate() {
        if let (true, Some(column)) = (numbers.contains(name), table.column_mut(index)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Two columns: what, and how much.
pub(super) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = facts
        .iter()
        .map(|(name, value)| format!("  {name:width$}  {value}"));
    lines_of(lines)
}

/// The table without the spaces that a frame would have needed.
pub(super) fn text(table: &Table) -> String {
    lines_of(table.lines().map(|line| format!(" {}", line.trim_end())))
}

/// Remarks below a table; nothing when there are none.
pub(super) fn notes(notes: &[String]) -> String {
    lines_of(notes.iter().map(|note| format!("note: {note}")))
}

/// What an answer assumes.
pub(super) fn assumptions(assumptions: &[String]) -> String {
    let lines = assumptions.iter();
    lines_of(lines.map(|assumption| format!("assumption: {assumption}")))
}

fn lines_of(lines: impl Iterator<Item = String>) -> String {
    lines.flat_map(|line| [line, "\n".to_owned()]).collect()
}
