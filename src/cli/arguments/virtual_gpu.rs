//! The flags of `batchfit run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::search::seconds;
use super::service::bytes;
use super::{AskCudnn, DatabaseFlags};
use crate::virtual_gpu::MOST_GPUS;

#[derive(Debug, Args)]
pub(in crate::cli) struct Run {
    /// The command that trains, as you would run it on the GPU, after `--`.
    #[arg(value_name = "CMD", required = true, last = true)]
    pub(in crate::cli) command: Vec<OsString>,
    /// The card: rtx4090, "RTX 4090", 8xh100, p5.48xlarge.
    #[arg(long, value_name = "CARD", help_heading = "GPU")]
    pub(in crate::cli) on: String,
    /// How many GPUs the machine has; a command that starts no ranks itself runs as rank 0 of so many.
    #[arg(long, value_name = "N", help_heading = "GPU", value_parser = clap::value_parser!(u64).range(1..=MOST_GPUS))]
    pub(in crate::cli) gpus: Option<u64>,
    /// What PyTorch may reserve: bytes, 12GiB or 0.8.
    #[arg(long, value_name = "LIMIT", help_heading = "GPU")]
    pub(in crate::cli) memory_limit: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) cudnn: AskCudnn,
    #[command(flatten)]
    pub(in crate::cli) kept: DatabaseFlags,
    /// Stop the command after so many optimizer steps; 0 lets it finish.
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Runs")]
    pub(in crate::cli) steps: u64,
    /// Stop the command, and all that it started, after so long.
    #[arg(long, value_name = "SECONDS", help_heading = "Runs", value_parser = seconds)]
    pub(in crate::cli) timeout: Option<Duration>,
    /// How much host memory the command, and all that it starts, may take, pinned memory included; by default nine tenths of what is free.
    #[arg(long, value_name = "BYTES", help_heading = "Runs", value_parser = bytes)]
    pub(in crate::cli) host_memory: Option<u64>,
    /// Where to unpack the virtual GPU, instead of the folder for temporary files; it must not be mounted `noexec`.
    #[arg(long, value_name = "FOLDER", help_heading = "Runs")]
    pub(in crate::cli) scratch: Option<PathBuf>,
    /// Do not print what the command prints.
    #[arg(long, short, help_heading = "Runs")]
    pub(in crate::cli) quiet: bool,
    /// Write the answer, PyTorch's memory snapshot and its summary into this folder; with --steps 0 the run takes longer.
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    pub(in crate::cli) report: Option<PathBuf>,
    /// Draw memory over time, and the segments and blocks at the peak; with --steps 0 the run takes longer.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(in crate::cli) svg: Option<PathBuf>,
    /// Write the kernels that would have been launched, one a line.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(in crate::cli) launches: Option<PathBuf>,
    /// Show every phase, and all that was assumed.
    #[arg(long, short, help_heading = "Output")]
    pub(in crate::cli) verbose: bool,
    /// Print one JSON document and nothing else.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
}
