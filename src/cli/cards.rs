//! `batchfit cards`.

use super::Outcome;
use super::arguments::Cards;
use super::error::CliError;
use crate::cli::terminal::output;
use crate::jobs;
use crate::model::nicknames::parse;
use crate::report;

pub(super) fn run(arguments: &Cards) -> Result<Outcome, CliError> {
    let style = output::style(false);
    if !arguments.name.is_empty() {
        let on = parse(&arguments.name.join(" "))
            .map_err(|invalid| CliError::named(&"CARD", invalid))?;
        let card = jobs::card(on.card);
        let as_text = || report::card(&card, on.note.as_deref(), &style);
        output::list(arguments.json, &[&card], as_text)
    } else if arguments.machines {
        let machines = jobs::machines();
        output::list(arguments.json, &machines, || {
            report::machines(&machines, &style)
        })
    } else {
        let cards = jobs::cards();
        output::list(arguments.json, &cards, || report::cards(&cards, &style))
    }
}
