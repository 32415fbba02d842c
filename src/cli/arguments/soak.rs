//! The flags of `batchfit soak`.

use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::question::{arguments, set_members};
use super::{AskCudnn, Batch, RequestFlags};
use crate::cli::question::FlagValue;
use crate::model::members::Heading;

#[derive(Debug, Args)]
pub(in crate::cli) struct Soak {
    #[command(flatten)]
    pub(in crate::cli) question: RequestFlags,
    #[command(flatten)]
    pub(in crate::cli) cudnn: AskCudnn,
    #[command(flatten)]
    pub(in crate::cli) batch: Batch,
    #[command(flatten)]
    pub(in crate::cli) course: SoakFlags,
    /// Print JSON and nothing else.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
}

/// The headings of its flags.
const OF_SOAK: &[Heading] = &[Heading::Soak];

/// What a training is made of.
#[derive(Debug)]
pub(in crate::cli) struct SoakFlags(pub(in crate::cli) Vec<FlagValue>);

impl Args for SoakFlags {
    fn augment_args(command: Command) -> Command {
        command.args(arguments(OF_SOAK))
    }

    fn augment_args_for_update(command: Command) -> Command {
        SoakFlags::augment_args(command)
    }
}

impl FromArgMatches for SoakFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SoakFlags, Error> {
        Ok(SoakFlags(set_members(OF_SOAK, matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = SoakFlags::from_arg_matches(matches)?;
        Ok(())
    }
}
