//! `batchfit presets`.

use serde_json::{Value, json};

use super::Outcome;
use super::arguments::Presets;
use super::error::CliError;
use crate::cli::terminal::output;
use crate::model;
use crate::report;

pub(super) fn run(arguments: &Presets) -> Result<Outcome, CliError> {
    let items: Vec<Value> = model::presets().map(document).collect();
    output::list(arguments.json, &items, || report::presets(model::presets()))?;
    Ok(Outcome::Answered)
}

/// An item of `GET /v1/presets`.
fn document(preset: &model::Preset) -> Value {
    let overrides: Vec<Value> = preset
        .overrides
        .iter()
        .map(|size| json!({ "name": size.name, "default": size.default, "summary": size.summary }))
        .collect();
    json!({
        "name": preset.name,
        "summary": preset.summary,
        "parameters": preset.parameters,
        "overrides": overrides,
    })
}
