//! `batchfit program`.

use std::path::Path;
use std::sync::Arc;

use super::arguments::Program;
use super::error::CliError;
use super::question::files::read_bytes;
use super::{Outcome, question};
use crate::alloc::Event;
use crate::cli::terminal::output;
use crate::device::sim::Card;
use crate::jobs::{invalid_variant, validate_batch};
use crate::limits::Cancel;
use crate::model::{DeviceChoice, Request, RequestError, Workload};
use crate::probe::STEPS;
use crate::replay::{Bounds, Entry, read};
use crate::report::{self, Requested};
use crate::worker::Programs;

/// Most instructions that are compared with a recording, which lists every one of its own events: more than any
/// recording within its bounds has.
const MOST_COMPARED: u64 = 20_000_000;

pub(super) fn run(arguments: &Program) -> Result<Outcome, CliError> {
    let (request, origin) = question::read(&arguments.question)?.of_one_length()?;
    listed(&request, arguments).map_err(|trouble| origin.blame(trouble))
}

fn listed(request: &Request, arguments: &Program) -> Result<Outcome, CliError> {
    let refuse =
        |pointer: &str, problem: String| CliError::Invalid(RequestError::at(pointer, problem));
    let [variant] = request.variants.as_slice() else {
        return Err(refuse(
            "/training",
            "a program is of one variant; give single values".into(),
        ));
    };
    let card = match &request.device {
        DeviceChoice::Sim(name) | DeviceChoice::Kind(name) => Card::find(name),
        DeviceChoice::Auto | DeviceChoice::Cuda(_) | DeviceChoice::Host(..) => None,
    };
    let Some(card) = card else {
        let problem = "a program is listed for a simulated card; name one, as in --on h200";
        return Err(CliError::flag("--on", problem));
    };
    let lowered = request.lower().map_err(CliError::Invalid)?;
    validate_batch(lowered, arguments.batch.batch).map_err(CliError::Invalid)?;
    let (mut programs, steps) = match &lowered.workload {
        Workload::Graph(graph) => (Programs::new(Arc::clone(graph), card.capability), STEPS),
        recorded @ Workload::Recorded(_) => {
            (Programs::simulated(recorded.clone(), card.capability), 1)
        }
    };
    let program = programs
        .of(variant, &Cancel::NEVER)
        .map_err(|error| CliError::Invalid(invalid_variant(&error)))?;
    let text = match &arguments.compare {
        None if arguments.times => {
            let pace = arguments.host_pace;
            if !(0.1..=10.0).contains(&pace) {
                let problem = "a host takes 0.1 to 10 times as long as the one that was measured";
                return Err(CliError::flag("--host-pace", problem));
            }
            let times = report::times(program, &card.ceilings, arguments.batch.batch, pace);
            times.ok_or_else(|| {
                let problem = "recordings say what was allocated, and not what was launched: how long a step takes is not known";
                refuse("/model", problem.into())
            })?
        }
        None => report::program(program, arguments.batch.batch, steps),
        Some(path) => {
            let length = program.unrolled_length(steps);
            if length > MOST_COMPARED {
                let problem = format!(
                    "with {} micro-steps the program has {length} instructions, and at most {MOST_COMPARED} are \
                     compared; record and compare fewer micro-steps: from the second on all are alike",
                    program.micro_steps
                );
                return Err(refuse("/training/accumulation", problem));
            }
            report::sequence(program, arguments.batch.batch, steps, &recorded(path)?)
        }
    };
    output::text(&text)
}

/// The requests of a recording.
fn recorded(path: &Path) -> Result<Vec<Requested>, CliError> {
    let recording = read(&read_bytes(path)?, Bounds::default());
    let recording = recording.map_err(CliError::recording(path))?;
    let requested = |entry: &Entry| match entry.event {
        Event::Alloc { requested, .. } => Some(Requested::Alloc(requested)),
        Event::FreeRequested { requested, .. } => Some(Requested::Free(requested)),
        _ => None,
    };
    Ok(recording.entries.iter().filter_map(requested).collect())
}
