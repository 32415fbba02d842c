//! The flags of `batchfit soak`.

use clap::Args;

use super::{AskCudnn, Batch, RequestFlags, help};

#[derive(Debug, Args)]
#[command(after_help = help::SOAK)]
pub(in crate::cli) struct Soak {
    #[command(flatten)]
    pub(in crate::cli) question: RequestFlags,
    #[command(flatten)]
    pub(in crate::cli) cudnn: AskCudnn,
    #[command(flatten)]
    pub(in crate::cli) batch: Batch,
    #[command(flatten)]
    pub(in crate::cli) course: Course,
    /// Print JSON and nothing else.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
}

/// What a training is made of.
///
/// The values are text: the one reader of requests says what is wrong with them.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Training")]
pub(in crate::cli) struct Course {
    /// Optimizer steps; 1000 without it.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) steps: Option<String>,
    /// Optimizer steps of an epoch; without it, all steps are one.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) epoch: Option<String>,
    /// Samples in the last batch of each epoch, where they are fewer.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) last_batch: Option<String>,
    /// Samples of a batch when validating after each epoch.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) validation_batch: Option<String>,
    /// Batches of each validation; 20 without it.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) validation_steps: Option<String>,
    /// Prompts that are completed at a time after each epoch by `generate()`, with keys and values that are kept.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) generation_batch: Option<String>,
    /// Tokens of a prompt; 128 without it.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) generation_prompt: Option<String>,
    /// Tokens that are generated; 64 without it.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) generation_tokens: Option<String>,
    /// How often after each epoch; once without it.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) generation_times: Option<String>,
    /// How keys and values are kept: dynamic, which grows by each token, or static, with room for all of them; dynamic without it.
    #[arg(long, value_name = "KIND")]
    pub(in crate::cli) generation_cache: Option<String>,
    /// Draw tokens instead of taking the likeliest.
    #[arg(long)]
    pub(in crate::cli) generation_sample: bool,
    /// What logits are divided by before a token is drawn; 1 without it.
    #[arg(long, value_name = "X")]
    pub(in crate::cli) generation_temperature: Option<String>,
    /// Among how many of the likeliest tokens one is drawn, 0 for all; 50 without it.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) generation_top_k: Option<String>,
    /// Among how few tokens one is drawn that are so likely together, 1 for all; 1 without it.
    #[arg(long, value_name = "X")]
    pub(in crate::cli) generation_top_p: Option<String>,
    /// Draws the lengths of --seq-len in another order.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) seed: Option<String>,
}
