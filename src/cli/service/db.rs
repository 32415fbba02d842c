//! `batchfit db`: copies of the database, checks, and what becomes of old rows.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use crate::cli::arguments::{Database, DatabaseCommand};
use crate::cli::error::CliError;
use crate::cli::terminal::output;
use crate::cli::{Outcome, storage};
use crate::store::{Checked, CopiedRows, Db, Ownership, Pruned, StoreError, Time, shown};

/// How many rows are dropped at a time: a server waits meanwhile.
const AT_A_TIME: i64 = 200;

/// How long is waited in between, so that others can write.
const PAUSE: Duration = Duration::from_millis(5);

pub(in crate::cli) fn run(arguments: &Database) -> Result<Outcome, CliError> {
    let database = storage::database(&arguments.kept)?;
    let runtime = storage::runtime()?;
    runtime.block_on(answer(&database, &arguments.command))
}

async fn answer(database: &str, command: &DatabaseCommand) -> Result<Outcome, CliError> {
    let broken = |error| CliError::Broken(anyhow::Error::new(error));
    if let DatabaseCommand::Check = command {
        let checked = Db::check(database).await.map_err(broken)?;
        return checked_text(database, &checked);
    }
    if let DatabaseCommand::Copy { from, to } = command {
        let copied = copy(from, to).await.map_err(broken)?;
        return output::text(&copied);
    }
    let db = Db::open_existing(database).await.map_err(broken)?;
    let outcome = match command {
        DatabaseCommand::Check | DatabaseCommand::Copy { .. } => unreachable!("answered above"),
        DatabaseCommand::Backup { file } => db.back_up(file).await.map(|()| {
            let bytes = fs::metadata(file).map_or(0, |file| file.len());
            format!("{bytes} bytes in {}\n", file.display())
        }),
        DatabaseCommand::Prune { older_than_days } => {
            let age = i64::from(*older_than_days) * 86_400_000;
            let now = db.now();
            let oldest = Time(now.0.saturating_sub(age));
            prune(&db, oldest, now).await.map(|pruned| {
                let Pruned {
                    fits,
                    probes,
                    requests,
                    runs,
                } = pruned;
                format!(
                    "dropped {fits} fits, {probes} probes, {runs} runs and {requests} requests that ended more than {older_than_days} days \
                     ago; `batchfit db vacuum` makes the file smaller\n"
                )
            })
        }
        DatabaseCommand::Vacuum => db.vacuum().await.map(|()| String::new()),
    };
    db.close().await;
    output::text(&outcome.map_err(broken)?)
}

/// Copies all rows, and says how many of which.
async fn copy(from: &str, to: &str) -> Result<String, StoreError> {
    // No server works on either file meanwhile: what it stores would not be in the copy.
    let _from_owned = Ownership::take_source(from, to)?;
    let from = Db::open_existing(from).await?;
    // Makes the file, so only now that there is something to copy.
    let _to_owned = Ownership::take(to)?;
    let to = Db::open_for_one(to).await?;
    let copied = from.copy_to(&to).await;
    from.close().await;
    to.close().await;
    let mut text = String::new();
    let mut all = 0;
    for CopiedRows { table, rows } in copied? {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{table:20} {rows:10}");
        all += rows;
    }
    let _ = writeln!(text, "{:20} {all:10}  all are there", "rows");
    Ok(text)
}

async fn prune(db: &Db, oldest: Time, now: Time) -> Result<Pruned, StoreError> {
    let mut all = Pruned::default();
    loop {
        let pruned = db.prune(oldest, now, AT_A_TIME).await?;
        if pruned == Pruned::default() {
            return Ok(all);
        }
        all.fits += pruned.fits;
        all.probes += pruned.probes;
        all.requests += pruned.requests;
        all.runs += pruned.runs;
        tokio::time::sleep(PAUSE).await;
    }
}

fn checked_text(database: &str, checked: &Checked) -> Result<Outcome, CliError> {
    let database = shown(database);
    let Checked {
        damage,
        behind,
        rows: [fits, probes, recommendations, runs],
    } = checked;
    if !damage.is_empty() {
        let lines = damage.join("\n  ");
        return Err(CliError::Broken(anyhow::anyhow!(
            "the database {database} is damaged:\n  {lines}\nStop the server, keep a copy of the file, and put the latest \
             backup in its place; docs/operate/database.md says what can be saved without one"
        )));
    }
    let behind = match behind {
        0 => "its tables are those of this version".to_owned(),
        later @ ..0 => {
            let later = later.unsigned_abs();
            format!(
                "a later version of batchfit has written it, whose tables are {later} migrations ahead: this one does not start on it"
            )
        }
        some => {
            format!("its tables are {some} migrations behind, which the next start makes up for")
        }
    };
    output::text(&format!(
        "ok: {fits} fits, {probes} probes, {recommendations} recommendations, {runs} runs; {behind}\n"
    ))
}
