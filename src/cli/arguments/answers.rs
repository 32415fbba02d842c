//! The flags about answers that are stored, and what came of them.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde_json::Value;

use super::DatabaseFlags;
use crate::alloc::MemoryLimit;
use crate::search::ask_tell::Outcome;

#[derive(Debug, Args)]
pub(in crate::cli) struct TellOutcome {
    /// The id of the answer that you used: of the fit, or of one of its recommendations.
    #[arg(value_name = "ID")]
    pub(in crate::cli) id: String,
    /// The body of `POST /v1/recommendations/{id}/outcomes`, or - for stdin; flags override it.
    #[arg(value_name = "FILE")]
    pub(in crate::cli) file: Option<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) seen: ObservationFlags,
    #[command(flatten)]
    pub(in crate::cli) place: EnvironmentFlags,
    /// A name for this training; reported twice under it, it counts once.
    #[arg(long, value_name = "NAME", help_heading = "Options")]
    pub(in crate::cli) name: Option<String>,
    /// Print JSON and nothing else.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
    #[command(flatten)]
    pub(in crate::cli) kept: DatabaseFlags,
}

/// What was seen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
pub(in crate::cli) struct ObservationFlags {
    /// Samples in a micro-batch, on one GPU.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) batch: Option<u64>,
    /// How it ended: fits, fits-with-retries, out-of-memory or crashed.
    #[arg(long, value_name = "HOW", hide_possible_values = true, value_parser = outcome())]
    pub(in crate::cli) outcome: Option<Outcome>,
    /// Most bytes reserved, as `torch.cuda.max_memory_reserved()` says, or a size such as 13.9GiB.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(in crate::cli) peak_reserved: Option<u64>,
    /// How often the allocator freed its cache and retried.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) retries: Option<u64>,
    /// Optimizer steps that ran.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) steps: Option<u64>,
}

/// Where it ran.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where it ran")]
pub(in crate::cli) struct EnvironmentFlags {
    /// The card's name, as `torch.cuda.get_device_name()` says.
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) gpu: Option<String>,
    /// `torch.__version__`.
    #[arg(long, value_name = "VERSION")]
    pub(in crate::cli) pytorch: Option<String>,
    /// The driver's version; needed for answers from a GPU.
    #[arg(long, value_name = "VERSION")]
    pub(in crate::cli) driver: Option<String>,
    /// `torch.version.cuda`.
    #[arg(long, value_name = "VERSION")]
    pub(in crate::cli) cuda: Option<String>,
    /// The version of cuDNN.
    #[arg(long, value_name = "VERSION")]
    pub(in crate::cli) cudnn: Option<String>,
}

/// How a training ended, with dashes or as documents have it.
fn outcome() -> impl TypedValueParser<Value = Outcome> {
    let word = |it: Outcome| PossibleValue::new(it.name().replace('_', "-")).alias(it.name());
    let words = PossibleValuesParser::new(Outcome::ALL.map(word));
    words.map(|word| Outcome::named(&word.replace('-', "_")).expect("it is one of them"))
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ListOutcomes {
    /// The id of a fit or a recommendation; without it, a line for each model and card.
    #[arg(value_name = "ID")]
    pub(in crate::cli) id: Option<String>,
    /// This card alone.
    #[arg(long, value_name = "NAME", conflicts_with = "id")]
    pub(in crate::cli) gpu: Option<String>,
    /// How many at most.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=500))]
    pub(in crate::cli) limit: i64,
    /// Print JSON and nothing else.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
    #[command(flatten)]
    pub(in crate::cli) kept: DatabaseFlags,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ListAnswers {
    /// The id of a fit or a recommendation, to see the whole of it.
    #[arg(value_name = "ID")]
    pub(in crate::cli) id: Option<String>,
    /// This model alone, as listed.
    #[arg(long, value_name = "NAME", conflicts_with = "id")]
    pub(in crate::cli) model: Option<String>,
    /// This card alone, as listed.
    #[arg(long, value_name = "NAME", conflicts_with = "id")]
    pub(in crate::cli) gpu: Option<String>,
    /// How many at most, newest first.
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_most_500)]
    pub(in crate::cli) limit: usize,
    /// Print JSON and nothing else.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
    #[command(flatten)]
    pub(in crate::cli) kept: DatabaseFlags,
}

/// Answers that `fit` gave before.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options")]
pub(in crate::cli) struct Earlier {
    /// Compute nothing: show the stored answer, or the nearest one.
    #[arg(long, conflicts_with = "module")]
    pub(in crate::cli) stored: bool,
    /// Ask the question of a stored answer again; flags override it.
    #[arg(long, value_name = "ID", conflicts_with_all = ["what", "module"])]
    pub(in crate::cli) again: Option<String>,
}

fn at_most_500(text: &str) -> Result<usize, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (1..=500).contains(number));
    number.ok_or_else(|| "it is a number from 1 to 500".to_owned())
}

/// A number of bytes, or a size with a unit.
fn size(text: &str) -> Result<u64, String> {
    match crate::model::parse_size(&Value::from(text), "") {
        Ok(MemoryLimit::Bytes(bytes)) => Ok(bytes.0),
        Ok(MemoryLimit::Fraction(_)) | Err(_) => {
            Err("it is a number of bytes, or a size such as 13.9GiB".to_owned())
        }
    }
}
