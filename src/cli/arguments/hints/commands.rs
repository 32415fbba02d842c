//! Words of others in the place of a command.

use std::ffi::OsString;

use clap::CommandFactory as _;

use super::{Arguments, is_misspelt, question, shell};
use crate::model::preset;

/// What is said of a word that is no command.
pub(super) fn no_command(command: &str, typed: &[OsString]) -> String {
    let near = preset(command).is_none().then(|| nearest_command(command));
    let (instead, behind) = match near.flatten() {
        Some(near) => (near, 2),
        None => ("fit %".to_owned(), 1),
    };
    let asks = instead.split_once(" %");
    let asked = asks.and_then(|(own, _)| question(own, &typed[behind..]));
    if instead.ends_with("--") {
        let own = shell(&typed[1..]);
        return format!("{command:?} is no command; write `batchfit {instead} {own}`");
    }
    match (asks, asked) {
        (Some((_, flags)), Some(asked)) => {
            format!("{command:?} is no command; write `{asked}{flags}`")
        }
        (Some(_), None) if behind == 1 => format!(
            "{command:?} is no command; `batchfit fit resnet18 --on t4` finds the largest batch of a model on a card, and `batchfit --help` \
             lists the commands"
        ),
        _ => format!(
            "{command:?} is no command; write `batchfit {}`",
            instead.replace('%', "resnet18 --on t4")
        ),
    }
}

/// Words of others for what a command here does; `%` is the model and the card, and what is typed follows `--`.
const COMMANDS: &str = include_str!("commands.txt");

/// What does the same here, or the command that is misspelt.
fn nearest_command(typed: &str) -> Option<String> {
    let typed = typed.to_lowercase();
    let mut rows = COMMANDS.lines().filter_map(|line| line.split_once(" = "));
    if let Some((_, instead)) = rows.find(|(others, _)| others.split(' ').any(|it| it == typed)) {
        return Some(instead.to_owned());
    }
    let own = Arguments::command();
    let names = own.get_subcommands().map(clap::Command::get_name);
    let nearest = names.min_by_key(|name| strsim::damerau_levenshtein(&typed, name))?;
    let behind = if nearest == "fit" { "%" } else { "--help" };
    (is_misspelt(&typed, nearest) && typed.len() > 2).then(|| format!("{nearest} {behind}"))
}
