//! Flags and environment variables, all in one place.

mod answers;
mod calibrate;
mod gpu;
mod help;
pub(in crate::cli) mod hints;
mod internal;
mod question;
mod recorder;
mod search;
mod service;
mod soak;
mod virtual_gpu;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use clap::{
    ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
};
use clap_complete::Shell;
use tracing_subscriber::filter::Targets;

use crate::cli::service::config;
use crate::cli::terminal::output;
pub(in crate::cli) use answers::{ListAnswers, ListOutcomes, TellOutcome};
pub(in crate::cli) use calibrate::{BATCHES, Calibrate};
pub(in crate::cli) use gpu::{AskCudnn, Timeouts};
pub(in crate::cli) use hints::{one_batch, pasted, with_card};
pub(in crate::cli) use internal::{Answer, RecordWorkspaces, Worker};
pub(in crate::cli) use question::{Batch, Fit, Format, RequestFlags};
pub(in crate::cli) use recorder::{ModuleFlags, RecorderFlags};
pub(in crate::cli) use search::{Search, SearchFormat};
pub(in crate::cli) use service::{
    Agent, Agents, AgentsCommand, Database, DatabaseCommand, Keys, KeysCommand, Serve, ServerFlags,
};
pub(in crate::cli) use soak::{Soak, SoakFlags};
pub(in crate::cli) use virtual_gpu::Run;

/// Finds the largest batch that fits a GPU safely, and the gradient-accumulation steps that make the
/// batch you want.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 100)]
pub(in crate::cli) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(in crate::cli) command: Command,
    /// What to log: error, warn, info, debug or trace, also by module.
    #[arg(
        long,
        env = "BATCHFIT_LOG",
        value_name = "FILTER",
        global = true,
        help_heading = "Options"
    )]
    pub(in crate::cli) log: Option<Targets>,
    /// text, or json: one object a line.
    #[arg(
        long,
        env = "BATCHFIT_LOG_FORMAT",
        value_name = "FORMAT",
        global = true,
        hide_possible_values = true,
        default_value = "text",
        hide_default_value = true,
        help_heading = "Options"
    )]
    pub(in crate::cli) log_format: LogFormat,
    /// What `config check` shows: each setting of the service, and who says so.
    #[arg(skip)]
    pub(in crate::cli) settings: Vec<config::Setting>,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum LogFormat {
    /// For people.
    Text,
    /// For programs: one JSON object a line.
    Json,
}

/// What was typed, in the words of this program.
static TYPED: OnceLock<Vec<String>> = OnceLock::new();

/// What was typed, in the words of this program.
pub(in crate::cli) fn typed() -> &'static [String] {
    TYPED.get().map_or(&[], Vec::as_slice)
}

impl Arguments {
    /// Reads the flags that the process was started with.
    pub(in crate::cli) fn read() -> Result<Arguments, clap::Error> {
        let is_brief = std::env::args_os().any(|argument| argument == "-h");
        let mut command = help::with_help(commands(), is_brief);
        let mut typed: Vec<OsString> = std::env::args_os().collect();
        if let [_, _, word] = typed.as_mut_slice()
            && *word == "help"
        {
            *word = "--help".into();
        }
        let mut matches = loop {
            match command.clone().try_get_matches_from(&typed) {
                Ok(matches) => break matches,
                Err(error) => {
                    let taken = hints::taken(&error, &typed);
                    // A flag behind `--` stays none, however it is written.
                    let Some((words, note)) = taken.filter(|(words, _)| *words != typed) else {
                        return Err(hints::hinted(error, &typed));
                    };
                    output::note(&note);
                    typed = words;
                }
            }
        };
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let _ = TYPED.set(typed.iter().map(text).collect());
        let file = of_service(&matches).and_then(|(_, service)| {
            service
                .try_get_one::<PathBuf>("config")
                .ok()
                .flatten()
                .cloned()
        });
        if let (Some(file), Some((path, _))) = (&file, of_service(&matches)) {
            let path: Vec<String> = path.into_iter().map(str::to_owned).collect();
            let mut file = config::File::read(file)?;
            command = with_file(command, &path, &mut file)?;
            matches = command.clone().try_get_matches()?;
        }
        let mut arguments = Arguments::from_arg_matches(&matches)?;
        if let Some((path, service)) = of_service(&matches) {
            // Commands know their global flags only when they are built.
            command.build();
            let described = path
                .iter()
                .try_fold(&command, |command, name| command.find_subcommand(name));
            if let Some(described) = described {
                let in_file = file.as_deref().map(config::names).unwrap_or_default();
                arguments.settings = config::settings(described, service, &in_file);
            }
        }
        Ok(arguments)
    }

    /// Reads a settings file as `config check` does.
    #[cfg(fuzzing)]
    pub(in crate::cli) fn checked(mut file: config::File<'_>) -> Result<Arguments, clap::Error> {
        let path = ["config", "check"].map(str::to_owned);
        let command = with_file(commands(), &path, &mut file)?;
        let matches = command.try_get_matches_from(["batchfit", "config", "check"])?;
        Arguments::from_arg_matches(&matches)
    }

    /// What `--help` says of a command that passes its flags on.
    pub(in crate::cli) fn help_of(name: &str) -> String {
        let mut described = Arguments::described();
        // Commands know their full names only when they are built.
        described.build();
        let command = described.find_subcommand_mut(name);
        command.map_or_else(String::new, |command| command.render_help().to_string())
    }

    /// The commands, for completions and man pages.
    pub(in crate::cli) fn described() -> clap::Command {
        help::with_help(commands(), false)
    }
}

/// The command that the settings of the service are for, by its names, and what it was given.
fn of_service(matches: &ArgMatches) -> Option<(Vec<&str>, &ArgMatches)> {
    match matches.subcommand()? {
        ("serve", serve) => Some((vec!["serve"], serve)),
        ("config", config) => {
            let (name, check) = config.subcommand()?;
            Some((vec!["config", name], check))
        }
        _other => None,
    }
}

/// The command, with what a file says as the defaults of the one at this path.
fn with_file(
    command: clap::Command,
    path: &[String],
    file: &mut config::File<'_>,
) -> Result<clap::Command, clap::Error> {
    let command = file.apply(command)?;
    let Some((name, rest)) = path.split_first() else {
        file.end(&command)?;
        return Ok(command);
    };
    let mut failed = None;
    let command = command.mut_subcommand(name, |inner| {
        with_file(inner.clone(), rest, file).unwrap_or_else(|error| {
            failed = Some(error);
            inner
        })
    });
    failed.map_or(Ok(command), Err)
}

/// The commands: of those that ask about a model, `fit` alone takes a module in its place; those that have commands of
/// their own take a database before and after them.
fn commands() -> clap::Command {
    let everywhere =
        |command: clap::Command| command.mut_arg("database", |database| database.global(true));
    let of_server = |mut command: clap::Command| {
        for flag in ["server", "key_file", "key", "proxy", "no_proxy", "json"] {
            command = command.mut_arg(flag, |flag| flag.global(true));
        }
        command
    };
    let command = Arguments::command()
        .mut_subcommand("fit", |fit| {
            fit.mut_arg("what", |what| {
                what.required_unless_present_any(["module", "again"])
            })
        })
        .mut_subcommand("agents", of_server)
        .mut_subcommand("keys", everywhere)
        .mut_subcommand("db", everywhere);
    help::with_variables_hidden(command)
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Command {
    /// Find the largest batch that fits.
    Fit(Fit),
    /// Write the graph of a PyTorch model, with batchfit's Python package.
    Export(Export),
    /// Run one batch and show its memory.
    Probe(Probe),
    /// Simulate many steps of different lengths, with validation: does a batch last?
    Soak(Soak),
    /// Find the largest batch of any command, in any framework, by running it.
    Search(Box<Search>),
    /// Run a training script on a virtual GPU: whether it fits, and where memory goes.
    Run(Box<Run>),
    /// List stored answers, and mark outdated ones.
    Answers(ListAnswers),
    /// Report how a training went, to improve later answers.
    Outcome(Box<TellOutcome>),
    /// Compare predictions with how trainings went.
    Outcomes(ListOutcomes),
    /// List the allocations and frees of the training steps, one a line.
    Program(Program),
    /// Replay a memory snapshot of PyTorch: why it ran out, and what would help.
    Replay(Replay),
    /// Check whether recordings align, and predict one from the others.
    RecordCheck(RecordCheck),
    /// List the GPUs of this machine and the cards that can be simulated.
    Devices(Devices),
    /// List the cards that can be simulated, and cloud machines with them.
    Cards(Cards),
    /// List the models that are known by name.
    Presets(Presets),
    /// Answer requests over HTTP, with a page for the browser.
    Serve(Serve),
    /// Lend the GPUs of this machine to a service elsewhere.
    Agent(Box<Agent>),
    /// List the agents of a service, and drain or cordon them.
    Agents(Agents),
    /// Make, list and revoke the keys of the service.
    Keys(Keys),
    /// Copy, check and tidy the database.
    Db(Database),
    /// Check the settings of the service.
    #[command(subcommand)]
    Config(Config),
    /// Check what batchfit finds on this machine.
    Doctor(Doctor),
    /// Print the description of the HTTP API as YAML.
    Openapi,
    /// List the ATen operators that are known.
    Operators,
    /// Print shell completions.
    Completions(Completions),
    /// Print the manual page, or write one for each command into a folder.
    Man(ManPages),
    /// Record cuDNN's workspaces on a GPU, to simulate it exactly.
    Calibrate(Box<Calibrate>),
    /// Record what scratch memory a GPU's convolution library wants for a model's layers.
    #[command(hide = true)]
    RecordWorkspaces(Box<RecordWorkspaces>),
    /// Own a GPU for a parent process; started by batchfit itself.
    #[command(hide = true)]
    Worker(Worker),
    /// Answer one fit for a parent process; started by batchfit itself.
    #[command(hide = true)]
    Answer(Answer),
    /// Ask cuDNN about cards that are not there for a parent process; started by batchfit itself.
    #[command(hide = true)]
    Heuristics,
}

/// Where answers are kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options")]
pub(in crate::cli) struct DatabaseFlags {
    /// Where answers are kept, if not in your data folder.
    #[arg(long, env = "BATCHFIT_DATABASE", value_name = "URL")]
    pub(in crate::cli) database: Option<String>,
}

/// Everything but the interpreter is the exporter's own: it is passed on as it is.
#[derive(Debug, Args)]
pub(in crate::cli) struct Export {
    /// The Python that has batchfit's package, if neither the one beside this program nor python3.
    #[arg(long, env = "BATCHFIT_PYTHON", value_name = "PYTHON")]
    pub(in crate::cli) python: Option<OsString>,
    /// What the exporter is told: see below.
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(in crate::cli) arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Probe {
    #[command(flatten)]
    pub(in crate::cli) question: RequestFlags,
    #[command(flatten)]
    pub(in crate::cli) cudnn: AskCudnn,
    #[command(flatten)]
    pub(in crate::cli) batch: Batch,
    #[command(flatten)]
    pub(in crate::cli) recorder: RecorderFlags,
    #[command(flatten)]
    pub(in crate::cli) output: ProbeOutput,
    #[command(flatten)]
    pub(in crate::cli) patience: Timeouts,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(in crate::cli) struct ProbeOutput {
    /// Say what of the step a GPU cannot run, instead of running it; needs none.
    #[arg(long)]
    pub(in crate::cli) explain: bool,
    /// Draw memory over time by what it is for, with the peak.
    #[arg(long, value_name = "FILE", conflicts_with = "explain")]
    pub(in crate::cli) svg: Option<PathBuf>,
    /// Write each allocation and free of the steps as JSON: `events` of `POST /v1/probes`.
    #[arg(long, value_name = "FILE", conflicts_with = "explain")]
    pub(in crate::cli) events: Option<PathBuf>,
    /// Print the JSON document of `GET /v1/probes/{id}`, or of --explain, alone.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Replay {
    /// A memory snapshot of PyTorch or a trace, compressed or not; `-` reads it from stdin.
    #[arg(value_name = "TRACE")]
    pub(in crate::cli) trace: PathBuf,
    /// What may be reserved, if not as recorded: bytes, 12GiB or 0.8.
    #[arg(long, value_name = "LIMIT")]
    pub(in crate::cli) memory_limit: Option<String>,
    /// A `PYTORCH_CUDA_ALLOC_CONF`, instead of the recorded settings.
    #[arg(long, value_name = "CONF")]
    pub(in crate::cli) allocator: Option<String>,
    /// Compare with other settings: which fit, and what they need at least.
    #[arg(long)]
    pub(in crate::cli) compare: bool,
    /// Draw memory over time, and the segments and blocks at the peak.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) svg: Option<PathBuf>,
    /// Write each allocation and free as JSON: `events` of `POST /v1/replays`.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) events: Option<PathBuf>,
    /// Print the JSON document of `POST /v1/replays` and nothing else.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Program {
    #[command(flatten)]
    pub(in crate::cli) question: RequestFlags,
    #[command(flatten)]
    pub(in crate::cli) cudnn: AskCudnn,
    #[command(flatten)]
    pub(in crate::cli) batch: Batch,
    /// A recording of the same steps (a trace or a memory snapshot, begun before the model was made): print
    /// how many requests agree and which do not.
    #[arg(long, value_name = "TRACE", help_heading = "Output")]
    pub(in crate::cli) compare: Option<PathBuf>,
    /// Print how long a step takes instead, by kind of kernel.
    #[arg(long, conflicts_with = "compare", help_heading = "Output")]
    pub(in crate::cli) times: bool,
    /// How many times as long the host takes as the one that was measured, from 0.1 to 10.
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 1.0,
        requires = "times",
        help_heading = "Output"
    )]
    pub(in crate::cli) host_pace: f64,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RecordCheck {
    /// Recordings of one program at several batches: batchfit's format, traces or memory snapshots.
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::cli) files: Vec<PathBuf>,
    /// The batch of each recording, where files do not say it: memory snapshots.
    #[arg(long, value_name = "N,..", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(in crate::cli) batches: Vec<u64>,
    /// Another recording, to predict from the others.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) against: Option<PathBuf>,
    /// Print one JSON document and nothing else.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Devices {
    /// Print the JSON document of `GET /v1/devices` and nothing else.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Cards {
    /// Show all that is known of one, named as for --on: rtx4090, RTX 4090, p5.48xlarge.
    #[arg(value_name = "CARD")]
    pub(in crate::cli) name: Vec<String>,
    /// List the machines of clouds instead.
    #[arg(long, conflicts_with = "name")]
    pub(in crate::cli) machines: bool,
    /// Print the JSON document of `GET /v1/cards`, or of `GET /v1/machines`, and nothing else.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Presets {
    /// List those alone whose name has this in it: llama, resnet.
    #[arg(value_name = "PART")]
    pub(in crate::cli) part: Option<String>,
    /// Print the JSON document of `GET /v1/presets` and nothing else.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Completions {
    /// Which shell.
    pub(in crate::cli) shell: Shell,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ManPages {
    /// Where to write batchfit.1, batchfit-fit.1 and so on; the folder must exist.
    #[arg(value_name = "FOLDER")]
    pub(in crate::cli) folder: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Config {
    /// Read flags, environment and file as `serve` does, and show every setting and who says so.
    Check(Box<ConfigCheck>),
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ConfigCheck {
    #[command(flatten)]
    pub(in crate::cli) serve: Serve,
    /// Print one JSON document and nothing else.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Doctor {
    #[command(flatten)]
    pub(in crate::cli) kept: DatabaseFlags,
    /// Print one JSON document and nothing else.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}
