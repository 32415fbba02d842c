//! Which models have a name.

use super::style::Style;
use super::table::{text, with_header};
use crate::model::Preset;

/// Writes one line for each preset, with what a request may change.
pub fn presets(presets: impl Iterator<Item = &'static Preset>, style: &Style) -> String {
    let mut table = with_header(
        &["preset", "parameters", "what", "overrides"],
        &["parameters"],
    );
    for preset in presets {
        let overrides: Vec<_> = preset
            .overrides
            .iter()
            .map(|size| format!("{}={}", size.name, size.default))
            .collect();
        table.add_row([
            preset.name.to_owned(),
            format!("{:.1} M", preset.parameters as f64 / 1e6),
            preset.summary.to_owned(),
            overrides.join(" "),
        ]);
    }
    text(&table, style)
}
