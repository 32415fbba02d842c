//! Flags of other tools, and what to write here instead. What stands in backticks works as it is: a test types it.

use clap::error::{ContextKind, ContextValue, ErrorKind};

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
            let preset = preset(command)?.name;
            Some(format!(
                "{command:?} is no command; write `batchfit fit {preset}`"
            ))
        }
        _ => None,
    }
}
