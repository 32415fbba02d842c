//! `batchfit cards`.

use serde::Serialize;
use serde_json::json;

use super::Outcome;
use super::arguments::Cards;
use super::error::CliError;
use crate::cli::terminal::{output, style};
use crate::jobs;
use crate::model::nicknames::parse;
use crate::report;

pub(super) fn run(arguments: &Cards) -> Result<Outcome, CliError> {
    let style = style::stdout(false);
    if let Some(name) = &arguments.name {
        let on = parse(name).map_err(|invalid| CliError::named(&"CARD", invalid))?;
        let card = jobs::card(on.card);
        if arguments.json {
            list(&[card])?;
        } else {
            output::text(&report::card(&card, on.note.as_deref(), &style))?;
        }
    } else if arguments.machines {
        let machines = jobs::machines();
        if arguments.json {
            list(&machines)?;
        } else {
            output::text(&report::machines(&machines, &style))?;
        }
    } else {
        let cards = jobs::cards();
        if arguments.json {
            list(&cards)?;
        } else {
            output::text(&report::cards(&cards, &style))?;
        }
    }
    Ok(Outcome::Answered)
}

fn list<T: Serialize>(items: &[T]) -> Result<(), CliError> {
    output::json(&json!({ "items": items, "next": null }))
}
