//! The flags of `batchfit calibrate`.

use std::path::PathBuf;

use clap::Args;

use crate::device::sim;

use super::question::suggest;

/// Batches that are asked about unless others are named.
pub(in crate::cli) const BATCHES: &str =
    "1,2,3,4,6,8,12,16,24,32,48,64,96,128,192,256,384,512,1024";

#[derive(Debug, Args)]
pub(in crate::cli) struct Calibrate {
    /// A model whose layers are asked about first: what `batchfit fit` takes.
    #[arg(value_name = "WHAT")]
    pub(in crate::cli) what: Option<PathBuf>,
    /// Which GPU, by CUDA's number.
    #[arg(long, default_value_t = 0)]
    pub(in crate::cli) gpu: u32,
    /// A card that is not here instead: cuDNN's heuristics are asked about it, which takes no GPU.
    #[arg(long, value_name = "CARD", conflicts_with = "gpu", value_parser = suggest(&sim::names()), hide_possible_values = true)]
    pub(in crate::cli) card: Option<String>,
    /// Stop after so long; what was recorded is kept, and the next run goes on from there.
    #[arg(long, default_value_t = 110, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(in crate::cli) seconds: u64,
    /// How many processes share the work; as many as there are cores unless said.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(in crate::cli) workers: Option<u16>,
    /// Batches to ask about, ascending.
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = BATCHES
    )]
    pub(in crate::cli) batches: Vec<u64>,
    /// Layers to ask about instead of those that batchfit knows, a line each, as a table names them.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) layers: Option<PathBuf>,
    /// Write what is known of the card into a file for other machines; it must not exist.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) export: Option<PathBuf>,
    /// Take over what another machine exported, and record nothing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["what", "gpu", "card", "layers", "export"])]
    pub(in crate::cli) import: Option<PathBuf>,
    /// Where calibrations are kept; `batchfit/calibrations` in the user's data folder unless named.
    #[arg(long, env = "BATCHFIT_CALIBRATIONS", value_name = "DIRECTORY")]
    pub(in crate::cli) kept: Option<PathBuf>,
    /// Which share of the layers this process records, `NUMBER/COUNT`, and where to: of a parent's.
    #[arg(long, value_name = "SHARE", num_args = 2, hide = true)]
    pub(in crate::cli) share: Vec<String>,
}
