//! Flags of other tools, and what to write here instead. What stands in backticks works as it is: a test types it.

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Arguments;
use crate::model::preset;

/// Commands that ask a question.
const ASKING: [&str; 4] = ["fit", "probe", "soak", "program"];

/// What is typed, and what to do.
const HINTS: &str = include_str!("hints.txt");

/// The same error with what to write instead, where that is known.
pub(super) fn hinted(error: clap::Error, typed: &[String]) -> clap::Error {
    let command = typed.get(1).map(String::as_str).unwrap_or_default();
    match say(&error, command, typed) {
        Some(problem) => clap::Error::raw(error.kind(), problem + "\n"),
        None => error,
    }
}

fn say(error: &clap::Error, command: &str, typed: &[String]) -> Option<String> {
    let is_given = |flag: &str| {
        let with_value = format!("{flag}=");
        typed
            .iter()
            .any(|it| it == flag || it.starts_with(&with_value))
    };
    match error.kind() {
        ErrorKind::UnknownArgument if ASKING.contains(&command) => {
            let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            let name = flag.split('=').next()?.trim_start_matches('-');
            let name = name.to_lowercase().replace('_', "-");
            let mut rows = HINTS.lines().filter_map(|line| line.split_once(" | "));
            let (_, hint) = rows.find(|(names, _)| names.split(' ').any(|it| it == name))?;
            Some(format!("there is no {flag}; {hint}"))
        }
        ErrorKind::MissingRequiredArgument if command == "fit" && !is_given("--module") => {
            let flag = ["--loss", "--batch"]
                .into_iter()
                .find(|flag| is_given(flag))?;
            let instead = match flag {
                "--batch" => {
                    "whether a batch fits is asked by `batchfit probe resnet18 --on t4 --batch 64`"
                }
                _ => {
                    "a model by name has its own loss; of another one (DPO, GRPO, a reward, a distillation) export your module, whose forward \
                     returns the loss: batchfit export MODULE:BUILD --batch TENSORS --loss model -o model.json.gz"
                }
            };
            Some(format!(
                "{flag} goes with --module, a module of yours; {instead}"
            ))
        }
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
const COMMANDS: [(&str, &str); 8] = [
    ("estimate", "probe --help"),
    ("estimate-memory", "probe --help"),
    ("find", "fit --help"),
    ("train", "run --help"),
    ("tune", "fit --help"),
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
