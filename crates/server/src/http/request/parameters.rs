//! Query parameters, strictly: an unknown name is an error, because a misspelt filter that filters
//! nothing answers another question than the one asked. Which names a path knows is what its description says.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use crate::alloc::MemoryLimit;
use crate::http::response::problem::{Code, Problem, no_such_method, no_such_route};
use crate::limits::shorten;

/// The largest whole number of the API's description: `int64`, as most languages have it.
pub(in crate::http) const MOST_WHOLE: u64 = i64::MAX.cast_unsigned();

/// A NUL in a path.
const NUL: &str = "%00";

/// Default number of items of a list.
const DEFAULT_LIMIT: i64 = 50;

/// How many items a list gives at most.
const MAX_LIMIT: i64 = 500;

/// The methods that a path answers, and the names of their query parameters.
type Methods = Vec<(Method, Vec<String>)>;

/// What each path answers.
#[derive(Debug, Clone, Default)]
pub(in crate::http) struct Known(Arc<HashMap<String, Methods>>);

impl Known {
    /// Those that the description of the API has.
    pub(in crate::http) fn of(api: &OpenApi) -> Known {
        let paths = api.paths.paths.iter().map(|(path, item)| {
            let operations = [
                (Method::GET, &item.get),
                (Method::POST, &item.post),
                (Method::PUT, &item.put),
                (Method::PATCH, &item.patch),
                (Method::DELETE, &item.delete),
            ];
            let known = operations
                .into_iter()
                .filter_map(|(method, operation)| Some((method, names(operation.as_ref()?))));
            (path.clone(), known.collect())
        });
        Known(Arc::new(paths.collect()))
    }
}

fn names(operation: &Operation) -> Vec<String> {
    let parameters = operation.parameters.iter().flatten();
    parameters
        .filter_map(|parameter| match parameter {
            RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query => {
                Some(parameter.name.clone())
            }
            RefOr::T(_) | RefOr::Ref(_) => None,
        })
        .collect()
}

/// Reads the query of every request, before its handler.
///
/// What has a NUL in its path is not there: no id has one, and no database takes it in a text.
pub(in crate::http) async fn read(
    State(known): State<Known>,
    mut request: Request,
    next: Next,
) -> Response {
    if request.uri().path().contains(NUL) {
        return no_such_route(request.uri().clone()).await.into_response();
    }
    let path = request.extensions().get::<MatchedPath>();
    if let Some(methods) = path.and_then(|path| known.0.get(path.as_str())) {
        match Parameters::of_one(methods, &request) {
            Ok(parameters) => drop(request.extensions_mut().insert(parameters)),
            Err(problem) => return problem.into_response(),
        }
    }
    next.run(request).await
}

/// The parameters of one request, checked against the names that its path knows.
#[derive(Debug, Clone, Default)]
pub(in crate::http) struct Parameters {
    given: Vec<(String, String)>,
}

impl<S: Sync> FromRequestParts<S> for Parameters {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Parameters, Infallible> {
        Ok(Parameters::of(parts))
    }
}

impl Parameters {
    /// Those that were read before the handler.
    pub(in crate::http) fn of(parts: &Parts) -> Parameters {
        parts.extensions.get().cloned().unwrap_or_default()
    }

    /// Reads those of a request for a path that answers these methods.
    fn of_one(methods: &[(Method, Vec<String>)], request: &Request) -> Result<Parameters, Problem> {
        let asked = match request.method() {
            &Method::HEAD => &Method::GET,
            other => other,
        };
        let Some((_, names)) = methods.iter().find(|(method, _)| method == asked) else {
            let known: Vec<&Method> = methods.iter().map(|(method, _)| method).collect();
            return Err(no_such_method(request.uri(), request.method(), &known));
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Parameters::read(request.uri(), &names)
    }

    /// Reads the query of `uri`, in which each of `known` may appear once.
    fn read(uri: &Uri, known: &[&str]) -> Result<Parameters, Problem> {
        let Query(given) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| Problem::new(Code::QueryInvalid, error.to_string()))?;
        for (index, (name, value)) in given.iter().enumerate() {
            if value.contains('\0') && name == "cursor" {
                return Err(no_cursor(value));
            }
            if value.contains('\0') {
                let detail = format!("`{}` has a NUL in it, which no text has", shorten(name));
                return Err(invalid(name, "", detail, None));
            }
            if !known.contains(&name.as_str()) {
                let known_are = match known {
                    _ if name == "wait" => "a header asks to wait, `Prefer: wait=60`".to_owned(),
                    [] => "this path takes none".to_owned(),
                    some => format!("known are {}", some.join(", ")),
                };
                let detail = format!("unknown parameter `{}`; {known_are}", shorten(name));
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
    pub(in crate::http) fn text(&self, name: &str) -> Option<String> {
        let found = self.given.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.clone())
    }

    /// The text of a parameter that has a fixed set of values.
    pub(in crate::http) fn one_of(
        &self,
        name: &str,
        valid: &[&str],
    ) -> Result<Option<String>, Problem> {
        match self.text(name) {
            Some(value) if !valid.contains(&value.as_str()) => {
                let (valid_are, given) = (valid.join(", "), shorten(&value));
                let detail = format!("`{name}` is one of {valid_are}, not {given:?}");
                Err(invalid(name, &value, detail, nearest(&value, valid)))
            }
            other => Ok(other),
        }
    }

    /// A whole number of at least 1, as the store writes it.
    pub(in crate::http) fn whole(&self, name: &str) -> Result<Option<String>, Problem> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.parse::<u64>() {
            Ok(number) if (1..=MOST_WHOLE).contains(&number) => Ok(Some(number.to_string())),
            Ok(_) | Err(_) => {
                let detail = format!("`{name}` is a whole number of at least 1");
                Err(invalid(name, &text, detail, Some("1".to_owned())))
            }
        }
    }

    /// A size in bytes, as the store writes it.
    pub(in crate::http) fn bytes(&self, name: &str) -> Result<Option<String>, Problem> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match crate::model::parse_size(&Value::from(text.as_str()), "") {
            Ok(MemoryLimit::Bytes(bytes)) => Ok(Some(bytes.0.to_string())),
            Ok(MemoryLimit::Fraction(_)) | Err(_) => {
                let detail = format!("`{name}` is a number of bytes, or a size such as 12GiB");
                Err(invalid(name, &text, detail, Some("12GiB".to_owned())))
            }
        }
    }

    /// How many items to give.
    pub(in crate::http) fn limit(&self) -> Result<i64, Problem> {
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

/// A problem with a `cursor` that no page of this list has given.
pub(in crate::http) fn no_cursor(cursor: &str) -> Problem {
    let detail = format!(
        "{:?} is no cursor of this list; `cursor` is the `next` of the page before, and the first page has none",
        shorten(cursor)
    );
    Problem {
        parameter: Some("cursor".to_owned()),
        value: Some(Value::String(shorten(cursor))),
        ..Problem::new(Code::CursorInvalid, detail)
    }
}

/// A problem with the value of a parameter.
pub(in crate::http) fn invalid(
    name: &str,
    value: &str,
    detail: String,
    nearest: Option<String>,
) -> Problem {
    Problem {
        parameter: Some(shorten(name)),
        value: Some(Value::String(shorten(value))),
        nearest,
        ..Problem::new(Code::QueryInvalid, detail)
    }
}

fn nearest(written: &str, valid: &[&str]) -> Option<String> {
    let written = &shorten(written);
    valid
        .iter()
        .max_by(|a, b| {
            let [a, b] = [a, b].map(|name| strsim::jaro_winkler(written, name));
            a.total_cmp(&b)
        })
        .map(|name| (*name).to_owned())
}

/// A list, or a page of it: how many items were asked for, and where the next page begins. `openapi/lists.json` describes each.
#[derive(Debug, Serialize)]
pub(in crate::http) struct Page<T> {
    items: Vec<T>,
    next: Option<String>,
}

impl<T> Page<T> {
    /// All there is.
    pub(in crate::http) fn whole(items: Vec<T>) -> Page<T> {
        Page { items, next: None }
    }

    /// Ask the store for one more than `limit`, so that the end is known without another question.
    pub(in crate::http) fn of<I: ToString>(
        mut items: Vec<T>,
        limit: i64,
        id: impl Fn(&T) -> I,
    ) -> Page<T> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        if items.len() <= limit {
            return Page::whole(items);
        }
        items.truncate(limit);
        let next = items.last().map(|last| id(last).to_string());
        Page { items, next }
    }
}
