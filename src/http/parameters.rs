//! Query parameters, strictly: an unknown name is an error, because a misspelt filter that filters
//! nothing answers another question than the one asked.

use axum::extract::Query;
use axum::http::Uri;
use serde_json::Value;

use super::problem::{Code, Problem};

/// How many items a list gives when nobody says.
const DEFAULT_LIMIT: i64 = 50;

/// How many items a list gives at most.
const MAX_LIMIT: i64 = 500;

/// The parameters of one request, checked against the names that its path knows.
#[derive(Debug)]
pub(super) struct Parameters {
    given: Vec<(String, String)>,
}

impl Parameters {
    /// Reads the query of `uri`, in which each of `known` may appear once.
    pub(super) fn read(uri: &Uri, known: &[&str]) -> Result<Parameters, Problem> {
        let Query(given) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| Problem::new(Code::QueryInvalid, error.to_string()))?;
        for (index, (name, value)) in given.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let detail = format!("unknown parameter `{name}`; known are {}", known.join(", "));
                return Err(invalid(name, value, detail, nearest(name, known)));
            }
            if given[..index].iter().any(|(earlier, _)| earlier == name) {
                let detail = format!("`{name}` is given twice");
                return Err(invalid(name, value, detail, None));
            }
        }
        Ok(Parameters { given })
    }

    /// The text of a parameter.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let found = self.given.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.clone())
    }

    /// The text of a parameter that has a fixed set of values.
    pub(super) fn one_of(&self, name: &str, valid: &[&str]) -> Result<Option<String>, Problem> {
        match self.text(name) {
            Some(value) if !valid.contains(&value.as_str()) => {
                let detail = format!("`{name}` is one of {}, not {value:?}", valid.join(", "));
                Err(invalid(name, &value, detail, nearest(&value, valid)))
            }
            other => Ok(other),
        }
    }

    /// How many items to give.
    pub(super) fn limit(&self) -> Result<i64, Problem> {
        let Some(text) = self.text("limit") else {
            return Ok(DEFAULT_LIMIT);
        };
        match text.parse() {
            Ok(limit) if (1..=MAX_LIMIT).contains(&limit) => Ok(limit),
            other => {
                let close = if other.is_ok_and(|limit: i64| limit > MAX_LIMIT) {
                    MAX_LIMIT
                } else {
                    1
                };
                let detail = format!("`limit` is a whole number from 1 to {MAX_LIMIT}");
                Err(invalid("limit", &text, detail, Some(close.to_string())))
            }
        }
    }
}

fn invalid(name: &str, value: &str, detail: String, nearest: Option<String>) -> Problem {
    Problem {
        parameter: Some(name.to_owned()),
        value: Some(Value::String(value.to_owned())),
        nearest,
        ..Problem::new(Code::QueryInvalid, detail)
    }
}

fn nearest(written: &str, valid: &[&str]) -> Option<String> {
    valid
        .iter()
        .max_by(|a, b| {
            let [a, b] = [a, b].map(|name| strsim::jaro_winkler(written, name));
            a.total_cmp(&b)
        })
        .map(|name| (*name).to_owned())
}

/// A page of a list: as many items as asked for, and where the next page begins.
///
/// Ask the store for one more than `limit`, so that the end is known without another question.
pub(super) fn page<T>(
    mut items: Vec<T>,
    limit: i64,
    id: impl Fn(&T) -> &str,
) -> (Vec<T>, Option<String>) {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if items.len() <= limit {
        return (items, None);
    }
    items.truncate(limit);
    let next = items.last().map(|last| id(last).to_owned());
    (items, next)
}
