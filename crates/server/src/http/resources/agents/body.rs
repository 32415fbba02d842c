//! What agents send.

use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use crate::http::App;
use crate::http::response::problem::{Code, Problem};
use crate::jobs::{Claim, JobNews, JobOutcome, Registration};
use crate::limits::clause;

use crate::http::resources::agents::AgentChange;

/// Longest of what agents send but for answers: a registration has a few hundred bytes for each card.
const LONGEST: usize = 256 << 10;

/// Longest answer: one of sixty variants has about a MiB. What it takes in memory is at most some eight times that.
const LONGEST_ANSWER: usize = 8 << 20;

/// What is sent as JSON, of any content type.
pub(in crate::http) struct JsonBody<T>(pub(in crate::http) T);

/// Something that is sent.
pub(in crate::http) trait Sent: DeserializeOwned + Send + 'static {
    /// How long it may be, in bytes.
    const LONGEST: usize = LONGEST;
}

impl Sent for Registration {}
impl Sent for AgentChange {}
impl Sent for Claim {}
impl Sent for JobNews {}
impl Sent for JobOutcome {
    const LONGEST: usize = LONGEST_ANSWER;
}

impl<T: Sent> FromRequest<App> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<JsonBody<T>, Problem> {
        let received = app.uploads.arrive(request).await?;
        let held = app.uploads.read(received, |body| read(&body)).await?;
        Ok(JsonBody(held.read))
    }
}

fn read<T: Sent>(body: &[u8]) -> Result<T, Problem> {
    if body.len() > T::LONGEST {
        let detail = format!("the body is larger than {} KiB", T::LONGEST >> 10);
        return Err(Problem::new(Code::BodyTooLarge, detail));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut json);
    let read = read.map_err(|error| {
        let pointer = pointer(error.path());
        let error = error.into_inner();
        let (line, column, clause) = (error.line(), error.column(), clause(&error));
        match error.classify() {
            serde_json::error::Category::Data => Problem {
                pointer: Some(pointer),
                ..Problem::new(Code::RequestInvalid, clause.clone())
            },
            _malformed => malformed(&format!("line {line}, column {column}: {clause}")),
        }
    })?;
    json.end().map_err(|error| {
        malformed(&format!(
            "line {}, column {}: {}",
            error.line(),
            error.column(),
            clause(&error)
        ))
    })?;
    Ok(read)
}

fn malformed(what: &str) -> Problem {
    Problem::of_body(
        Code::BodyMalformed,
        format!("the body is not valid JSON at {what}"),
    )
}

/// A path as a JSON pointer.
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let segments = path.iter().map(|segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => {
            let key = crate::limits::shorten(key);
            format!("/{}", key.replace('~', "~0").replace('/', "~1"))
        }
        Segment::Enum { .. } | Segment::Unknown => String::new(),
    });
    segments.collect()
}

#[cfg(test)]
mod tests {
    use crate::http::resources::agents::body::*;

    #[test]
    fn what_is_wrong_is_said_where_it_is() {
        let refused = |text: &str| match read::<Claim>(text.as_bytes()) {
            Ok(_) => panic!("{text}"),
            Err(problem) => (problem.status, problem.pointer.unwrap_or_default()),
        };

        assert_eq!(refused(r#"{"free": ["#), (400, String::new()));
        assert_eq!(refused(r#"{"free": [1]}"#), (422, "/free/0".to_owned()));
        assert_eq!(refused("{}"), (422, String::new()));
        assert_eq!(refused(r#"{"free": []} x"#), (400, String::new()));
        let deep = "[".repeat(100_000);
        assert_eq!(refused(&deep).0, 422);
        let long = format!(r#"{{"free": ["{}"]}}"#, "a".repeat(LONGEST));
        assert_eq!(refused(&long).0, 413);
    }
}
