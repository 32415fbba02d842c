//! Words of others for what a request calls differently, and members that are in the wrong place.
//!
//! People come from Hugging Face, Lightning and PyTorch itself. Other spellings of a value are taken ([`same`]). For all else
//! they are told the word and the place that they want, and never guessed for.

mod names;
mod values;

use serde_json::Value;

use super::request_error::{MOST_LISTED, RequestError, nearest};
use crate::limits::shorten;
pub use names::NAMES;
use names::{RequestObject, Synonym, names};
pub(super) use values::{ValueSynonym, implied};

/// Longest value, in characters of JSON, that is repeated in an example.
const LONGEST_VALUE: usize = 40;
/// Words this much alike are taken for one another across objects; in one object less is needed.
const ALIKE: f64 = 0.8;

/// One spelling of a word: small letters, with underscores between its parts.
fn normal(word: &str) -> String {
    let mut out = String::new();
    let mut before_is_small = false;
    for c in shorten(word).trim().chars() {
        if c.is_uppercase() && before_is_small {
            out.push('_');
        }
        before_is_small = c.is_lowercase() || c.is_ascii_digit();
        match c {
            '-' | ' ' | '.' => out.push('_'),
            c => out.extend(c.to_lowercase()),
        }
    }
    out
}

/// What is wrong with the field `key` of the object at `pointer`, which `what` names: it has only the `known` ones.
pub(super) fn unknown_field(
    pointer: &str,
    at: &str,
    (key, value): (&str, Option<&Value>),
    what: &str,
    known: &[&str],
) -> RequestError {
    let shown = shorten(key);
    let normal = normal(key);
    let said = |rest: String| RequestError {
        value: Some(format!("{shown:?}")),
        ..RequestError::at(at, format!("{what} has no field {shown:?}{rest}"))
    };
    let did_you_mean = |word: &str| RequestError {
        nearest: Some(word.to_owned()),
        ..said(String::new())
    };
    let here = RequestObject::at(pointer);
    let is_known = |word: &str| known.contains(&word);
    if is_known(&normal) {
        return did_you_mean(&normal);
    }
    let belongs = |place: RequestObject, example: String| {
        if Some(place) == here {
            said(format!("; write {example}"))
        } else {
            said(format!("; {}", place.wrapping(&example)))
        }
    };
    let meaning = names().find(|(words, _)| words.split(' ').any(|word| word == normal));
    if let Some((_, Synonym::Advice(advice))) = meaning {
        return said(format!("; {advice}"));
    }
    if here.is_some() {
        if let Some((place, field)) = RequestObject::of_synonym(&normal)
            && (Some(place) != here || is_known(field))
        {
            if Some(place) == here && values::meant(field, value) == value.cloned() {
                return did_you_mean(field);
            }
            return belongs(place, example(field, value));
        }
        if let Some((_, Synonym::Switch(on, off))) = meaning {
            let is_off = matches!(value, Some(Value::Bool(false) | Value::Null));
            let says_bf16 = value
                .and_then(Value::as_str)
                .is_some_and(|word| word.contains("bf"));
            let said = if is_off { off } else { on };
            let said = if says_bf16 {
                said.replace("amp_fp16", "amp_bf16")
            } else {
                said.to_owned()
            };
            return belongs(RequestObject::Training, said);
        }
        let elsewhere = RequestObject::ALL
            .into_iter()
            .filter(|place| Some(*place) != here);
        for place in elsewhere.clone() {
            if let Some(field) = place.names().find(|field| *field == normal) {
                return belongs(place, example(field, value));
            }
        }
        if let Some(near) = nearest(&normal, known.iter().copied()) {
            return did_you_mean(near);
        }
        let alike =
            |field: &&'static str| strsim::normalized_damerau_levenshtein(&normal, field) >= ALIKE;
        for place in elsewhere {
            if let Some(field) = place.names().find(alike) {
                return belongs(place, example(field, value));
            }
        }
    }
    match nearest(key, known.iter().copied()) {
        Some(near) => did_you_mean(near),
        None if known.len() <= MOST_LISTED => said(format!("; known are {}", known.join(", "))),
        None => said(String::new()),
    }
}

/// A field as it would be written, with the value in the words of a request.
fn example(field: &str, value: Option<&Value>) -> String {
    let value = values::meant(field, value).unwrap_or(Value::Null);
    let json = match &value {
        Value::Null => "...".to_owned(),
        other => other.to_string(),
    };
    if json.chars().count() > LONGEST_VALUE {
        return format!("\"{field}\": ...");
    }
    format!("\"{field}\": {json}")
}

/// The word of a request for another library's, where a `what`, such as "precision", is asked for.
pub(super) fn word(what: &str, word: &str) -> Option<ValueSynonym> {
    values::of(what, &normal(word)).map(|(word, _)| word)
}

/// The word of a request for a spelling that means exactly the same, such as `bfloat16` and `AdamW`.
pub fn same(what: &str, word: &str) -> Option<&'static str> {
    match values::of(what, &normal(word))? {
        (ValueSynonym::Is(word), true) => Some(word),
        _ => None,
    }
}

/// Several problems of one object, in one sentence.
pub(super) fn together(
    pointer: &str,
    what: &str,
    problems: &[RequestError],
    others: usize,
) -> RequestError {
    let mut clauses: Vec<String> = Vec::new();
    for problem in problems {
        let without_place = RequestError {
            pointer: String::new(),
            ..problem.clone()
        };
        clauses.push(without_place.to_string());
    }
    if others > 0 {
        clauses.push(format!("and {others} more"));
    }
    let count = problems.len() + others;
    RequestError::at(
        pointer,
        format!("{count} fields of {what} are wrong: {}", clauses.join("; ")),
    )
}

#[cfg(test)]
mod tests;
