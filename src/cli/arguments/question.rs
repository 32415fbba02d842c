//! The flags that make up a request, those of `fit` beside them, and how an answer is written.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser, ValueParser};
use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueEnum};

use super::answers::Earlier;
use super::{AskCudnn, DatabaseFlags, ModuleFlags, RecorderFlags, Timeouts};

use crate::cli::question::{FlagValue, count};
use crate::device::sim;
use crate::model::members::{Flag, Heading, Kind, Member, REQUEST};
use crate::probe::LARGEST_BATCH;

/// What is asked: a model or a request, and a flag for each member of a request.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct RequestFlags {
    /// Flags that set members, each with the text that it was given.
    pub(in crate::cli) members: Vec<FlagValue>,
    /// The others.
    pub(in crate::cli) own: OwnFlags,
}

/// Flags that are no member's, or a member's in other words.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct OwnFlags {
    /// A model's name, a config.json, my.py:build, an exported graph or a request; `-` is stdin.
    #[arg(value_name = "WHAT", required_unless_present_any = ["model", "recorded"])]
    pub(in crate::cli) what: Option<PathBuf>,
    /// Any other member of `model`, as often as needed: lora=16.
    #[arg(long = "with", value_name = "NAME=VALUE", help_heading = HEADINGS[0])]
    pub(in crate::cli) with: Vec<String>,
    /// A graph that torch.export saved, instead of the model in a request.
    #[arg(long, value_name = "FILE", conflicts_with = "recorded", help_heading = HEADINGS[0])]
    pub(in crate::cli) model: Option<PathBuf>,
    /// Recordings of PyTorch's allocator at several batches, instead of a model.
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = HEADINGS[0])]
    pub(in crate::cli) recorded: Vec<PathBuf>,
    /// The batch of each recording, where files do not say it: memory snapshots.
    #[arg(long, value_name = "N,..", requires = "recorded", value_delimiter = ',', help_heading = HEADINGS[0],
        value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(in crate::cli) batches: Vec<u64>,
    /// Mixed precision, as torch.autocast has it: fp16 or bf16.
    #[arg(long, value_name = "TYPE,..", value_parser = suggest(&["fp16", "bf16"]), hide_possible_values = true,
        conflicts_with = "precision", help_heading = HEADINGS[1])]
    pub(in crate::cli) amp: Option<String>,
    /// The card to simulate: rtx4090, 8xh100, 4xh100+4xa100 or p5.48xlarge.
    #[arg(long, value_name = "CARD", value_parser = suggest(&sim::names()), hide_possible_values = true,
        conflicts_with = "device", help_heading = HEADINGS[2])]
    pub(in crate::cli) on: Option<String>,
}

/// What is run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(in crate::cli) struct Batch {
    /// Samples in a micro-batch.
    #[arg(long, value_name = "N", value_parser = batch)]
    pub(in crate::cli) batch: u64,
}

fn batch(text: &str) -> Result<u64, String> {
    let count = count(text).filter(|count| (1..=LARGEST_BATCH).contains(count));
    count.ok_or_else(|| format!("a batch is a whole number from 1 to {LARGEST_BATCH}"))
}

/// What flags are below in `--help`, by [`Heading`].
const HEADINGS: [&str; 5] = [
    "Model",
    "Training; lists by commas compare all combinations",
    "GPU",
    "Search",
    "Training",
];

/// Those of a question.
const OF_QUESTIONS: &[Heading] = &[
    Heading::Model,
    Heading::Training,
    Heading::Gpu,
    Heading::Search,
];

/// Flags that come first below their heading; the others follow in the order of the rows.
const FIRST: [&str; 6] = ["precision", "amp", "on", "device", "target", "world-size"];

impl RequestFlags {
    /// What was given to a flag of this name.
    pub(in crate::cli) fn text(&self, flag: &str) -> Option<&str> {
        let given = self.members.iter().find(|given| given.is_of(flag));
        given.and_then(|given| given.value.as_str())
    }

    /// Whether a flag sets this member of the request.
    pub(in crate::cli) fn gives(&self, name: &str) -> bool {
        self.members.iter().any(|given| given.place == [name])
    }
}

impl Args for RequestFlags {
    fn augment_args(command: Command) -> Command {
        let own = Command::new("own").next_display_order(None);
        let own = OwnFlags::augment_args(own);
        let mut all = arguments(OF_QUESTIONS);
        all.extend(own.get_arguments().cloned());
        all.sort_by_key(|one| {
            let is_above = |heading: &&str| one.get_help_heading() == Some(*heading);
            let is_it = |name: &&str| one.get_long() == Some(name);
            let first = FIRST.iter().position(is_it).unwrap_or(FIRST.len());
            (HEADINGS.iter().position(is_above), first)
        });
        command.args(all)
    }

    fn augment_args_for_update(command: Command) -> Command {
        RequestFlags::augment_args(command)
    }
}

impl FromArgMatches for RequestFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<RequestFlags, Error> {
        Ok(RequestFlags {
            members: set_members(OF_QUESTIONS, matches),
            own: OwnFlags::from_arg_matches(matches)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = RequestFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flags of members below these headings.
pub(super) fn arguments(headings: &[Heading]) -> Vec<Arg> {
    let flags = REQUEST.flags().into_iter();
    let ours = flags.filter(|(.., flag)| headings.contains(&flag.heading));
    ours.map(|(_, member, flag)| argument(member, flag))
        .collect()
}

fn argument(member: &Member, flag: &Flag) -> Arg {
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .aliases(flag.alias)
        .help(flag.help)
        .help_heading(HEADINGS[flag.heading as usize])
        .hide(flag.is_hidden);
    let Some(value) = flag.value else {
        return argument.action(ArgAction::SetTrue);
    };
    let argument = argument.value_name(value).hide_possible_values(true);
    match member.kind {
        Kind::Word(_, words) | Kind::Words(words) => argument.value_parser(suggest(&words())),
        Kind::Bool | Kind::Bools => argument.value_parser(suggest(&["true", "false"])),
        Kind::Other if member.name == "suggest" => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        Kind::Text | Kind::Globs | Kind::Object(_) => argument,
        _ => argument.allow_negative_numbers(true),
    }
}

/// The flags of members below these headings that were given.
pub(super) fn set_members(headings: &[Heading], matches: &ArgMatches) -> Vec<FlagValue> {
    let flags = REQUEST.flags().into_iter();
    let ours = flags.filter(|(.., flag)| headings.contains(&flag.heading));
    let given = ours.filter_map(|(place, member, flag)| {
        let text = match flag.value {
            Some(_) => matches.get_one::<String>(flag.name).cloned(),
            None => matches.get_flag(flag.name).then(|| "true".to_owned()),
        };
        Some(FlagValue::of_member(flag, &place, member, text?))
    });
    given.collect()
}

/// Takes any text, and offers these words where a shell completes.
#[derive(Debug, Clone)]
struct Suggested(Vec<&'static str>);

pub(super) fn suggest(words: &[&'static str]) -> ValueParser {
    ValueParser::new(Suggested(words.to_vec()))
}

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

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
    pub(in crate::cli) fn name(self) -> String {
        let name = self.to_possible_value();
        name.map_or_else(String::new, |name| name.get_name().to_owned())
    }

    /// How it is asked for.
    pub(in crate::cli) fn flag(self) -> String {
        format!("--format {}", self.name())
    }
}

impl Output {
    pub(in crate::cli) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}
