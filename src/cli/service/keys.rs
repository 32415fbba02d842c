//! `batchfit keys`: who may ask the service, where not everybody may.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::json;

use crate::cli::Outcome;
use crate::cli::arguments::{Keys, KeysCommand};
use crate::cli::error::CliError;
use crate::cli::storage::with_database;
use crate::cli::terminal::output;
use crate::limits::shorten;
use crate::store::{ApiKey, Db, Ids, Time};

pub(in crate::cli) fn run(arguments: &Keys) -> Result<Outcome, CliError> {
    let answered = with_database(&arguments.kept, async |db| {
        answer(db, &arguments.command).await
    });
    answered?
}

async fn answer(db: &Db, command: &KeysCommand) -> Result<Outcome, CliError> {
    let broken = |error| CliError::Broken(anyhow::Error::new(error));
    let now = db.now();
    match command {
        KeysCommand::Create { name, scope } => {
            if output::is_nowhere() {
                let problem = "the key is shown once, on stdout, which leads nowhere; redirect it to where the key is to be kept";
                return Err(CliError::Broken(anyhow::anyhow!(problem)));
            }
            let id = Ids::default().next(now);
            let chance: [u8; 32] = chance()?;
            let issued = ApiKey::issue(id, name, *scope, &chance, now);
            let (key, text) =
                issued.map_err(|wrong| CliError::flag("--name", wrong.to_string()))?;
            if !db.add_key(&key).await.map_err(broken)? {
                let problem = format!(
                    "there is a key {name} already; give this one another name, or revoke that one with `batchfit keys \
                     revoke {name}`"
                );
                return Err(CliError::flag("--name", problem));
            }
            if let Err(unseen) = output::text(&format!("{text}\n")) {
                // It was never shown, so it is not missed.
                db.forget_key(&key.id).await.map_err(broken)?;
                return Err(unseen);
            }
            output::warning("this is shown once and stored nowhere: keep it as you keep passwords");
            Ok(Outcome::Answered)
        }
        KeysCommand::List { json } => {
            let keys = db.keys().await.map_err(broken)?;
            if *json {
                output::json(&json!({ "items": keys, "next": null }))?;
            } else {
                output::text(&table(&keys))?;
            }
            Ok(Outcome::Answered)
        }
        KeysCommand::Revoke { key } => {
            if !db.revoke_key(key, now).await.map_err(broken)? {
                let problem = format!(
                    "there is no key {:?} that could be revoked; `batchfit keys list` shows them",
                    shorten(key)
                );
                return Err(CliError::flag("KEY", problem));
            }
            Ok(Outcome::Answered)
        }
    }
}

/// Random bits.
fn chance<const BYTES: usize>() -> Result<[u8; BYTES], CliError> {
    let mut chance = [0; BYTES];
    getrandom::fill(&mut chance)
        .map_err(|error| anyhow::anyhow!("the system has no randomness: {error}"))?;
    Ok(chance)
}

/// One key a line.
fn table(keys: &[ApiKey]) -> String {
    let width = |text: fn(&ApiKey) -> usize| keys.iter().map(text).max().unwrap_or(0);
    let name = width(|key| key.name.len()).max("name".len());
    let mut table = format!(
        "{:name$}  scope  {:16}  made                      revoked\n",
        "name", "id"
    );
    for key in keys {
        let day = |time: Time| {
            let moment = Timestamp::from_millisecond(time.0);
            moment.map_or_else(|_| "?".to_owned(), |moment| format!("{moment:.3}"))
        };
        let revoked = key.revoked_at.map_or_else(String::new, day);
        let line = format!(
            "{:name$}  {:5}  {:16}  {:24}  {revoked}",
            key.name,
            key.scope.name(),
            key.id,
            day(key.created_at)
        );
        writeln!(table, "{}", line.trim_end()).expect("text grows");
    }
    table
}
