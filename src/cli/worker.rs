//! `batchfit worker`: the child's side of a probe.

use std::io;

use super::Outcome;
use super::arguments::Worker;
use super::trouble::Trouble;
use crate::worker::{self, Bench};

pub(super) fn run(arguments: &Worker) -> Result<Outcome, Trouble> {
    let mut input = io::stdin().lock();
    // Not locked: a planned or real panic must still be able to write.
    let output = io::stdout();
    match arguments.misbehave {
        Some(plan) => worker::run_misbehaving(plan, arguments.once.as_deref(), &mut input, output),
        None => worker::run(&mut Bench::default(), &mut input, output),
    }
    .map(|()| Outcome::Answered)
    .map_err(Trouble::writing)
}
