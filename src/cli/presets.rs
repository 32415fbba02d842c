//! `batchfit presets`.

use super::Outcome;
use super::arguments::Presets;
use super::error::CliError;
use crate::cli::terminal::output;
use crate::jobs::PresetDocument;
use crate::limits::shorten;
use crate::model;
use crate::report;

pub(super) fn run(arguments: &Presets) -> Result<Outcome, CliError> {
    let part = arguments.part.as_deref().unwrap_or_default();
    let is_listed =
        |preset: &&model::Preset| preset.name.to_lowercase().contains(&part.to_lowercase());
    let listed = || model::presets().filter(is_listed);
    if listed().next().is_none() {
        let problem = format!(
            "no preset has {:?} in its name; `batchfit presets` lists all",
            shorten(part)
        );
        return Err(CliError::flag("PART", problem));
    }
    let items: Vec<PresetDocument> = listed().map(PresetDocument::from).collect();
    output::list(arguments.json, &items, || report::presets(listed()))
}
