//! Flags as members of a request. What is not understood stays text, and is refused where requests are read.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::files;
use crate::cli::arguments::{RequestFlags, SoakFlags};
use crate::cli::error::CliError;
use crate::cli::terminal::output;
use crate::device::sim::Card;
use crate::limits::clause;
use crate::model::members::{self, Flag, Member};
use crate::model::{nicknames as cards, parse_memory_limit, same_value};

/// A member of a request that a flag sets.
#[derive(Debug, Clone)]
pub(in crate::cli) struct FlagValue {
    /// The flag, as errors name it.
    pub(super) flag: String,
    /// Where in the request: the names of members, outermost first.
    pub(in crate::cli) place: Vec<String>,
    /// What is put there.
    pub(in crate::cli) value: Value,
    /// Whose flag it is, while the value is the text that was given.
    unread: Option<&'static Member>,
}

impl FlagValue {
    pub(super) fn new(flag: &str, place: &[&str], value: Value) -> FlagValue {
        FlagValue {
            flag: flag.to_owned(),
            place: place.iter().map(|name| (*name).to_owned()).collect(),
            value,
            unread: None,
        }
    }

    /// What the flag of a member was given. The one reader of requests says what is wrong with it.
    pub(in crate::cli) fn of_member(
        flag: &Flag,
        place: &[&str],
        member: &'static Member,
        text: String,
    ) -> FlagValue {
        FlagValue {
            unread: Some(member),
            ..FlagValue::new(&format!("--{}", flag.name), place, Value::from(text))
        }
    }

    /// Whether it is of the flag of this name.
    pub(in crate::cli) fn is_of(&self, name: &str) -> bool {
        self.flag.strip_prefix("--") == Some(name)
    }

    /// Makes a value of the text; nothing where the flag is as good as not given.
    fn read(mut self) -> Result<Option<FlagValue>, CliError> {
        let (Some(member), Value::String(text)) = (self.unread.take(), &self.value) else {
            return Ok(Some(self));
        };
        let knows_auto = match member.kind {
            members::Kind::Word(_, words) | members::Kind::Words(words) => {
                words().contains(&"auto")
            }
            _ => member.name == "device",
        };
        if text == "auto" && !knows_auto {
            let flag = &self.flag;
            output::note(&format!(
                "{flag} auto is left out: the answer is the same without it"
            ));
            return Ok(None);
        }
        let value = value(&self.flag, member, text, &mut self.place)?;
        Ok(value.map(|value| FlagValue { value, ..self }))
    }

    /// The place as a JSON pointer.
    pub(super) fn pointer(&self) -> String {
        let part = |name: &String| format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        self.place.iter().map(part).collect()
    }
}

/// Ways to describe a model, which WHAT does.
pub(super) const WAYS: [&str; 5] = ["preset", "layers", "exported", "hf", "recorded"];

/// Everything that flags set, but for what is `wrong`.
pub(super) fn flag_values(question: &RequestFlags, wrong: &mut Vec<CliError>) -> Vec<FlagValue> {
    let own = &question.own;
    let read = question.members.iter().cloned().map(FlagValue::read);
    let members = read.filter_map(Result::transpose);
    let with = own.with.iter().map(|member| {
        let (name, value) = named(member)?;
        let flag = format!("--with {name}");
        Ok(FlagValue::new(&flag, &["model", name], value))
    });
    let amp = choices("--amp", own.amp.as_deref(), |kind| {
        Value::from(format!("amp_{kind}"))
    });
    let amp = amp
        .transpose()
        .map(|amp| amp.map(|amp| FlagValue::new("--amp", &["training", "precision"], amp)));
    let all = members.chain(with).chain(amp);
    let mut given: Vec<_> = all
        .filter_map(|one| one.map_err(|problem| wrong.push(problem)).ok())
        .collect();
    adapter(&mut given);
    if let Err(problem) = card(own.on.as_deref(), &mut given) {
        wrong.push(problem);
    }
    given
}

/// What `--on` sets.
fn card(text: Option<&str>, given: &mut Vec<FlagValue>) -> Result<(), CliError> {
    let Some(text) = text else {
        return Ok(());
    };
    let (device, count) = on(text)?;
    given.push(FlagValue::new("--on", &["device"], device));
    if let Some(count) = count {
        let asked = given.iter().find(|one| one.place == ["world_size"]);
        if let Some(asked) = asked.filter(|asked| asked.value.as_u64() != Some(count)) {
            let asked = &asked.value;
            let problem = format!("{asked} is not the {count} of --on {text}; leave one out");
            return Err(CliError::flag("--world-size", problem));
        }
        given.push(FlagValue::new("--on", &["world_size"], count.into()));
    }
    Ok(())
}

/// Makes one adapter of all that flags say of it; a rank counts before the 16 that `--lora` alone is.
fn adapter(given: &mut Vec<FlagValue>) {
    let mut lora = Map::new();
    given.retain(|one| {
        match (&*one.place[one.place.len() - 1], &one.value) {
            ("compare", value) if whole_of(value).is_some() => {
                lora.insert("r".to_owned(), whole_of(value).into());
            }
            ("lora", Value::Object(parts)) => {
                let is_new = |name: &str, value: &Value| value != 16 || !lora.contains_key(name);
                let new: Map<_, _> = parts
                    .clone()
                    .into_iter()
                    .filter(|(name, value)| is_new(name, value))
                    .collect();
                lora.extend(new);
            }
            ("lora_dropout", value) => {
                lora.insert("lora_dropout".to_owned(), value.clone());
            }
            ("lora_target_modules", value) => {
                let name = "target_modules";
                let names = value.as_str().map(|text| match same_value(name, text) {
                    Some(word) => Value::from(word),
                    None => text.split(',').collect(),
                });
                lora.insert(name.to_owned(), names.unwrap_or_else(|| value.clone()));
            }
            _ => return true,
        }
        false
    });
    if !lora.is_empty() {
        lora.entry("r").or_insert(Value::from(16));
        given.push(FlagValue::new(
            "--with lora",
            &["model", "lora"],
            lora.into(),
        ));
    }
}

/// What a flag sets its member to; several lengths have another place.
fn value(
    flag: &str,
    member: &Member,
    text: &str,
    place: &mut [String],
) -> Result<Option<Value>, CliError> {
    use members::Kind;
    Ok(Some(match (member.name, member.kind) {
        (member @ ("seq_len" | "image_size"), _) => {
            let text = match member {
                "seq_len" => &thousands(text),
                _ => text,
            };
            let mut alike = text.split(',');
            let first = alike.next().unwrap_or(text);
            // `224,224` is a height and a width.
            let text = if alike.all(|other| other == first) {
                first
            } else {
                text
            };
            match several(flag, text)? {
                Some(lengths) => {
                    "lengths".clone_into(&mut place[0]);
                    lengths
                }
                None if member == "seq_len" => whole(text),
                None => sides(text),
            }
        }
        ("checkpointing", _) => return choices(flag, Some(text), checkpointing),
        ("suggest", _) if text == "true" => Value::Bool(true),
        ("suggest", _) | (_, Kind::Whole(..)) => whole(text),
        (_, Kind::Number(..) | Kind::Positive) => decimal(text),
        (_, Kind::Words(_)) => return choices(flag, Some(text), word),
        (_, Kind::Bools) => return choices(flag, Some(text), truth),
        (_, Kind::Bool) => truth(text),
        (_, Kind::Size) => Value::from(size(flag, text)),
        (_, Kind::Globs) => text.split('+').collect(),
        (_, Kind::Object(object)) => {
            let types = items(flag, Some(text))?;
            if types.len() > object.members.len() {
                let problem = format!(
                    "{} types are too many: parameters, reductions and results have one each, as in bf16,fp32",
                    types.len()
                );
                return Err(CliError::flag(flag, problem));
            }
            let types = types.into_iter().map(Value::from);
            object.names().map(str::to_owned).zip(types).collect()
        }
        (_, Kind::Text | Kind::Word(..) | Kind::Other) => Value::from(text),
    }))
}

/// The cards of `--on`, and how many there are of them.
fn on(text: &str) -> Result<(Value, Option<u64>), CliError> {
    let mut devices = Vec::new();
    let mut count: Option<u64> = None;
    let parts: Vec<&str> = text.split('+').collect();
    for part in &parts {
        let on = match Card::find(part) {
            Some(card) => cards::On {
                card,
                count: None,
                note: None,
            },
            None => cards::parse(part).map_err(|invalid| CliError::named(&"--on", invalid))?,
        };
        if let Some(note) = &on.note {
            output::note(note);
        }
        devices.push(Value::from(format!("sim:{}", on.card.name)));
        // One of each, where it does not say how many.
        let of_this = on.count.or((parts.len() > 1).then_some(1));
        count = match (count, of_this) {
            (None, count) | (count, None) => count,
            (Some(before), Some(more)) => Some(before.saturating_add(more)),
        };
    }
    let device = match devices.len() {
        1 => devices.swap_remove(0),
        _ => Value::Array(devices),
    };
    Ok((device, count))
}

/// The members of a flag such as `--soak=NAME=N,..`; nothing where it is not given.
pub(in crate::cli) fn members(
    (flag, part): (&'static str, &'static str),
    text: Option<&str>,
) -> Result<Vec<FlagValue>, CliError> {
    let Some(text) = text else {
        return Ok(Vec::new());
    };
    if text.is_empty() {
        // The rest has its default.
        let usual = Value::Object(Map::new());
        return Ok(vec![FlagValue::new(flag, &[part], usual)]);
    }
    let mut given = Vec::new();
    let mut names = BTreeSet::new();
    for item in items(flag, Some(text))? {
        let Some((name, value)) = item.split_once('=') else {
            let problem = format!("{item:?} is not of the form NAME=N, such as epoch=250");
            return Err(CliError::flag(flag, problem));
        };
        let member = name.trim().replace('-', "_");
        if !names.insert(member.clone()) {
            return Err(CliError::flag(
                flag,
                format!("{member} is given twice; give it once"),
            ));
        }
        given.push(FlagValue::new(flag, &[part, &member], plain(value)));
    }
    Ok(given)
}

/// What a training over hours is given.
pub(in crate::cli) fn course(course: &SoakFlags) -> Result<Vec<FlagValue>, CliError> {
    let read = course.0.iter().cloned().map(FlagValue::read);
    read.filter_map(Result::transpose).collect()
}

/// A member of the model, by name.
fn named(member: &str) -> Result<(&str, Value), CliError> {
    let refuse = |problem: String| Err(CliError::flag("--with", problem));
    let Some((name, value)) = member.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        return refuse(format!(
            "{member:?} is not of the form NAME=VALUE, such as num_classes=10"
        ));
    };
    if WAYS.contains(&name) {
        return refuse(format!("{name} is the model itself, which WHAT names"));
    }
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    // `lora=16` is a rank.
    let is_rank = name == "lora" && value.is_u64();
    Ok((
        name,
        if is_rank {
            serde_json::json!({ "r": value })
        } else {
            value
        },
    ))
}

/// The lengths that a flag names, where it may name several: as text, or as the contents of a JSON file.
fn several(flag: &str, text: &str) -> Result<Option<Value>, CliError> {
    if Path::new(text)
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
    {
        let bytes = files::read_bytes(Path::new(text))?;
        let lengths = serde_json::from_slice(&bytes);
        return lengths.map(Some).map_err(|error| {
            let problem = format!("{text} is not JSON: {}", clause(&error));
            CliError::flag(flag, problem)
        });
    }
    // A sign in front is one of a number, which is then refused for what it is.
    let is_list = items(flag, Some(text))?.len() > 1;
    let is_several = is_list
        || text.contains(':')
        || text.contains("..")
        || text.trim_start_matches('-').contains('-');
    Ok(is_several.then(|| Value::from(text)))
}

/// The parts of a list by commas.
fn items<'t>(flag: &str, list: Option<&'t str>) -> Result<Vec<&'t str>, CliError> {
    let Some(list) = list else {
        return Ok(Vec::new());
    };
    let items: Vec<&str> = list.split(',').map(str::trim).collect();
    match items.as_slice() {
        [""] => Err(CliError::flag(flag, "a value is missing")),
        several if several.contains(&"") => {
            let problem = format!(
                "the list {list:?} has an empty place; write it without spaces and without a comma at its ends"
            );
            Err(CliError::flag(flag, problem))
        }
        _ => Ok(items),
    }
}

/// One value, or a list of them.
fn choices(
    flag: &str,
    list: Option<&str>,
    read: impl Fn(&str) -> Value,
) -> Result<Option<Value>, CliError> {
    let mut values: Vec<Value> = items(flag, list)?.into_iter().map(read).collect();
    Ok(match values.len() {
        0 => None,
        1 => values.pop(),
        _ => Some(Value::Array(values)),
    })
}

fn word(text: &str) -> Value {
    Value::from(text)
}

/// `none`, `per_block`, or the globs of `modules:`.
fn checkpointing(text: &str) -> Value {
    match text.strip_prefix("modules:") {
        None => Value::from(text),
        Some(globs) => serde_json::json!({ "modules": globs.split('+').collect::<Vec<_>>() }),
    }
}

/// A whole number that stayed text.
fn whole_of(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}

/// With `8k` written out, which is 8,192, of tokens or samples.
fn thousands(text: &str) -> String {
    // No length begins with a nought.
    if let (true, Some(one)) = (text.contains(",0"), count(text)) {
        return one.to_string();
    }
    let separators = |of: char| ",-: ".contains(of);
    let written_out = |part: &str| {
        let number = part.trim_end_matches(separators);
        Some(format!("{}{}", count(number)?, &part[number.len()..]))
    };
    text.split_inclusive(separators)
        .map(|part| written_out(part).unwrap_or_else(|| part.to_owned()))
        .collect()
}

/// A whole number as people write it: `1024`, `1_024`, `1,024`, `1k` or `1e3`.
pub(in crate::cli) fn count(text: &str) -> Option<u64> {
    let is_grouped = text.split(',').skip(1).all(|group| group.len() == 3);
    let separators: &[char] = if is_grouped { &['_', ','] } else { &['_'] };
    let text = text.trim().replace(separators, "").to_lowercase();
    let (number, times) = match (text.strip_suffix('k'), text.split_once('e')) {
        (Some(number), _) => (number, 1024),
        (_, Some((number, zeros))) => (number, 10u64.checked_pow(zeros.parse().ok()?)?),
        _ => (&*text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(times)
}

/// A whole number; what is none stays text, and is refused where requests are read.
fn whole(text: &str) -> Value {
    count(text).map_or_else(|| Value::from(text), Value::from)
}

/// A number or a truth value; what is none stays text.
fn plain(text: &str) -> Value {
    match (whole(text), decimal(text)) {
        (Value::String(_), Value::String(_)) => truth(text.trim()),
        (Value::String(_), number) | (number, _) => number,
    }
}

/// A number, or a percentage as one.
fn decimal(text: &str) -> Value {
    let text = text.trim();
    let (number, of) = match text.strip_suffix('%') {
        Some(percent) => (percent, 100.0),
        None => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() => Value::from(number / of),
        // JSON has no such number: it stays the text that it is refused for.
        Ok(_) | Err(_) => Value::from(text),
    }
}

/// An amount of memory. A plain number below 1,024 is one of GiB, and `8G` 8 GiB: a note says so.
pub(in crate::cli) fn size(flag: &str, text: &str) -> String {
    let text = text.trim();
    if text.ends_with('%') {
        return decimal(text).to_string();
    }
    let read = parse_memory_limit(&Value::from(text), "");
    let meant = read.err().and_then(|refused| refused.nearest);
    let is_meant = |meant: &String| meant.ends_with("GiB") || text.ends_with(char::is_alphabetic);
    match meant.filter(is_meant) {
        Some(meant) => {
            output::note(&format!("{flag} {text} is taken to be {meant}"));
            meant
        }
        None => text.to_owned(),
    }
}

/// One number for both sides, or height and width, with the usual three channels before or behind them.
fn sides(text: &str) -> Value {
    let parts: Vec<&str> = text.split(['x', 'X', '×']).collect();
    match *parts {
        [height, width] | ["3", height, width] | [height, width, "3"] => {
            Value::Array(vec![whole(height), whole(width)])
        }
        _ => whole(text),
    }
}

/// Whether a word switches something on: a truth value as people write it.
pub(in crate::cli) fn is_on(text: &str) -> Option<bool> {
    match &*text.to_lowercase() {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" | "none" => Some(false),
        _ => None,
    }
}

/// A truth value; what is none stays text, and is refused where requests are read.
fn truth(text: &str) -> Value {
    is_on(text).map_or_else(|| Value::from(text), Value::Bool)
}
