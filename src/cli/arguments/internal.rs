//! Flags of the commands that batchfit runs itself, and that record what it is made of.

use std::path::PathBuf;

use clap::Args;

use super::question::suggest;
use super::{AskCudnn, RequestFlags, Timeouts};
use crate::device::sim;
use crate::worker::{Fault, InjectedFailure};

#[derive(Debug, Args)]
pub(in crate::cli) struct RecordWorkspaces {
    #[command(flatten)]
    pub(in crate::cli) question: RequestFlags,
    /// Which GPU, by CUDA's number.
    #[arg(long, default_value_t = 0)]
    pub(in crate::cli) gpu: u32,
    /// A simulated card instead: cuDNN's heuristics are asked about it, which takes no GPU.
    #[arg(long, value_name = "CARD", conflicts_with = "gpu", value_parser = suggest(&sim::names()), hide_possible_values = true)]
    pub(in crate::cli) card: Option<String>,
    /// Every batch up to this one is recorded.
    #[arg(long, default_value_t = 64, value_name = "BATCH")]
    pub(in crate::cli) dense_to: u64,
    /// The largest batch; up to there in relative steps.
    #[arg(long, default_value_t = 4096, value_name = "BATCH")]
    pub(in crate::cli) largest: u64,
    /// The relative step after the dense part.
    #[arg(long, default_value_t = 2, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(in crate::cli) step: u64,
    /// Tables to take over: their layers are not recorded again. May be given several times.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) merge: Vec<PathBuf>,
    /// Recordings made elsewhere, as tests/record/cudnn.py writes them: layers to take over.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) recording: Vec<PathBuf>,
    /// The table to write, compressed; it must not exist.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) output: PathBuf,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Worker {
    /// Where workers take turns on GPUs; all that share a GPU share this directory.
    #[arg(
        long,
        env = "BATCHFIT_LOCKS",
        value_name = "DIRECTORY",
        default_value = "/tmp"
    )]
    pub(in crate::cli) locks: PathBuf,
    /// Where to keep compiled GPU kernels; `batchfit/kernels` in the user's cache folder unless named.
    #[arg(long, env = "BATCHFIT_KERNEL_CACHE", value_name = "DIRECTORY")]
    pub(in crate::cli) kernel_cache: Option<PathBuf>,
    /// Fail in the middle of each probe: exit, kill, hang, pause=SECONDS or illegal-access. For tests of a
    /// whole server, whose workers inherit the variable.
    #[arg(long, env = "BATCHFIT_FAULT", value_name = "FAULT")]
    pub(in crate::cli) fault: Option<Fault>,
    /// Fail only in the first probe that finds this file missing.
    #[arg(long, env = "BATCHFIT_FAULT_ONCE", value_name = "FILE")]
    pub(in crate::cli) fault_once: Option<PathBuf>,
    /// Open nothing and fail as planned: none, exit-after=N, hang, babble, half-line, huge-line,
    /// wrong-version, panic, abort, lose, lose-opening, no-room, crowd, take-turns or out-of-memory-alone.
    #[arg(long, value_name = "FAILURE")]
    pub(in crate::cli) misbehave: Option<InjectedFailure>,
    /// Fail only in the first worker that finds this file missing.
    #[arg(long, value_name = "FILE", requires = "misbehave")]
    pub(in crate::cli) once: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Answer {
    #[command(flatten)]
    pub(in crate::cli) patience: Timeouts,
    #[command(flatten)]
    pub(in crate::cli) cudnn: AskCudnn,
}
