//! Words of others in the place of a command.

use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory as _;

use super::{Arguments, LEFT_OUT, is_misspelt, pasted, problem, row, shell};
use crate::model::{nicknames, preset};

/// The model and the card that words name, as a command about both: the longest name, in as many words as it takes. Flags behind the words
/// are kept where they are known.
pub(super) fn question(command: &str, typed: &[OsString]) -> Option<String> {
    /// Most words of a name, as in `deepseek r1 distill llama 8b`.
    const MOST: usize = 6;
    let is_flag = |word: &OsString| word.to_string_lossy().starts_with('-');
    let (said, flags) = typed.split_at(typed.iter().position(is_flag).unwrap_or(typed.len()));
    let said: Vec<_> = said.iter().map(|it| it.to_string_lossy()).collect();
    let said = said.join(" ");
    let words = said.split_whitespace();
    let mut words: Vec<&str> = words
        .map(|it| it.trim_matches(['?', '!', ',', '.']))
        .collect();
    let mut name = |joint: &str, is_it: &dyn Fn(&str) -> bool| {
        let mut spans = (1..=MOST)
            .rev()
            .flat_map(|most| (0..words.len()).map(move |at| at..at + most));
        let span = spans.find(|span| {
            words
                .get(span.clone())
                .is_some_and(|it| is_it(&it.join(joint)))
        })?;
        Some(words.drain(span).collect::<Vec<_>>().join(joint))
    };
    let mut asked = vec!["batchfit".to_owned(), command.to_owned()];
    asked.push(name("-", &|it| preset(it).is_some())?);
    let card = name(" ", &|it| nicknames::parse(it).is_ok());
    // `lora`, `bf16`, and how large the batch is.
    for word in words {
        let said = row(word, " = ").filter(|said| said.contains('|') || !said.contains('%'));
        asked.extend(
            said.filter(|it| *it != LEFT_OUT)
                .map(|_| format!("--{word}")),
        );
        if command != "fit" && word.parse::<u64>().is_ok() {
            asked.extend(["--batch", word].map(str::to_owned));
        }
    }
    if let Some(mut card) = card {
        // Which has less memory than a desktop's.
        let is_laptop = said.contains("laptop") && !card.contains("laptop");
        card.extend(is_laptop.then_some(" laptop"));
        asked.extend(["--on", card.trim_start_matches("the ")].map(str::to_owned));
    }
    let flags = flags.iter().map(|it| it.to_string_lossy().into_owned());
    let with_flags: Vec<String> = asked.iter().cloned().chain(flags).collect();
    let mut words: Vec<OsString> = with_flags.iter().map(OsString::from).collect();
    let is_wrong = problem(&mut words).is_some();
    Some(pasted(if is_wrong { &asked } else { &with_flags }))
}

/// Whether a word is a script of Python's.
pub(super) fn is_python(word: impl AsRef<Path>) -> bool {
    let extension = word.as_ref().extension();
    extension.is_some_and(|it| it == "py")
}

/// What is said of a word that is no command.
pub(super) fn no_command(command: &str, typed: &[OsString]) -> String {
    if matches!(Path::new(command).extension(), Some(it) if it == "py" || it == "sh") {
        let own = shell(&typed[1..]);
        let with = if command.ends_with("py") {
            "python"
        } else {
            "bash"
        };
        return format!(
            "{command:?} is no command; write `batchfit run --on t4 -- {with} {own}`, with your card, to run it on a virtual GPU"
        );
    }
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
        _ if typed.iter().any(is_python) => format!(
            "{command:?} is no command; `batchfit run --on CARD -- python train.py` runs your own script on a virtual GPU, and says what it takes"
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
