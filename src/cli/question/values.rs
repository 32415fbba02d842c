//! The words of a flag as JSON values: what is not understood stays text, and is refused where requests are read.

use std::path::Path;

use serde_json::Value;

use super::files;
use crate::cli::error::CliError;
use crate::cli::terminal::output;
use crate::limits::clause;

/// The lengths that a flag names, where it may name several: as text, or as the contents of a JSON file.
pub(super) fn several(flag: &str, text: &str) -> Result<Option<Value>, CliError> {
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
    let is_several = is_list || text.contains(':') || text.trim_start_matches('-').contains('-');
    Ok(is_several.then(|| Value::from(text)))
}

/// The parts of a list by commas.
pub(super) fn items<'t>(flag: &str, list: Option<&'t str>) -> Result<Vec<&'t str>, CliError> {
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
pub(super) fn choices(
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

pub(super) fn word(text: &str) -> Value {
    Value::from(text)
}

/// `none`, `per_block`, or the globs of `modules:`.
pub(super) fn checkpointing(text: &str) -> Value {
    match text.strip_prefix("modules:") {
        None => Value::from(text),
        Some(globs) => serde_json::json!({ "modules": globs.split('+').collect::<Vec<_>>() }),
    }
}

/// With `8k` written out, which is 8,192 tokens.
pub(super) fn thousands(text: &str) -> String {
    let separators = |of: char| ",-: ".contains(of);
    let written_out = |part: &str| {
        let number = part.trim_end_matches(separators);
        let thousands: u64 = number.strip_suffix(['k', 'K'])?.parse().ok()?;
        let tokens = thousands.checked_mul(1024)?;
        Some(format!("{tokens}{}", &part[number.len()..]))
    };
    text.split_inclusive(separators)
        .map(|part| written_out(part).unwrap_or_else(|| part.to_owned()))
        .collect()
}

/// A whole number; what is none stays text, and is refused where requests are read.
pub(super) fn whole(text: &str) -> Value {
    match text.trim().parse::<u64>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from(text),
    }
}

/// A number or a truth value; what is none stays text.
pub(super) fn plain(text: &str) -> Value {
    match (whole(text), decimal(text)) {
        (Value::String(_), Value::String(_)) => truth(text.trim()),
        (Value::String(_), number) | (number, _) => number,
    }
}

pub(super) fn decimal(text: &str) -> Value {
    match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() => Value::from(number),
        // JSON has no such number: it stays the text that it is refused for.
        Ok(_) | Err(_) => Value::from(text),
    }
}

/// An amount of memory. A plain number below 1,024 is one of GiB, and a note says so.
pub(in crate::cli) fn size(flag: &str, text: &str) -> String {
    let number: Result<f64, _> = text.trim().parse();
    let is_fraction = |number: f64| number <= 1.0 && text.contains('.');
    match number {
        Ok(number) if (1.0..1024.0).contains(&number) && !is_fraction(number) => {
            let gib = format!("{number}GiB");
            output::note(&format!("{flag} {} is taken to be {gib}", text.trim()));
            gib
        }
        Ok(_) | Err(_) => text.to_owned(),
    }
}

/// One number for both sides, or height and width.
pub(super) fn sides(text: &str) -> Value {
    match text.split_once(['x', 'X', '×']) {
        None => whole(text),
        Some((height, width)) => Value::Array(vec![whole(height), whole(width)]),
    }
}

/// A truth value; what is none stays text, and is refused where requests are read.
pub(super) fn truth(text: &str) -> Value {
    text.parse().map_or_else(|_| Value::from(text), Value::Bool)
}
