//! `batchfit program`.

use super::arguments::Program;
use super::trouble::Trouble;
use super::{Outcome, output, question};
use crate::device::sim::Card;
use crate::model::{DeviceChoice, Invalid};
use crate::probe::STEPS;
use crate::report;
use crate::worker::Programs;

pub(super) fn run(arguments: &Program) -> Result<Outcome, Trouble> {
    let request = question::read(&arguments.question)?;
    let refuse = |pointer: &str, problem: String| Trouble::Invalid(Invalid::at(pointer, problem));
    let [variant] = request.variants.as_slice() else {
        return Err(refuse(
            "/training",
            "a program is of one variant; give single values".into(),
        ));
    };
    let card = match &request.device {
        DeviceChoice::Sim(name) => Card::find(name),
        DeviceChoice::Auto | DeviceChoice::Cuda(_) => None,
    };
    let Some(card) = card else {
        return Err(refuse(
            "/device",
            "a program is listed for a simulated device".into(),
        ));
    };
    let graph = request.graph().map_err(Trouble::Invalid)?;
    let mut programs = Programs::new(graph, card.capability);
    let program = programs
        .of(variant)
        .map_err(|error| refuse("/training/checkpointing", error.to_string()))?;
    output::text(&report::program(program, arguments.batch, STEPS))?;
    Ok(Outcome::Answered)
}
