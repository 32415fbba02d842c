//! Flags of other tools: those that mean the same are taken, of the others it is said what to write here. What stands in backticks
//! works as it is: a test types it.

mod commands;
mod settings;
mod unknown;

use std::ffi::OsString;
use std::path::Path;
use std::sync::LazyLock;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Arguments;
use crate::cli::question::{count, is_on};
use crate::model::members::{Kind, TRAINING};
use crate::model::{OTHER_NAMES, nicknames, preset};

use commands::{is_python, no_command, question};
pub(in crate::cli) use settings::of_settings;
use settings::without_adapter;
use unknown::{is_misspelt, shell, unknown, unknown_word, wrong_model};

/// Commands that ask a question.
const ASKING: [&str; 4] = ["fit", "probe", "soak", "program"];

/// Names ` = ` flags that mean the same, where `%` is the value and `%|16` one that may be missing, and nothing of what changes no answer; or
/// names ` | ` what to do. A name may have a value, `strategy=auto`. Then what no request has, and what others call the members of `training`
/// that are one number or word.
static HINTS: LazyLock<String> = LazyLock::new(|| {
    let rows = TRAINING.flags().into_iter().filter(|(_, member, _)| {
        let is_one = matches!(
            member.kind,
            Kind::Whole(..) | Kind::Number(..) | Kind::Positive | Kind::Word(..)
        );
        is_one && !member.synonyms.is_empty()
    });
    let lines = rows.map(|(_, member, flag)| {
        format!(
            "{} = --{} %\n",
            member.synonyms.replace('_', "-"),
            flag.name
        )
    });
    let others = OTHER_NAMES
        .lines()
        .filter_map(|line| line.split_once(" | "));
    let others = others.filter(|(_, said)| !said.starts_with("training | "));
    let others = others.map(|(names, said)| {
        let kind = if said == LEFT_OUT { "=" } else { "|" };
        format!("{} {kind} {said}\n", names.replace('_', "-"))
    });
    let lines = others.chain(lines).collect::<String>();
    include_str!("hints.txt").to_owned() + &lines
});

/// Flags that take a value and are typed without one, and what they mean then: torchvision's and timm's `--amp` is float16.
const BARE: [(&str, &str); 2] = [("--amp", "fp16"), ("--checkpoint", "per_block")];

/// What follows the names in the row of a flag, or of the last part of a dotted one, such as `tokenizer.max_seq_len`.
fn row(flag: &str, separator: &str) -> Option<&'static str> {
    let name = flag
        .trim_start_matches('-')
        .to_lowercase()
        .replace(['_', ' '], "-");
    let find = |name: &str| {
        HINTS.lines().find_map(|line| {
            let mut kinds = [" = ", " | "].into_iter();
            let kind = kinds.find(|kind| line.contains(kind))?;
            let (names, said) = line.split_once(kind)?;
            names
                .split(' ')
                .any(|it| it == name)
                .then_some((kind, said))
        })
    };
    let (kind, said) = find(&name).or_else(|| find(name.split_once('.')?.1))?;
    (kind == separator).then_some(said)
}

/// What is wrong with words, once flags of other tools are taken for what they mean.
fn problem(words: &mut Vec<OsString>) -> Option<clap::Error> {
    loop {
        let error = Arguments::command().try_get_matches_from(&*words).err()?;
        match taken(&error, words) {
            Some((others, _)) if others != *words => *words = others,
            _ => return Some(error),
        }
    }
}

/// A switch with a value behind it, at this place, as in `--cpu-offload true`: with the switch alone, or without it.
fn switched(value: &str, at: usize, typed: &[OsString]) -> Option<(Vec<OsString>, String)> {
    let is_on = is_on(value)?;
    let switch = typed.get(at.checked_sub(1)?)?.to_str()?;
    let switch = switch.starts_with("--").then_some(switch)?;
    let mut words = typed.to_vec();
    words.drain(at - usize::from(!is_on)..=at);
    let read = if is_on { "given" } else { "not given" };
    let note = format!("{switch} takes no value: {value} is read as {read}");
    Some((words, note))
}

/// What is typed with the flag of another tool that an error is about in the words of this one, and a note of it.
pub(super) fn taken(error: &clap::Error, typed: &[OsString]) -> Option<(Vec<OsString>, String)> {
    let text = |at: usize| typed.get(at).and_then(|one| one.to_str());
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let (command, kind) = (text(1)?, error.kind());
    if kind == ErrorKind::InvalidValue {
        return without_value(flag, typed);
    }
    let flag = flag.split('=').next()?;
    // `-on` is taken for `-o`.
    let words = typed
        .iter()
        .filter_map(|one| one.to_str()?.split('=').next());
    let mut long = words.filter(|one| flag.len() == 2 && one.len() > 2 && one.starts_with(flag));
    let flag = long
        .find(|one| dashed(command, one).is_some())
        .unwrap_or(flag);
    let is_card = command == "run" && row(flag, " = ") == Some("--on %");
    let is_asking = ASKING.contains(&command);
    let is_word = kind == ErrorKind::UnknownArgument && !flag.starts_with('-');
    let behind = typed.iter().position(|it| is_word && **it == *flag);
    if let Some(switched) = behind.and_then(|at| switched(flag, at, typed)) {
        return Some(switched);
    }
    let is_part = is_word && (is_asking || command == "run");
    if let Some(joined) = is_part.then(|| continued(command, flag, typed)).flatten() {
        return Some(joined);
    }
    if kind != ErrorKind::UnknownArgument || !(is_card || is_asking) {
        return None;
    }
    let is_it = |one: &str| {
        one == flag
            || one
                .strip_prefix(flag)
                .is_some_and(|rest| rest.starts_with('='))
    };
    let at = (2..typed.len()).find(|at| text(*at).is_some_and(is_it))?;
    let attached = text(at)?.split_once('=').map(|(_, value)| value);
    if is_word && attached.is_none() {
        return None;
    }
    let next = text(at + 1).filter(|next| attached.is_none() && !next.starts_with('-'));
    let given = attached.or(next).unwrap_or_default();
    let is_off = is_on(given) == Some(false);
    let with_value = format!("{flag}={given}");
    let without = without_adapter(flag, given, typed);
    if without.is_some() || row(&with_value, " | ").is_some() {
        return without;
    }
    let of_value = row(&with_value, " = ");
    let dashed = dashed(command, flag).filter(|_| flag.starts_with('-') || attached.is_some());
    let instead = of_value
        .or_else(|| row(flag, " = "))
        .or_else(|| match row(flag, " | ") {
            Some(ONE_BATCH) if command != "fit" => Some("--batch %"),
            Some(ONE_BATCH) if ["auto", "-1"].contains(&given) => Some(LEFT_OUT),
            Some(_) => is_off.then_some(LEFT_OUT),
            None => dashed.as_deref(),
        })?;
    let instead = match instead {
        "--world-size %" if nicknames::parse(given).is_ok() => "--on %", // `--gpus 4090`
        "--on %GB" if is_partly(typed) => "--memory-limit %",
        "--on %GB" if given.ends_with(|c: char| !c.is_ascii_digit()) => "--on %",
        instead => instead,
    };
    let (pattern, usual) = instead.split_once('|').unwrap_or((instead, ""));
    let is_truth = |value: &str| value == "auto" || is_on(value).is_some();
    let is_value = |next: &&str| {
        of_value.is_some()
            || is_truth(next)
            || match (pattern, usual) {
                (LEFT_OUT, _) => preset(next).is_none() && !Path::new(next).exists(),
                (_, "") => pattern.contains('%'),
                _ => next.parse::<u64>().is_ok(),
            }
    };
    let taken = next.filter(is_value);
    let value = match attached.or(taken) {
        Some(value) if usual.is_empty() || !is_truth(value) => value,
        _ => usual,
    };
    if value.is_empty() && pattern.contains('%') {
        return None;
    }
    let mut words = typed[..at].to_vec();
    let is_left_out = is_off && of_value.is_none() && attached.or(taken).is_some();
    let note = if value == usual && typed.iter().any(|it| says(it, pattern)) {
        format!("{flag} is left out: what it means is said beside it")
    } else if is_left_out || pattern == LEFT_OUT {
        format!("{flag} is left out: it changes nothing here")
    } else {
        let written = pattern.replace('%', value);
        words.extend(written.split_whitespace().map(OsString::from));
        format!("{flag} is taken as `{written}`")
    };
    words.extend_from_slice(&typed[at + 1 + usize::from(taken.is_some())..]);
    Some((words, note))
}

/// A flag typed without its value, and the usual one.
fn without_value(flag: &str, typed: &[OsString]) -> Option<(Vec<OsString>, String)> {
    let flag = flag.split(' ').next();
    let (own, usual) = BARE.iter().find(|(own, _)| flag == Some(own))?;
    let behind = typed.iter().position(|one| one == own)? + 1;
    let next = typed.get(behind).and_then(|next| next.to_str());
    let mut words = typed.to_vec();
    words.insert(behind, usual.into());
    let is_bare = next.is_none_or(|next| next.starts_with('-'));
    is_bare.then(|| (words, format!("{own} is taken as `{own} {usual}`")))
}

/// Whether a word is a flag for this pattern or its value, as `--lora-r` and `lora=8` are for `--with lora=%`.
fn says(word: &OsString, pattern: &str) -> bool {
    let word = word.to_str().unwrap_or_default();
    let value = pattern.rsplit(' ').next().unwrap_or_default();
    let begins = value.strip_suffix('%').filter(|it| !it.is_empty());
    let is_flag = |it: &str| it.starts_with('-') && row(it, " = ") == Some(pattern);
    begins.is_some_and(|it| word.starts_with(it) || is_flag(word))
}

/// What is typed with a value in one word that goes on in others, as a card (`--on rtx 4090`) or a list (`--precision bf16 fp32`) does.
fn continued(command: &str, word: &str, typed: &[OsString]) -> Option<(Vec<OsString>, String)> {
    let is_flag = |it: &OsString| it.to_string_lossy().starts_with('-');
    let at = typed.iter().position(|it| **it == *word)?;
    let start = typed[..at].iter().rposition(is_flag)? + 1;
    let behind = typed[at..].iter().position(is_flag);
    let end = behind.map_or(typed.len(), |behind| at + behind);
    let flag = typed[start - 1].to_str()?;
    let parts = typed[start..end].iter().map(|it| it.to_string_lossy());
    let parts: Vec<_> = parts.collect();
    let has_model = parts.iter().any(|it| preset(it).is_some());
    let whole = parts.join(match flag {
        "--on" => " ",
        "--image-size" => "x",
        _ => ",",
    });
    let is_value = match flag {
        "--on" => nicknames::parse(&whole).is_ok(),
        _ => command != "run" && !has_model,
    };
    let words = [&typed[..start], &[OsString::from(&whole)], &typed[end..]].concat();
    let written = pasted(&[flag.to_owned(), whole]);
    (is_value && start < at).then(|| (words, format!("{flag} is taken as `{written}`")))
}

/// The row of a flag that changes no answer.
const LEFT_OUT: &str = "-";

/// The flag of this program that is written so with underscores or as the last part of a path, and whether it takes a value.
fn dashed(command: &str, flag: &str) -> Option<String> {
    let last = flag.trim_start_matches('-').rsplit('.').next()?;
    let name = last.replace('_', "-");
    let commands = Arguments::command();
    let mut flags = commands.find_subcommand(command)?.get_arguments();
    let is_it = |own: &&clap::Arg| {
        let others = own.get_all_aliases().unwrap_or_default();
        own.get_long() == Some(name.as_str()) || others.contains(&&*name)
    };
    let value = if flags.find(is_it)?.get_action().takes_values() {
        " %"
    } else {
        ""
    };
    Some(format!("--{name}{value}"))
}

/// The same error with what to write instead, where that is known.
pub(super) fn hinted(error: clap::Error, typed: &[OsString]) -> clap::Error {
    match say(&error, typed) {
        Some(problem) => clap::Error::raw(error.kind(), with_card(&problem, typed) + "\n"),
        None => without_environment(error),
    }
}

/// What is said of commands on a card, with the card that was typed.
pub(in crate::cli) fn with_card(said: &str, typed: &[OsString]) -> String {
    let mut words = typed.to_vec();
    let card = ["--on", "--gpu"]
        .iter()
        .find_map(|flag| removed(&mut words, flag));
    let Some(on) = card.and_then(|card| nicknames::parse(&card).ok()) else {
        return said.to_owned();
    };
    let (name, several) = (on.card.name, on.count.unwrap_or(8));
    let said = said.replace(", with your card,", "");
    let said = said.replace("--on 8xh100", &format!("--on {several}x{name}"));
    match on.count {
        None => said.replace("--on CARD", &format!("--on {name}")),
        Some(count) => (said
            .replace("CARD --gpus 8", "CARD")
            .replace("CARD --gpus N", "CARD"))
        .replace("--on CARD", &format!("--on {count}x{name}")),
    }
}

/// What to type instead about a batch that a flag of `fit` names: one's own words, but for those that nothing is known of.
pub(in crate::cli) fn one_batch(typed: &[OsString], flag: &str) -> String {
    if let Some(problem) = wrong_model(typed) {
        return format!("{ONE_BATCH}; {problem}");
    }
    let mut words = typed.to_vec();
    // The Python package adds both.
    removed(&mut words, "--document");
    words.retain(|it| it != "--");
    let of = |words: &mut Vec<OsString>, flag: &str| {
        let size = removed(words, flag).and_then(|it| count(&it));
        size.filter(|it| *it > 0)
    };
    let size = of(&mut words, flag).unwrap_or(64);
    while unknown_word(&mut words).is_some() {}
    let mut steps = words.clone();
    removed(&mut words, "--target");
    // The target decides how many micro-batches there are.
    let accumulated = of(&mut steps, "--accumulation").unwrap_or(1);
    let target = of(&mut steps, "--target").unwrap_or(size.saturating_mul(accumulated));
    let (size, target) = (size.to_string(), target.to_string());
    let asked = |words: &[OsString], command: &str, flag: &str, size: &str| {
        let mut words = words.to_vec();
        words.splice(..2, ["batchfit".into(), command.into()]);
        words.extend([flag, size].map(OsString::from));
        if !words.iter().any(names_card) {
            words.extend(["--on", "t4"].map(OsString::from));
        }
        while let Some(error) = problem(&mut words) {
            let count = words.len();
            if let Some(unknown) = error.get(ContextKind::InvalidArg) {
                removed(&mut words, &unknown.to_string());
            }
            if words.len() == count {
                return format!("batchfit {command} resnet18 --on t4 {flag} {size}");
            }
        }
        shell(&words)
    };
    format!(
        "{ONE_BATCH}: `{}` asks whether {size} fits, and `{}` plans steps of {target} samples",
        asked(&words, "probe", "--batch", &size),
        asked(&steps, "fit", "--target", &target),
    )
}

fn names_card(word: &OsString) -> bool {
    let name = word.to_str().and_then(|it| it.split('=').next());
    let is_it = |it| ["--on", "--device", "--gpu", "--again"].contains(&it);
    name.is_some_and(|it| is_it(it) || it.starts_with("--") && row(it, " = ") == Some("--on %"))
}

/// Whether a size of memory is of a card that is named, in these words or in a document.
fn is_partly(typed: &[OsString]) -> bool {
    typed.iter().any(names_card) || typed.get(2).is_some_and(|what| Path::new(what).is_file())
}

/// How the row of flags for one batch begins.
const ONE_BATCH: &str = "fit finds the batch";

/// Takes a flag out of what was typed, with its value.
fn removed(words: &mut Vec<OsString>, flag: &str) -> Option<String> {
    let name = flag.split('=').next();
    // Of `-bs` only `-b` is unknown.
    let is_short = flag.len() == 2 && !flag.starts_with("--");
    let is_it = |word: &OsString| {
        let word = word.to_str().and_then(|it| it.split('=').next());
        word == name || word.is_some_and(|it| is_short && it.starts_with(flag))
    };
    let at = words.iter().position(is_it)?;
    let word = words.remove(at).into_string().ok()?;
    if let Some((_, value)) = word.split_once('=') {
        return Some(value.to_owned());
    }
    let is_value = |it: &&str| !it.starts_with('-') && preset(it).is_none();
    let value = words.get(at)?.to_str().filter(is_value)?.to_owned();
    words.remove(at);
    Some(value)
}

/// Words as a shell takes them.
pub(in crate::cli) fn pasted(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:=,+-@".contains(c);
    let quoted = |word: &String| {
        if word.chars().all(is_plain) {
            word.clone()
        } else {
            format!("'{word}'")
        }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// clap counts what the environment sets among what the command needs.
fn without_environment(mut error: clap::Error) -> clap::Error {
    if let Some(usage) = error.get(ContextKind::Usage).map(ToString::to_string) {
        let usage = usage.replace(" --database <URL>", "");
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage.into()));
    }
    error
}

fn say(error: &clap::Error, typed: &[OsString]) -> Option<String> {
    let text = |at: usize| typed.get(at).and_then(|it| it.to_str());
    let command = text(1).unwrap_or_default();
    let lacks = |name: &str| match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.iter().any(|one| one.contains(name)),
        _ => false,
    };
    match error.kind() {
        ErrorKind::MissingRequiredArgument if command == "run" && lacks("--on") => {
            Some(format!("name the card: `batchfit run --on t4 {}`", shell(&typed[2..])))
        }
        ErrorKind::MissingRequiredArgument if ASKING.contains(&command) => {
            let batch = if command == "fit" { "" } else { " --batch 64" };
            if lacks("WHAT") {
                Some(format!("name a model: `batchfit {command} resnet18 --on t4{batch}`; `batchfit presets` lists those with a name"))
            } else if lacks("--batch") && !lacks("--loss") {
                let words = shell(&typed[2..]);
                Some(format!("name a batch: `batchfit {command} {words} --batch 64`; `batchfit fit {words}` finds the largest"))
            } else {
                lacks("--loss").then(|| {
                    "--module trains your module on this GPU, and needs --batch and --loss; `batchfit fit my.py:build`, whose function returns \
                     (model, batch, loss), needs neither of them, nor a GPU"
                        .to_owned()
                })
            }
        }
        ErrorKind::UnknownArgument => {
            let flag = error.get(ContextKind::InvalidArg)?.to_string();
            if command.starts_with('-') {
                return Some("a command comes first, as in `batchfit fit resnet50 --on t4`".to_owned());
            }
            let near = error.get(ContextKind::SuggestedArg).map(ToString::to_string);
            let is_near = near.is_some_and(|near| is_misspelt(&flag, &near));
            if command == "run" && !is_near && typed.iter().any(|it| it == "--") {
                let mut words = typed.to_vec();
                while let Some((own, _, value)) = unknown_word(&mut words) {
                    words.extend([own].into_iter().chain(value).map(OsString::from));
                }
                return Some(format!("run has no {flag}; your script's flags stand behind it: `batchfit {}`", shell(&words[1..])));
            }
            if ["run", "search"].contains(&command) && !flag.starts_with('-') {
                let mut words = typed.to_vec();
                let card = removed(&mut words, "--on").unwrap_or_else(|| "CARD".to_owned());
                let at = words.iter().position(|it| **it == *flag)?;
                let python = if is_python(&flag) { "python " } else { "" };
                let own = python.to_owned() + &shell(&words[at..]);
                return Some(if command == "run" {
                    format!("the command follows `--`: `batchfit run --on {} -- {own}`", pasted(&[card]))
                } else {
                    format!("the command follows `--`, with {{batch}} where it takes the batch: `batchfit search -- {own} --batch-size {{batch}}`")
                });
            }
            if command == "serve" && ["--port", "--host", "--bind", "--address", "-p"].contains(&&*flag) {
                return Some(format!("there is no {flag}; address and port are one flag: --listen 127.0.0.1:8080"));
            }
            if !ASKING.contains(&command) {
                let asked = question("fit", &typed[2..]);
                let asked = asked.map(|asked| format!("{command} takes no model; write `{asked}`"));
                let others = || format!("there is no {flag}; `batchfit {command} --help` says what there is");
                return asked.or_else(|| (!is_near).then(others));
            }
            unknown(command, typed)
        }
        ErrorKind::ArgumentConflict => {
            let flag = error.get(ContextKind::InvalidArg)?.to_string();
            let is_same = error.get(ContextKind::PriorArg)?.to_string() == flag;
            let name = flag.split(' ').next()?;
            let mut words = typed.to_vec();
            let values: Vec<_> = std::iter::from_fn(|| removed(&mut words, name)).collect();
            let list = format!("`{name} {}`", values.join(","));
            let is_list = flag.ends_with(",..>") || name == "--on";
            let instead = if is_list { format!("; {list} compares both") } else { String::new() };
            is_same.then(|| format!("{name} is given twice, as {}: leave one out{instead}", values.join(" and ")))
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
        ErrorKind::InvalidSubcommand if command == "tune" && typed.len() == 2 => Some(
            "tune is a function of the Python package, `batchfit.tune(step, batch=8, state=[model, optimizer])`, which finds the batch on \
             the GPU; without a GPU write `batchfit fit resnet50 --on rtx4090`"
                .to_owned(),
        ),
        ErrorKind::InvalidSubcommand => Some(no_command(command, typed)),
        _ => None,
    }
}
