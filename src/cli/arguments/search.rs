//! The flags of `batchfit search`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::DatabaseFlags;

/// How the answer to a search is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(in crate::cli) enum SearchFormat {
    /// For people.
    #[default]
    Text,
    /// The document of `GET /v1/searches/{id}`.
    Json,
    /// Five lines for `eval` in a shell.
    Env,
}

/// What the lines say themselves.
const ASK_TELL_CONFLICTS: [&str; 13] = [
    "command",
    "oom_exit",
    "oom_pattern",
    "timeout",
    "quiet",
    "target",
    "world_size",
    "start",
    "max_batch",
    "memory_limit",
    "format",
    "json",
    "verbose",
];

#[expect(clippy::struct_excessive_bools, reason = "one for each flag")]
#[derive(Debug, Args)]
pub(in crate::cli) struct Search {
    /// A command that trains a few steps, after `--`; `{batch}` stands for the batch.
    #[arg(value_name = "CMD", required_unless_present = "ask_tell", last = true)]
    pub(in crate::cli) command: Vec<OsString>,
    /// For a program that runs batches itself: read the question and the outcome of each run from stdin as lines of JSON, and
    /// answer each with a line.
    #[arg(long, alias = "converse", help_heading = "Runs", conflicts_with_all = ASK_TELL_CONFLICTS)]
    pub(in crate::cli) ask_tell: bool,
    /// An exit code of the command that means out of memory.
    #[arg(long, value_name = "N", help_heading = "Runs", value_parser = clap::value_parser!(u8).range(1..))]
    pub(in crate::cli) oom_exit: Option<u8>,
    /// A line of output that means out of memory, instead of those of PyTorch, JAX and TensorFlow.
    #[arg(long, value_name = "REGEX", help_heading = "Runs")]
    pub(in crate::cli) oom_pattern: Option<String>,
    /// Stop a run, and all that it started, after so long.
    #[arg(long, value_name = "SECONDS", help_heading = "Runs", value_parser = seconds)]
    pub(in crate::cli) timeout: Option<Duration>,
    /// Do not print what the command prints.
    #[arg(long, short, help_heading = "Runs")]
    pub(in crate::cli) quiet: bool,
    /// Samples for each optimizer step over all GPUs, by accumulating.
    #[arg(long, value_name = "N", help_heading = "Search")]
    pub(in crate::cli) target: Option<u64>,
    /// How many GPUs train together.
    #[arg(long, value_name = "N", help_heading = "Search")]
    pub(in crate::cli) world_size: Option<u64>,
    /// The first batch to try; 1 by default.
    #[arg(long, value_name = "N", help_heading = "Search")]
    pub(in crate::cli) start: Option<u64>,
    /// The largest batch to try.
    #[arg(long, value_name = "N", help_heading = "Search")]
    pub(in crate::cli) max_batch: Option<u64>,
    /// The most the command may reserve, if it prints what it reserves: bytes or 12GiB.
    #[arg(long, value_name = "LIMIT", help_heading = "Search")]
    pub(in crate::cli) memory_limit: Option<String>,
    /// text, json or env.
    #[arg(
        long,
        value_name = "FORMAT",
        help_heading = "Output",
        hide_possible_values = true,
        default_value = "text",
        hide_default_value = true
    )]
    format: SearchFormat,
    /// The same as --format json: the document of `GET /v1/searches/{id}` alone.
    #[arg(long, help_heading = "Output", conflicts_with = "format")]
    json: bool,
    /// Show every run.
    #[arg(long, short, help_heading = "Output")]
    pub(in crate::cli) verbose: bool,
    #[command(flatten)]
    pub(in crate::cli) kept: DatabaseFlags,
}

impl Search {
    pub(in crate::cli) fn format(&self) -> SearchFormat {
        if self.json {
            SearchFormat::Json
        } else {
            self.format
        }
    }
}

/// A time of at least a millisecond, and of at most some years.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "a number of seconds, such as 600".to_owned())?;
    if (0.001..=1e9).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("a number of seconds from 0.001 to 1000000000".to_owned())
    }
}
