//! The flags about recording steps under PyTorch.

#![expect(clippy::doc_markdown, reason = "texts are what a terminal shows")]

use std::path::PathBuf;

use clap::Args;

use crate::worker::ModuleToRecord;

/// Who records steps of graphs that batchfit does not understand.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Search")]
pub(in crate::cli) struct RecorderFlags {
    /// A Python with PyTorch and batchfit, to record unknown operators.
    #[arg(long, env = "BATCHFIT_RECORDER", value_name = "PYTHON")]
    pub(in crate::cli) recorder: Option<PathBuf>,
}

/// A module of the user's own, trained and recorded in place of a graph.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Model")]
pub(in crate::cli) struct ModuleFlags {
    /// Your own module as my_module:build, to train and record it on this GPU.
    #[arg(
        long,
        value_name = "M:BUILD",
        requires_all = ["tensors", "loss"],
        conflicts_with_all = ["what", "model", "recorded"]
    )]
    module: Option<String>,
    /// The batch of your own module, such as x=f32[B,3,224,224].
    #[arg(id = "tensors", long = "batch", value_name = "TENSOR", num_args = 1..)]
    pub(in crate::cli) tensors: Vec<String>,
    /// Its loss: cross_entropy, mse, model or MODULE:FUNCTION.
    #[arg(long, value_name = "LOSS")]
    pub(in crate::cli) loss: Option<String>,
}

impl ModuleFlags {
    /// The module that they name.
    pub(in crate::cli) fn named(&self) -> Option<ModuleToRecord> {
        Some(ModuleToRecord {
            builder: self.module.clone()?,
            batch: self.tensors.clone(),
            loss: self.loss.clone().unwrap_or_default(),
        })
    }
}
