//! `batchfit outcome` and `batchfit outcomes`: what trainings came to that followed an answer.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Map, Value};

use super::{query, unknown};
use crate::cli::Outcome;
use crate::cli::arguments::{ListOutcomes, TellOutcome};
use crate::cli::error::CliError;
use crate::cli::terminal::output;
use crate::jobs::{self, OutcomeStatus, ReportedOutcome, Reporter};
use crate::limits::AnyValue;
use crate::model::{Digest, RequestError};
use crate::report;

/// Longest body: an outcome has a few hundred bytes.
const LONGEST: u64 = 64 << 10;

/// Longest name of a training, in characters; that of an `Idempotency-Key`.
const LONGEST_NAME: usize = 255;

/// Tells an outcome.
pub(in crate::cli) fn tell(arguments: &TellOutcome) -> Result<Outcome, CliError> {
    let document = document(arguments)?;
    let told = ReportedOutcome::parse(&document).map_err(|invalid| blame(arguments, invalid))?;
    let named = match &arguments.name {
        Some(name) if !(1..=LONGEST_NAME).contains(&name.chars().count()) => {
            let problem = format!("a name has 1 to {LONGEST_NAME} characters");
            return Err(CliError::flag("--name", problem));
        }
        Some(name) => {
            let body = Digest::of(document.to_string().as_bytes()).to_string();
            Some((name.clone(), body))
        }
        None => None,
    };
    let teller = Reporter {
        owner: String::new(),
        named,
    };
    let told = query(&arguments.kept, async |db| {
        jobs::add_outcome(db, &arguments.id, &told, teller, db.now()).await
    })?;
    match told {
        OutcomeStatus::New(outcome) | OutcomeStatus::Again(outcome) => {
            output::answer(arguments.json, &outcome, || {
                report::outcome(&outcome, &output::style(false))
            })
        }
        OutcomeStatus::NameTaken => {
            let problem = "another outcome was told under this name; give this training its own";
            Err(CliError::flag("--name", problem))
        }
        OutcomeStatus::Unknown => Err(unknown("ID", &arguments.id)),
    }
}

/// Lists outcomes, or what was learnt.
pub(in crate::cli) fn list(arguments: &ListOutcomes) -> Result<Outcome, CliError> {
    let limit = arguments.limit;
    let style = output::style(false);
    if let Some(id) = &arguments.id {
        let listed = query(&arguments.kept, async |db| {
            jobs::outcomes(db, id, None, limit).await
        })?;
        let listed = listed.ok_or_else(|| unknown("ID", id))?;
        return output::list(arguments.json, &listed, || {
            report::outcomes(&listed, &style)
        });
    }
    let listed = query(&arguments.kept, async |db| {
        jobs::accuracy(db, arguments.gpu.as_deref(), None, limit).await
    })?;
    output::list(arguments.json, &listed, || {
        report::accuracy(&listed, &style)
    })
}

/// What is told, from the file and the flags.
fn document(arguments: &TellOutcome) -> Result<Value, CliError> {
    let mut document = match &arguments.file {
        None => Map::new(),
        Some(file) => read(file)?,
    };
    let seen = &arguments.seen;
    let place = &arguments.place;
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            document.insert(name.to_owned(), value);
        }
    };
    put("batch", seen.batch.map(Value::from));
    put("outcome", seen.outcome.map(|how| Value::from(how.name())));
    put("peak_reserved_bytes", seen.peak_reserved.map(Value::from));
    put("retries", seen.retries.map(Value::from));
    put("steps", seen.steps.map(Value::from));
    let named = [
        ("gpu", &place.gpu),
        ("pytorch", &place.pytorch),
        ("driver", &place.driver),
        ("cuda", &place.cuda),
        ("cudnn", &place.cudnn),
    ];
    let named = named
        .into_iter()
        .filter_map(|(name, text)| Some((name, Value::from(text.as_deref()?))));
    let named: Vec<_> = named.collect();
    if !named.is_empty() {
        let environment = document
            .entry("environment")
            .or_insert_with(|| Value::Object(Map::new()));
        // What is no object is refused when it is read.
        if let Value::Object(environment) = environment {
            environment.extend(
                named
                    .into_iter()
                    .map(|(name, text)| (name.to_owned(), text)),
            );
        }
    }
    Ok(Value::Object(document))
}

/// The object in a file, or on stdin.
fn read(file: &Path) -> Result<Map<String, Value>, CliError> {
    let unreadable = CliError::unreadable(file);
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        let stdin = std::io::stdin().lock();
        stdin
            .take(LONGEST + 1)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
    } else {
        let opened = fs::File::open(file).map_err(unreadable)?;
        opened
            .take(LONGEST + 1)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
    }
    let wrong = |problem: String| CliError::flag(&file.display(), problem);
    if bytes.len() as u64 > LONGEST {
        return Err(wrong(format!("it is longer than {} KiB", LONGEST >> 10)));
    }
    let AnyValue(document) = serde_json::from_slice(&bytes)
        .map_err(|error| wrong(format!("it is not valid JSON: {error}")))?;
    match document {
        Value::Object(document) => Ok(document),
        _other => Err(wrong("it is no JSON object".to_owned())),
    }
}

/// What is wrong, by the name of the flag or the file that says it.
fn blame(arguments: &TellOutcome, invalid: RequestError) -> CliError {
    let missing = |name: &str| invalid.problem.contains(&format!("\"{name}\" is missing"));
    if missing("batch") {
        return CliError::flag("--batch", "how many samples a micro-step had is missing");
    }
    if missing("outcome") {
        return CliError::flag("--outcome", "how it ended is missing");
    }
    match &arguments.file {
        Some(file) => CliError::named(&file.display(), invalid),
        None => CliError::Invalid(invalid),
    }
}
