//! Flags of other tools: those that mean the same are taken, of the others it is said what to write here. What stands in backticks
//! works as it is: a test types it.

use std::ffi::OsString;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Arguments;
use crate::model::preset;

/// Commands that ask a question.
const ASKING: [&str; 4] = ["fit", "probe", "soak", "program"];

/// Names ` = ` flags that mean the same, where `%` is the value and `%|16` one that may be missing; or names ` | ` what to do.
const HINTS: &str = include_str!("hints.txt");

/// What follows the names in the row of a flag.
fn row(flag: &str, separator: &str) -> Option<&'static str> {
    let name = flag.split('=').next()?.trim_start_matches('-');
    let name = name.to_lowercase().replace('_', "-");
    let mut rows = HINTS.lines().filter_map(|line| line.split_once(separator));
    let (_, said) = rows.find(|(names, _)| names.split(' ').any(|it| it == name))?;
    Some(said)
}

/// What is typed with the flag of another tool that an error is about in the words of this one, and a note of it.
pub(super) fn taken(error: &clap::Error, typed: &[OsString]) -> Option<(Vec<OsString>, String)> {
    let text = |at: usize| typed.get(at).and_then(|one| one.to_str());
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    // torchvision's and timm's `--amp` takes no value and means float16.
    let is_bare = error.kind() == ErrorKind::InvalidValue && flag.starts_with("--amp ");
    if let Some(at) = typed
        .iter()
        .position(|one| one == "--amp")
        .filter(|_| is_bare)
        && text(at + 1).is_none_or(|next| next.starts_with('-'))
    {
        let mut words = typed.to_vec();
        words.insert(at + 1, "fp16".into());
        return Some((words, "--amp is taken as `--amp fp16`".to_owned()));
    }
    let (ErrorKind::UnknownArgument, true) = (error.kind(), ASKING.contains(&text(1)?)) else {
        return None;
    };
    let flag = flag.split('=').next()?;
    let dashed = flag.replace('_', "-") + " %";
    let instead = row(flag, " = ").or_else(|| {
        let is_ours = row(flag, " | ").is_none() && flag.contains('_');
        is_ours.then_some(dashed.as_str())
    })?;
    let is_it = |one: &str| {
        one == flag
            || one
                .strip_prefix(flag)
                .is_some_and(|rest| rest.starts_with('='))
    };
    let at = (2..typed.len()).find(|at| text(*at).is_some_and(is_it))?;
    let attached = text(at)?.split_once('=').map(|(_, value)| value);
    let next = text(at + 1).filter(|next| attached.is_none() && !next.starts_with('-'));
    let is_truth = |value: &&str| ["true", "false"].contains(&&*value.to_lowercase());
    let is_number = |value: &&str| value.parse::<u64>().is_ok();
    let (pattern, usual) = instead.split_once('|').unwrap_or((instead, ""));
    let (value, is_of_next) = match (attached, next) {
        (Some(value), _) => (value, false),
        (None, Some(next)) if usual.is_empty() && pattern.contains('%') => (next, true),
        (None, Some(next)) if !usual.is_empty() && is_number(&next) || is_truth(&next) => {
            (next, true)
        }
        (None, _) => (usual, false),
    };
    let value = if is_truth(&value) && !usual.is_empty() {
        usual
    } else {
        value
    };
    if value.is_empty() && pattern.contains('%') {
        return None;
    }
    let is_off = value.eq_ignore_ascii_case("false");
    let written = if is_off {
        String::new()
    } else {
        pattern.replace('%', value)
    };
    let mut words = typed[..at].to_vec();
    words.extend(written.split_whitespace().map(OsString::from));
    words.extend_from_slice(&typed[at + 1 + usize::from(is_of_next)..]);
    let note = format!("{flag} is taken as `{written}`");
    Some((
        words,
        if is_off {
            format!("{flag} is left out")
        } else {
            note
        },
    ))
}

/// The same error with what to write instead, where that is known.
pub(super) fn hinted(error: clap::Error, command: &str) -> clap::Error {
    match say(&error, command) {
        Some(problem) => clap::Error::raw(error.kind(), problem + "\n"),
        None => without_environment(error),
    }
}

/// clap counts what the environment sets among what the command needs.
fn without_environment(mut error: clap::Error) -> clap::Error {
    if let Some(usage) = error.get(ContextKind::Usage).map(ToString::to_string) {
        let usage = usage.replace(" --database <URL>", "");
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage.into()));
    }
    error
}

fn say(error: &clap::Error, command: &str) -> Option<String> {
    match error.kind() {
        ErrorKind::MissingRequiredArgument if ASKING.contains(&command) => {
            let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            let lacks = |name: &str| missing.iter().any(|one| one.contains(name));
            let batch = if command == "fit" { "" } else { " --batch 64" };
            if lacks("WHAT") {
                Some(format!("name a model: `batchfit {command} resnet18 --on t4{batch}`; `batchfit presets` lists those with a name"))
            } else {
                lacks("--loss").then(|| {
                    "--module trains your module on this GPU, and needs --batch and --loss; `batchfit fit my.py:build`, whose function returns \
                     (model, batch, loss), needs neither of them, nor a GPU"
                        .to_owned()
                })
            }
        }
        ErrorKind::UnknownArgument if ASKING.contains(&command) => {
            let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            Some(format!("there is no {flag}; {}", row(flag, " | ")?))
        }
        ErrorKind::InvalidValue => {
            let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
                return None;
            };
            let is_known = ["axolotl", "unsloth", "llamafactory", "torchtune", "peft"];
            is_known.contains(&&*value.to_lowercase()).then(|| {
                format!(
                    "there is no form {value}, which has kernels and losses of its own that take other memory than this answer; \
                     `--format trl` has the values for its settings"
                )
            })
        }
        ErrorKind::InvalidSubcommand if command == "tune" => Some(
            "tune is a function of the Python package, `batchfit.tune(step, batch=8, state=[model, optimizer])`, which finds the batch on \
             the GPU; without a GPU write `batchfit fit resnet50 --on rtx4090`"
                .to_owned(),
        ),
        ErrorKind::InvalidSubcommand => {
            let instead = match preset(command) {
                Some(preset) => format!("fit {}", preset.name),
                None => nearest_command(command)?,
            };
            Some(format!(
                "{command:?} is no command; write `batchfit {instead}`"
            ))
        }
        _ => None,
    }
}

/// Words of others for what a command here does.
const COMMANDS: [(&str, &str); 7] = [
    ("estimate", "probe --help"),
    ("estimate-memory", "probe --help"),
    ("find", "fit --help"),
    ("train", "run --help"),
    ("plan", "fit --help"),
    ("why", "fit resnet18 --on t4 --why"),
    ("explain", "fit resnet18 --on t4 --why"),
];

/// What does the same here, or the command that is misspelt.
fn nearest_command(typed: &str) -> Option<String> {
    let typed = typed.to_lowercase();
    let others = COMMANDS.iter().find(|(other, _)| *other == typed);
    if let Some((_, instead)) = others {
        return Some((*instead).to_owned());
    }
    let own = Arguments::command();
    let names = own.get_subcommands().map(clap::Command::get_name);
    let like = |name: &&str| strsim::damerau_levenshtein(&typed, name);
    let nearest = names.min_by_key(like)?;
    (like(&nearest) <= 2 && typed.len() > 2).then(|| format!("{nearest} --help"))
}
