//! `batchfit probe --explain`: what of a step a GPU cannot run, without one.

use serde::Serialize;

use crate::cli::Outcome;
use crate::cli::error::CliError;
use crate::cli::terminal::output;
use crate::device::Capability;
use crate::device::cuda::plan::{self, Gap, Target};
use crate::device::cuda::{Gpu, GpuError};
use crate::device::sim::Card;
use crate::limits::Cancel;
use crate::model::{DeviceChoice, Request, RequestError};
use crate::report;
use crate::worker::Programs;

/// What a step takes on a card.
#[derive(Debug, Serialize)]
struct Explanation {
    /// The card, as the request names it.
    device: String,
    batch: u64,
    variants: Vec<OfVariant>,
}

#[derive(Debug, Serialize)]
struct OfVariant {
    /// Precision, optimizer and checkpointing.
    variant: String,
    /// Kernels that would be generated and compiled for it.
    generated_kernels: usize,
    /// What the card cannot run; empty where it runs.
    gaps: Vec<Gap>,
}

pub(super) fn run(request: &Request, batch: u64, json: bool) -> Result<Outcome, CliError> {
    let (device, capability) = card(&request.device)?;
    let target = Target::of(&capability);
    let graph = request.graph().map_err(CliError::Invalid)?;
    let mut programs = Programs::new(graph, capability);
    let mut explanation = Explanation {
        device,
        batch,
        variants: Vec::new(),
    };
    for variant in &request.variants {
        let program = programs.of(variant, &Cancel::NEVER);
        let program = program.map_err(|error| {
            let problem = error.to_string();
            CliError::Invalid(RequestError::at("/training/checkpointing", problem))
        })?;
        let found = plan::survey(program, batch, target);
        explanation.variants.push(OfVariant {
            variant: variant.to_string(),
            generated_kernels: found.sources.generated(),
            gaps: found.gaps,
        });
    }
    if json {
        output::json(&explanation)?;
    } else {
        for of in &explanation.variants {
            let text = report::gaps(
                &explanation.device,
                &of.variant,
                of.generated_kernels,
                &of.gaps,
                &output::style(false),
            );
            output::text(&text)?;
        }
    }
    let runs = explanation.variants.iter().all(|of| of.gaps.is_empty());
    Ok(if runs {
        Outcome::Answered
    } else {
        Outcome::DeviceTrouble
    })
}

/// The name of the card that is asked about, and what plans go by.
fn card(choice: &DeviceChoice) -> Result<(String, Capability), CliError> {
    let number = match choice {
        DeviceChoice::Sim(name) | DeviceChoice::Kind(name) => match Card::find(name) {
            Some(card) => return Ok((format!("sim:{name}"), card.capability)),
            None => return Err(refused(format!("there is no card `{name}`"))),
        },
        DeviceChoice::Auto => 0,
        DeviceChoice::Cuda(number) => *number,
        DeviceChoice::Host(host, _) => {
            return Err(refused(format!(
                "{host} is another machine, and only a service knows agents on others"
            )));
        }
    };
    let unavailable = |error: GpuError| {
        refused(format!(
            "{error}; name a simulated card, such as `sim:h200`, to ask without a GPU"
        ))
    };
    let cards = Gpu::inventory().map_err(unavailable)?;
    let count = u32::try_from(cards.len()).unwrap_or(u32::MAX);
    let found = cards.into_iter().nth(number as usize);
    let found = found.ok_or_else(|| {
        unavailable(GpuError::NoSuchDevice {
            index: number,
            count,
        })
    })?;
    Ok((format!("cuda:{number}"), found.capability))
}

fn refused(problem: String) -> CliError {
    CliError::Invalid(RequestError::at("/device", problem))
}
