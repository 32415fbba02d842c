//! Flags about GPUs, and about those that are not there, of all commands that ask for batches.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use crate::worker::Deadlines;

/// What simulations may ask.
#[derive(Debug, Args)]
#[command(next_help_heading = "GPU")]
pub(in crate::cli) struct AskCudnn {
    /// Ask PyTorch's cuDNN for workspaces that were never recorded.
    #[arg(
        long,
        env = "BATCHFIT_ASK_CUDNN",
        value_name = "FOLDER",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "yes",
    )]
    pub(in crate::cli) ask_cudnn: Option<OsString>,
}

/// How long GPUs may take.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options")]
pub(in crate::cli) struct Timeouts {
    /// How long a probe on a GPU may take.
    #[arg(
        long,
        env = "BATCHFIT_PROBE_DEADLINE",
        value_name = "SECONDS",
        default_value_t = 180,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    probe_deadline: u64,
    /// How long opening a GPU may take, or listing them.
    #[arg(
        long,
        env = "BATCHFIT_OPEN_DEADLINE",
        value_name = "SECONDS",
        default_value_t = 120,
        hide = true,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    open_deadline: u64,
    /// How long to wait for a GPU in use.
    #[arg(
        long,
        env = "BATCHFIT_GPU_WAIT",
        value_name = "SECONDS",
        default_value_t = 900
    )]
    gpu_wait: u64,
}

impl Timeouts {
    pub(in crate::cli) fn deadlines(&self) -> Deadlines {
        let open = Duration::from_secs(self.open_deadline);
        Deadlines {
            start: Deadlines::USUAL.start.min(open),
            open,
            probe: Duration::from_secs(self.probe_deadline),
            turn: Duration::from_secs(self.gpu_wait),
            ..Deadlines::USUAL
        }
    }
}
