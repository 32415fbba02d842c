//! `batchfit devices`.

use super::arguments::Devices;
use super::error::CliError;
use super::{Outcome, engine};
use crate::cli::terminal::output;
use crate::jobs::Engine as _;
use crate::report;
use crate::worker::Deadlines;

pub(super) fn run(arguments: &Devices) -> Result<Outcome, CliError> {
    let devices = engine(Deadlines::USUAL)?.catalogue().devices();
    output::list(arguments.json, &devices, || {
        report::devices(&devices, &output::style(false))
    })
}
