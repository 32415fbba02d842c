//! All that is wrong with the words of a question, at once.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ErrorKind};

use super::{Arguments, ONE_BATCH, one_batch, pasted, problem, question, removed, row};
use crate::cli::question::no_model;

/// Takes the first of these words out that is unknown, and its value: the word, what is spelt alike, the value.
pub(super) fn unknown_word(
    words: &mut Vec<OsString>,
) -> Option<(String, Option<String>, Option<String>)> {
    let error = problem(words).filter(|it| it.kind() == ErrorKind::UnknownArgument)?;
    let text = |kind| error.get(kind).map(ToString::to_string);
    let (word, count) = (text(ContextKind::InvalidArg)?, words.len());
    let value = removed(words, &word);
    (words.len() < count).then(|| (word, text(ContextKind::SuggestedArg), value))
}

/// What is wrong with the model of a question, whatever flags it has.
pub(super) fn wrong_model(typed: &[OsString]) -> Option<String> {
    let mut words = typed.to_vec();
    while unknown_word(&mut words).is_some() {}
    let read = Arguments::command().try_get_matches_from(words).ok()?;
    let (_, asked) = read.subcommand()?;
    no_model(asked.try_get_one::<PathBuf>("what").ok()??)
}

/// What is said of all that is unknown among the words of a question, of what is alike together.
pub(super) fn unknown(command: &str, typed: &[OsString]) -> Option<String> {
    let (mut said, mut words) = (Vec::<(String, String)>::new(), typed.to_vec());
    let mut model = wrong_model(typed);
    while let Some((flag, near, value)) = unknown_word(&mut words) {
        let is_flag = flag.starts_with('-') || flag.contains('=');
        let flag = flag.split('=').next()?.to_owned();
        let of_value = row(&format!("{flag}={}", value.unwrap_or_default()), " | ");
        let advice = match (of_value.or_else(|| row(&flag, " | ")), near) {
            (Some(ONE_BATCH), _) if model.is_none() => one_batch(typed, &flag),
            (Some(advice), _) => advice.to_owned(),
            (None, Some(near)) if is_misspelt(&flag, &near) => format!("did you mean {near}?"),
            (None, _) if is_flag => ELSE.to_owned(),
            (None, _) => match question(command, &typed[2..]) {
                Some(asked) if typed.iter().position(|it| **it == *flag) == Some(3) => {
                    format!("write `{asked}`")
                }
                _ => format!("`batchfit {command} --help` says what each flag takes"),
            },
        };
        match said.iter_mut().find(|(_, known)| *known == advice) {
            Some((flags, _)) => flags.extend([", ", &flag]),
            None => said.push((flag.clone(), advice)),
        }
        if !is_flag {
            // It may be a part of the model's name.
            model = None;
            break;
        }
    }
    let lines = said
        .iter()
        .map(|(flags, advice)| format!("there is no {flags}; {advice}"));
    let lines: Vec<_> = lines.chain(model).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// What is said of other flags.
const ELSE: &str = "leave it out if it changes no memory; `batchfit run --on CARD -- python train.py` runs your own script with all that it has";

/// Whether a word is another, misspelt: short ones are too much alike for two mistakes.
pub(super) fn is_misspelt(typed: &str, word: &str) -> bool {
    strsim::damerau_levenshtein(typed, word) <= if typed.len() < 8 { 1 } else { 2 }
}

/// What was typed, as a shell takes it.
pub(super) fn shell(words: &[OsString]) -> String {
    let words = words.iter().map(|it| it.to_string_lossy().into_owned());
    pasted(&words.collect::<Vec<_>>())
}
