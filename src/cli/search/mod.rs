//! `batchfit search -- CMD {batch}`: runs a command at batch after batch, whatever it is written in.

mod ask_tell;
mod command;
#[cfg(fuzzing)]
pub(super) mod fuzzed;
pub(super) mod run;
mod run_output;
mod stored;
pub(super) mod verdict;

use std::time::Instant;

use jiff::Timestamp;
use serde_json::json;

use super::Outcome;
use super::arguments::{Search, SearchFormat};
use super::error::CliError;
use super::question::size;
use crate::cli::terminal::output;
use crate::jobs::SearchDocument;
use crate::limits::Cancel;
use crate::report;
use crate::search::ask_tell::{AskTell, Observation, Outcome as Ended, Proposal, SearchRequest};
use crate::store::{SearchState, Time};
use crate::units::Bytes;
use crate::virtual_gpu::Ending;
use command::Template;
use run::FinishedRun;
use verdict::Rules;

pub(super) fn run(arguments: &Search) -> Result<Outcome, CliError> {
    if arguments.ask_tell {
        return ask_tell::run(&arguments.kept);
    }
    let terms = terms(arguments)?;
    let template = Template::read(&arguments.command)?;
    let rules = Rules::read(arguments)?;
    let interrupted =
        crate::cli::interrupts::watch().map_err(|error| CliError::Broken(error.into()))?;
    let started_at = Time::from(Timestamp::now());
    let mut conversation = AskTell::new(terms);
    let said = lead(
        &mut conversation,
        &template,
        &rules,
        arguments,
        &interrupted,
    )?;
    let ended_at = Time::from(Timestamp::now());
    let has_crashed = said.has_crashed;
    let document = SearchDocument::led(&conversation, said, started_at, ended_at);
    stored::store(&arguments.kept, &document);
    print(arguments, &template, &document, has_crashed)
}

/// What is looked for, with the flag that is wrong where one is.
fn terms(arguments: &Search) -> Result<SearchRequest, CliError> {
    let document = json!({
        "memory_limit": arguments.memory_limit.as_deref().map(|text| size("--memory-limit", text)),
        "target_batch": arguments.target,
        "world_size": arguments.world_size,
        "start_batch": arguments.start,
        "max_batch": arguments.max_batch,
    });
    SearchRequest::parse(&document).map_err(|invalid| {
        let flag = match invalid.pointer.as_str() {
            "/memory_limit" => "--memory-limit",
            "/target_batch" => "--target",
            "/world_size" => "--world-size",
            "/start_batch" => "--start",
            _ => "--max-batch",
        };
        CliError::named(&flag, invalid)
    })
}

/// Runs batch after batch until there is an answer, or an interrupt.
fn lead(
    conversation: &mut AskTell,
    template: &Template,
    rules: &Rules,
    arguments: &Search,
    interrupted: &Cancel,
) -> Result<Proposal, CliError> {
    loop {
        let said = conversation.says(None);
        let Some(batch) = said.next_batch else {
            return Ok(said);
        };
        if interrupted.is_cancelled() {
            return Ok(said);
        }
        let number = conversation.observations().len() + 1;
        tell(arguments, &format!("run {number}: batch {batch}"));
        let began = Instant::now();
        let command = run::command(&template.at(batch))?;
        let ran = run::run(command, rules, arguments.quiet, interrupted)?;
        if matches!(ran.ending, Ending::Interrupted) {
            return Ok(said);
        }
        let observation = rules.judge(batch, &ran);
        let seconds = began.elapsed().as_secs_f64();
        tell(
            arguments,
            &format!("{} after {seconds:.1} s", came_of(&observation, &ran)),
        );
        conversation.tell(observation);
    }
}

/// What came of a run, for a person.
fn came_of(observation: &Observation, ran: &FinishedRun) -> String {
    let batch = observation.batch;
    match (observation.outcome, observation.peak_reserved_bytes) {
        (Ended::Fits, Some(bytes)) => format!("batch {batch} fits and reserves {}", Bytes(bytes)),
        (Ended::Fits, None) => format!("batch {batch} fits"),
        (Ended::FitsWithRetries, _) => format!("batch {batch} fits with retries of the allocator"),
        (Ended::OutOfMemory, _) => format!("batch {batch} runs out of memory"),
        (Ended::Crashed, _) => {
            let last = match ran.output.last_line.as_str() {
                "" => String::new(),
                line => format!(", its last line being {line:?},"),
            };
            format!("batch {batch} crashed ({}){last}", run::told(ran.ending))
        }
    }
}

/// Says on stderr how far the search is.
fn tell(arguments: &Search, what: &str) {
    if !arguments.quiet {
        output::note(what);
    }
}

fn print(
    arguments: &Search,
    template: &Template,
    document: &SearchDocument,
    has_crashed: bool,
) -> Result<Outcome, CliError> {
    let found = document.recommendation.as_ref();
    let micro_batch = found.map_or(0, |found| found.micro_batch);
    let outcome = match document.state {
        SearchState::Cancelled | SearchState::Active => Outcome::Interrupted,
        SearchState::Done if has_crashed => Outcome::DeviceTrouble,
        SearchState::Done if micro_batch == 0 => Outcome::NothingFits,
        SearchState::Done => Outcome::Answered,
    };
    let why = found.map_or("", |found| found.limited_by.as_str());
    match outcome {
        Outcome::Interrupted => output::error(&so_far(document)),
        Outcome::DeviceTrouble => output::error(&format!(
            "{why}; {}",
            match micro_batch {
                0 => "no batch was seen to fit".to_owned(),
                largest => format!("a micro-batch of {largest} was seen to fit"),
            }
        )),
        Outcome::Answered | Outcome::NothingFits | Outcome::NothingToDo | Outcome::Command(_) => {}
    }
    match arguments.format() {
        SearchFormat::Json => output::json(document)?,
        SearchFormat::Text if outcome == Outcome::Interrupted => outcome,
        SearchFormat::Text => {
            let style = output::style(arguments.verbose);
            output::text(&report::search(&template.shown(), document, &style))?
        }
        SearchFormat::Env if outcome == Outcome::Answered => {
            output::text(&report::search_env(document))?
        }
        SearchFormat::Env => {
            output::text(&report::no_env())?;
            if outcome == Outcome::NothingFits {
                output::error(&format!("nothing fits: {why}"));
            }
            outcome
        }
    };
    Ok(outcome)
}

/// What is known of a search that was interrupted.
fn so_far(document: &SearchDocument) -> String {
    let runs = document.observations.len();
    let refused = document
        .observations
        .iter()
        .filter(|seen| seen.outcome == Ended::OutOfMemory);
    let refused = refused.map(|seen| seen.batch).min();
    let found = document.recommendation.as_ref();
    let fits = found.map_or(0, |found| found.max_batch_without_retries);
    let known = match (fits, refused) {
        (0, None) => "nothing is known yet".to_owned(),
        (0, Some(refused)) => {
            format!("batch {refused} runs out of memory, and none was seen to fit")
        }
        (fits, None) => format!("batch {fits} fits, and none was seen to run out of memory"),
        (fits, Some(refused)) => {
            format!("batch {fits} fits, and batch {refused} runs out of memory")
        }
    };
    let s = if runs == 1 { "" } else { "s" };
    format!("interrupted after {runs} run{s}: {known}")
}

/// What is wrong with the command itself.
pub(super) fn wrong(problem: impl Into<String>) -> CliError {
    CliError::flag("CMD", problem)
}
