//! The flags of `batchfit soak`.

use clap::Args;

use super::{Batch, Question, help};
use crate::probe::LARGEST_BATCH;

#[derive(Debug, Args)]
#[command(after_help = help::SOAK)]
pub(in crate::cli) struct Soak {
    #[command(flatten)]
    pub(in crate::cli) question: Question,
    #[command(flatten)]
    pub(in crate::cli) batch: Batch,
    #[command(flatten)]
    pub(in crate::cli) course: Course,
    /// Print JSON and nothing else.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
}

/// What a training is made of.
#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
pub(in crate::cli) struct Course {
    /// Optimizer steps.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(in crate::cli) steps: u64,
    /// Optimizer steps of an epoch; without it, all steps are one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(in crate::cli) epoch: Option<u64>,
    /// Samples in the last batch of each epoch, where they are fewer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LARGEST_BATCH))]
    pub(in crate::cli) last_batch: Option<u64>,
    /// Samples of a batch when validating after each epoch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LARGEST_BATCH))]
    pub(in crate::cli) validation_batch: Option<u64>,
    /// Batches of each validation.
    #[arg(long, value_name = "N", default_value_t = 20, requires = "validation_batch", value_parser = clap::value_parser!(u64).range(1..))]
    pub(in crate::cli) validation_steps: u64,
    /// Draws the lengths of --seq-len in another order.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(in crate::cli) seed: u64,
}
