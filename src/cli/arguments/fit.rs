//! Flags of `fit`, and how an answer is written.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::answers::Earlier;

use super::{AskCudnn, DatabaseFlags, ModuleFlags, RecorderFlags, RequestFlags, Timeouts};

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(in crate::cli) enum Format {
    /// For people.
    #[default]
    Text,
    /// The document of `GET /v1/fits/{id}`.
    Json,
    /// Five lines for `eval` in a shell.
    Env,
    /// `TrainingArguments` of Hugging Face's Trainer.
    Hf,
    /// `SFTConfig` of TRL.
    Trl,
    /// Lightning's Trainer.
    Lightning,
    /// Hugging Face's accelerate.
    Accelerate,
    /// A loop in plain PyTorch.
    Python,
    /// A table for an issue or a wiki.
    Markdown,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Fit {
    #[command(flatten)]
    pub(in crate::cli) question: RequestFlags,
    #[command(flatten)]
    pub(in crate::cli) cudnn: AskCudnn,
    #[command(flatten)]
    pub(in crate::cli) module: ModuleFlags,
    /// Answer with the batch that lasts 1,000 steps, or steps=N,epoch=N.
    #[arg(
        long,
        value_name = "NAME=N,..",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        help_heading = "Search"
    )]
    pub(in crate::cli) soak: Option<String>,
    /// How many prompts `generate()` completes, or prompt=N,tokens=N.
    #[arg(
        long,
        value_name = "NAME=X,..",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        help_heading = "Search"
    )]
    pub(in crate::cli) generation: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) recorder: RecorderFlags,
    #[command(flatten)]
    pub(in crate::cli) output: Output,
    #[command(flatten)]
    pub(in crate::cli) earlier: Earlier,
    #[command(flatten)]
    pub(in crate::cli) kept: DatabaseFlags,
    #[command(flatten)]
    pub(in crate::cli) patience: Timeouts,
}

/// How the answer to a fit is written.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(in crate::cli) struct Output {
    /// text, json, env, hf, trl, lightning, accelerate, python or markdown.
    #[arg(
        long,
        value_name = "FORMAT",
        hide_possible_values = true,
        default_value = "text",
        hide_default_value = true
    )]
    format: Format,
    /// The same as --format json: the document of `GET /v1/fits/{id}` alone.
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Also write that document to a file.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(in crate::cli) document: Option<PathBuf>,
    /// Show every probe and what was assumed.
    #[arg(long, short)]
    pub(in crate::cli) verbose: bool,
    /// Show what the peak is made of, when it is, and which limit binds.
    #[arg(long)]
    pub(in crate::cli) why: bool,
}

impl Format {
    /// How it is asked for.
    pub(in crate::cli) fn flag(self) -> String {
        let name = self.to_possible_value();
        format!(
            "--format {}",
            name.map_or_else(String::new, |name| name.get_name().to_owned())
        )
    }
}

impl Output {
    pub(in crate::cli) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}
