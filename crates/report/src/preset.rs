//! Which models have a name.

use batchfit_fit::model::Preset;

/// Writes one line for each preset: its name first, so that a shell can take it, then its size, what it is and what a
/// request may change. Names longer than most push their line aside, and never end it.
pub fn presets(presets: impl Iterator<Item = &'static Preset>) -> String {
    let line = |preset: &Preset| {
        let overrides = preset.overrides.iter();
        let overrides: Vec<_> = overrides
            .map(|size| match size.default {
                Some(default) => format!("{}={default}", size.name),
                None => format!("{}=?", size.name),
            })
            .collect();
        let millions = preset.parameters as f64 / 1e6;
        let line = format!(
            "{:24} {millions:>9.1} M  {}  {}",
            preset.name,
            preset.summary,
            overrides.join(" ")
        );
        format!("{}\n", line.trim_end())
    };
    presets.map(line).collect()
}
