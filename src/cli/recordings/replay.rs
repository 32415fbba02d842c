//! `batchfit replay`.

use std::fs;

use serde_json::Value;

use crate::alloc::Settings;
use crate::cli::Outcome;
use crate::cli::arguments::Replay;
use crate::cli::error::CliError;
use crate::cli::question::{files::read_bytes, size};
use crate::cli::terminal::output;
use crate::replay::{Bounds, ReplayOptions, read, replay};
use crate::report;

pub(in crate::cli) fn run(arguments: &Replay) -> Result<Outcome, CliError> {
    let asked = ReplayOptions {
        limit: arguments
            .memory_limit
            .as_ref()
            .map(|limit| {
                let limit = size("--memory-limit", limit);
                crate::model::parse_memory_limit(&Value::String(limit), "--memory-limit")
            })
            .transpose()
            .map_err(CliError::Invalid)?,
        settings: arguments
            .allocator
            .as_ref()
            .map(|text| text.parse::<Settings>())
            .transpose()
            .map_err(|error| CliError::refused(format!("--allocator: {error}")))?,
        compare: arguments.compare,
        events: arguments.events.is_some(),
    };
    let file = read_bytes(&arguments.trace)?;
    let recording =
        read(&file, Bounds::default()).map_err(CliError::recording(&arguments.trace))?;
    let replay = replay(&recording, &asked)
        .map_err(|error| CliError::refused(format!("--memory-limit: {error}")))?;
    let mut document = replay.report;
    if let (Some(path), Some(events)) = (&arguments.events, document.events.take()) {
        output::json_file(path, &events)?;
    }
    if let Some(path) = &arguments.svg {
        fs::write(path, report::replay_svg(&document)).map_err(CliError::unwritable(path))?;
    }
    output::answer(arguments.json, &document, || {
        report::replay(&document, &output::style(false))
    })
}
