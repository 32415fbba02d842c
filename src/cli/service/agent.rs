//! `batchfit agent`: works on fits for a service.

use std::fs;
use std::io::Read as _;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use crate::agent::{self, AgentConfig, Ended, Server, Signals, cards_of, simulated_cards};
use crate::cli::arguments::{Agent as Flags, ServerFlags};
use crate::cli::error::CliError;
use crate::cli::terminal::output;
use crate::cli::{Outcome, engine, interrupts, recorder_of_graphs};
use crate::http::Code;
use crate::jobs::{AgentCard, Engine, FitEngine, MOST_CARDS};
use crate::limits::shorten;
use crate::model::is_host_name;
use crate::model::nicknames::parse;

/// Longest file with a key, in bytes.
const LONGEST_KEY: u64 = 1_000;

/// What others than a file's owner and group may do with it.
const FOR_ALL: u32 = 0o007;

pub(in crate::cli) fn run(flags: &Flags) -> Result<Outcome, CliError> {
    let server = server(&flags.server)?;
    let name = name(flags)?;
    let engine =
        engine(flags.patience.deadlines())?.with_recorder(recorder_of_graphs(&flags.recorder));
    let cards = cards(flags, &engine)?;
    for card in &cards {
        let simulated = if card.simulated { ", simulated" } else { "" };
        let kind = card
            .kind
            .as_deref()
            .unwrap_or("of no kind in the catalogue");
        tracing::info!("{name}/{} is {} ({kind}{simulated})", card.device, card.gpu);
    }
    let orders = AgentConfig {
        once: flags.once(),
        grace: flags.grace.map(Duration::from_secs),
        deliver: Duration::from_secs(flags.deliver),
    };
    let signals = Signals::default();
    let runtime = tokio::runtime::Runtime::new().context("could not start the runtime")?;
    let ended = runtime.block_on(async {
        listen(&signals)?;
        let ended = agent::run(server, Arc::new(engine), name, cards, orders, signals).await;
        ended.map_err(|error| CliError::Broken(error.into()))
    });
    // A thread that is stuck in a driver goes with the process.
    runtime.shutdown_background();
    Ok(match ended? {
        Ended::Drained | Ended::WorkedOnce => Outcome::Answered,
        Ended::NothingToDo => Outcome::NothingToDo,
    })
}

/// The service that flags name.
pub(in crate::cli) fn server(flags: &ServerFlags) -> Result<Server, CliError> {
    let key = match (&flags.key_file, &flags.key) {
        (Some(file), _) => {
            let unreadable = CliError::unreadable(file);
            let opened = fs::File::open(file).map_err(unreadable)?;
            if batchfit_platform::mode(&opened.metadata().map_err(unreadable)?) & FOR_ALL != 0 {
                output::warning(&format!(
                    "all users of this machine can read the key in {}; `chmod o-rwx` keeps it from them",
                    file.display()
                ));
            }
            let mut text = String::new();
            // A device has no end. One byte more, so that what is too long shows.
            let read = opened.take(LONGEST_KEY + 1).read_to_string(&mut text);
            if read.map_err(unreadable)? as u64 > LONGEST_KEY {
                let problem =
                    "a key is one line that begins with batchfit_, and this file is longer";
                return Err(CliError::flag("--key-file", problem));
            }
            Some(text)
        }
        (None, key) => key.clone().filter(|key| !key.is_empty()),
    };
    let proxy = flags.proxy.as_deref();
    Server::new(&flags.server, key.as_deref(), proxy, &flags.no_proxy)
        .map_err(|odd| CliError::flag("--server", odd.to_string()))
}

fn name(flags: &Flags) -> Result<String, CliError> {
    let name = flags.name.clone();
    let name = name.unwrap_or_else(batchfit_platform::machine);
    if is_host_name(&name) {
        return Ok(name);
    }
    let problem = format!(
        "{:?} cannot be the name of a machine: 1 to 64 letters, digits, dots, dashes and underscores of ASCII, the first of them a letter or \
         a digit",
        shorten(&name)
    );
    Err(CliError::flag("--name", problem))
}

/// What is offered.
fn cards(flags: &Flags, engine: &FitEngine) -> Result<Vec<AgentCard>, CliError> {
    if !flags.simulate.is_empty() {
        return simulated(&flags.simulate);
    }
    let mut cards = cards_of(&engine.catalogue().devices()).map_err(|missing| {
        let problem = format!("no GPU can be offered: {missing}; `--simulate h100` offers a simulated card, to try agents without a GPU");
        CliError::Said(Code::DeviceUnavailable, problem)
    })?;
    if !flags.devices.is_empty() {
        for wanted in &flags.devices {
            if !cards.iter().any(|card| card.device == *wanted) {
                let here: Vec<&str> = cards.iter().map(|card| card.device.as_str()).collect();
                let problem = format!(
                    "there is no GPU {:?} here; there is {}",
                    shorten(wanted),
                    here.join(", ")
                );
                return Err(CliError::flag("--device", problem));
            }
        }
        cards.retain(|card| flags.devices.contains(&card.device));
    }
    Ok(cards)
}

/// Simulated cards by what people call them, as `--on` reads it.
fn simulated(wanted: &[String]) -> Result<Vec<AgentCard>, CliError> {
    let mut cards = Vec::new();
    for called in wanted {
        let on = parse(called).map_err(|invalid| CliError::named(&"--simulate", invalid))?;
        if let Some(note) = on.note {
            tracing::info!("{note}");
        }
        let count = usize::try_from(on.count.unwrap_or(1)).unwrap_or(usize::MAX);
        cards.extend(iter::repeat_n(on.card, count.min(MOST_CARDS)));
        if count > MOST_CARDS || cards.len() > MOST_CARDS {
            let problem = format!("an agent has at most {MOST_CARDS} cards");
            return Err(CliError::flag("--simulate", problem));
        }
    }
    Ok(simulated_cards(&cards))
}

/// SIGTERM and Ctrl-C have it finish what is under way; the second of them has it end at once.
#[expect(
    clippy::disallowed_methods,
    reason = "it listens for as long as there is a process"
)]
fn listen(signals: &Signals) -> anyhow::Result<()> {
    let mut asked = interrupts::Signals::listen(false).context("could not wait for SIGTERM")?;
    let signals = signals.clone();
    tokio::spawn(async move {
        loop {
            asked.next().await;
            if signals.drain.is_cancelled() {
                signals.stop.cancel();
            }
            signals.drain.cancel();
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::cli::service::agent::*;

    #[test]
    fn simulated_cards_are_called_as_people_do() {
        let wanted = ["2xH100", "RTX 4090"].map(str::to_owned);

        let cards = simulated(&wanted).unwrap();

        let cards: Vec<_> = cards
            .iter()
            .map(|card| (card.device.as_str(), card.kind.as_deref()))
            .collect();
        let expected = [
            ("cuda:0", Some("h100-80g")),
            ("cuda:1", Some("h100-80g")),
            ("cuda:2", Some("rtx4090")),
        ];
        assert_eq!(cards, expected);
    }
}
