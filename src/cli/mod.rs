//! The command line: reads flags, files and the environment, calls one function, prints its answer.
//!
//! Nothing below this module reads an environment variable or writes to stdout. With `--json` stdout
//! carries exactly one document and stderr everything else. Exit codes: 0 answered, 2 bad input,
//! 3 nothing fits (a `fit`) or the batch does not (a `probe`), 4 device trouble, 5 there was nothing to do (an `agent --once`), 1 anything
//! else, such as an answer that cannot be written; a search that is interrupted ends with 130, and a script that fails under `run` with its own code. A closed stdout is no failure: 0.

mod answers;
mod arguments;
mod cards;
mod children;
mod devices;
mod doctor;
mod error;
mod fit;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzed;
mod heuristics;
mod interrupts;
mod presets;
mod probe;
mod program;
mod python;
mod question;
mod recordings;
mod search;
mod service;
mod soak;
mod storage;
mod terminal;
mod virtual_gpu;

use std::process::ExitCode;

use anyhow::Context as _;
use batchfit_platform::log_to_stderr;
use tracing_subscriber::filter::{LevelFilter, Targets};

use arguments::{
    Arguments, AskCudnn, Command, Config, Format, LogFormat, ModuleFlags, RecorderFlags,
    SearchFormat,
};
use children::{answer, worker};
use error::CliError;

use crate::device::sim;
use crate::http;
use crate::jobs::FitEngine;
use crate::ops;
use crate::report;
use crate::worker::{Deadlines, RecorderCommand, supervised};

pub use terminal::output::look_at_stdout;

/// What a command that did its work tells the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// There is an answer.
    Answered,
    /// There is an answer: not even a batch of one fits, or not the one that was probed.
    NothingFits,
    /// There is a report: the steps did not run on the device.
    DeviceTrouble,
    /// There was nothing to do.
    NothingToDo,
    /// It was interrupted.
    Interrupted,
    /// A command failed for reasons of its own, with this code.
    Command(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        match outcome {
            Outcome::Answered => ExitCode::SUCCESS,
            Outcome::NothingFits => ExitCode::from(3),
            Outcome::DeviceTrouble => ExitCode::from(4),
            Outcome::NothingToDo => ExitCode::from(5),
            // As shells have it: 128 and the number of SIGINT.
            Outcome::Interrupted => ExitCode::from(130),
            Outcome::Command(code) => ExitCode::from(code),
        }
    }
}

/// What is logged.
fn logged(arguments: &Arguments) -> Targets {
    // A slow disk is no trouble of a command's.
    let (level, of_database) = match arguments.command {
        Command::Serve(_) | Command::Agent(_) => (LevelFilter::INFO, LevelFilter::INFO),
        _ => (LevelFilter::WARN, LevelFilter::ERROR),
    };
    let access = match &arguments.command {
        Command::Serve(serve) if serve.access_log => LevelFilter::INFO,
        _ => LevelFilter::OFF,
    };
    let usual = Targets::new()
        .with_target("sqlx", of_database)
        .with_default(level);
    let asked = arguments.log.clone().unwrap_or(usual);
    asked.with_target("batchfit::access", access)
}

/// Runs the command that the process was started with. A service first does what is good for a process that stays.
pub fn run(before_serving: fn()) -> ExitCode {
    if let Some(code) = supervised::run_if_asked() {
        return code;
    }
    if let Some(folder) = storage::calibrations() {
        sim::look_in(folder);
    }
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(said) => return said_by_flags(&said),
    };
    log_to_stderr(logged(&arguments), arguments.log_format == LogFormat::Json);
    let runs_on_gpu = match &arguments.command {
        Command::Fit(fit) => fit.question.own.on.is_none(),
        Command::Probe(_)
        | Command::Serve(_)
        | Command::Agent(_)
        | Command::Devices(_)
        | Command::Doctor(_) => true,
        _ => false,
    };
    if runs_on_gpu {
        heuristics::find_libraries();
    }
    let asks = match &arguments.command {
        Command::Fit(fit) => &fit.cudnn,
        Command::Probe(probe) => &probe.cudnn,
        Command::Soak(soak) => &soak.cudnn,
        Command::Program(program) => &program.cudnn,
        Command::Serve(serve) => &serve.cudnn,
        Command::Agent(agent) => &agent.cudnn,
        Command::Answer(answer) => &answer.cudnn,
        Command::Run(run) => &run.cudnn,
        _ => &AskCudnn { ask_cudnn: None },
    };
    if let Some(wanted) = asks.ask_cudnn.as_deref()
        && let Err(trouble) = heuristics::set_heuristics(wanted)
    {
        return exit(trouble, false);
    }
    let settings = arguments.settings;
    let for_shell = match &arguments.command {
        Command::Fit(fit) => fit.output.format() == Format::Env,
        Command::Search(search) => search.format() == SearchFormat::Env,
        _ => false,
    };
    let (json, outcome) = match arguments.command {
        Command::Fit(arguments) => (
            arguments.output.format() == Format::Json,
            fit::run(&arguments),
        ),
        Command::Probe(arguments) => (arguments.output.json, probe::run(&arguments)),
        Command::Soak(arguments) => (arguments.json, soak::run(&arguments)),
        Command::Answers(arguments) => (arguments.json, answers::list(&arguments)),
        Command::Outcome(arguments) => (arguments.json, answers::outcomes::tell(&arguments)),
        Command::Outcomes(arguments) => (arguments.json, answers::outcomes::list(&arguments)),
        Command::Program(arguments) => (false, program::run(&arguments)),
        Command::Search(arguments) => (
            arguments.format() == SearchFormat::Json,
            search::run(&arguments),
        ),
        Command::Run(arguments) => (arguments.json, virtual_gpu::run(&arguments)),
        Command::Replay(arguments) => (arguments.json, recordings::replay::run(&arguments)),
        Command::RecordCheck(arguments) => (arguments.json, recordings::check::run(&arguments)),
        Command::Export(arguments) => (false, python::export::run(&arguments)),
        Command::Devices(arguments) => (arguments.json, devices::run(&arguments)),
        Command::Cards(arguments) => (arguments.json, cards::run(&arguments)),
        Command::Presets(arguments) => (arguments.json, presets::run(&arguments)),
        Command::Serve(arguments) => {
            before_serving();
            (false, service::serve::run(&arguments))
        }
        Command::Agent(arguments) => (false, service::agent::run(&arguments)),
        Command::Agents(arguments) => (arguments.json, service::agents::run(&arguments)),
        Command::Config(arguments) => {
            let Config::Check(check) = arguments;
            (check.json, service::config::check(&check, &settings))
        }
        Command::Doctor(arguments) => (arguments.json, doctor::run(&arguments)),
        Command::Db(arguments) => (false, service::db::run(&arguments)),
        Command::Keys(arguments) => (false, service::keys::run(&arguments)),
        Command::Openapi => (false, openapi()),
        Command::Operators => (false, operators()),
        Command::Completions(arguments) => (false, terminal::shell::completions(&arguments)),
        Command::Man(arguments) => (false, terminal::shell::man(&arguments)),
        Command::Calibrate(arguments) => (false, recordings::calibrate::run(&arguments)),
        Command::RecordWorkspaces(arguments) => (false, recordings::workspaces::run(&arguments)),
        Command::Worker(arguments) => (false, worker::run(&arguments)),
        Command::Answer(arguments) => (false, answer::run(&arguments)),
        Command::Heuristics => (false, children::heuristics::run()),
    };
    match outcome {
        Ok(outcome) => outcome.into(),
        Err(trouble) => {
            if for_shell {
                fail_shell();
            }
            exit(trouble, json)
        }
    }
}

/// Says why there is no answer.
fn exit(trouble: CliError, json: bool) -> ExitCode {
    let code = trouble.exit_code();
    if !matches!(trouble, CliError::ReaderGone) {
        let mut problem = trouble.into_problem();
        let typed: Vec<_> = std::env::args_os().collect();
        problem.detail = arguments::with_card(&problem.detail, &typed);
        terminal::output::problem(&problem, json);
    }
    code
}

/// Leaves a shell that evaluates stdout something that fails; the exit code says so to all others.
fn fail_shell() {
    // What is wrong is about to be said.
    let _ = terminal::output::text(&report::no_env());
}

/// Prints help, which is an answer, or what is wrong with the flags.
fn said_by_flags(said: &clap::Error) -> ExitCode {
    let flags: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let asks_for_env = |pair: &[String]| pair[0] == "--format" && pair[1] == "env";
    let is_env = flags.windows(2).any(asks_for_env) || flags.iter().any(|it| it == "--format=env");
    if said.use_stderr() && is_env {
        fail_shell();
    }
    if let (false, Err(error)) = (said.use_stderr(), terminal::output::refuse_closed()) {
        return exit(error, false);
    }
    match said.print() {
        Err(error) if !said.use_stderr() => exit(CliError::writing(error), false),
        Ok(()) | Err(_) => ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2)),
    }
}

/// `batchfit openapi`.
fn openapi() -> Result<Outcome, CliError> {
    terminal::output::text(&http::openapi_yaml())
}

/// `batchfit operators`.
fn operators() -> Result<Outcome, CliError> {
    terminal::output::text(&ops::known_operators())
}

/// The engine of this process, whose workers are this very binary.
fn engine(deadlines: Deadlines) -> Result<FitEngine, CliError> {
    let program = std::env::current_exe().context("could not find this program's file")?;
    Ok(FitEngine::new(program).with_deadlines(deadlines))
}

/// What records, if an interpreter or a module is named. A module is trained by the interpreter that `batchfit export`
/// takes, unless one is named.
fn recorder(
    flags: &RecorderFlags,
    module: &ModuleFlags,
) -> Result<Option<RecorderCommand>, CliError> {
    let module = module.named();
    let python = match (&flags.recorder, &module) {
        (Some(python), _) => python.clone(),
        (None, Some(_)) => python::interpreter(std::env::var_os("BATCHFIT_PYTHON").as_deref())?,
        (None, None) => return Ok(None),
    };
    Ok(Some(RecorderCommand { python, module }))
}

/// What records graphs.
fn recorder_of_graphs(flags: &RecorderFlags) -> Option<RecorderCommand> {
    flags.recorder.clone().map(|python| RecorderCommand {
        python,
        module: None,
    })
}
