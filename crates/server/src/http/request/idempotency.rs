//! The `Idempotency-Key` header: a name that a client gives to a request, so that it may send it again when it does not know
//! what became of it.

use axum::http::HeaderMap;

use crate::http::response::problem::{Code, Problem};
use crate::limits::shorten;

/// The header.
const NAME: &str = "idempotency-key";

/// Longest key, in characters. A UUID has 36.
const LONGEST: usize = 255;

/// The key, if there is one.
pub(in crate::http) fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut given = headers.get_all(NAME).iter();
    let Some(key) = given.next() else {
        return Ok(None);
    };
    if given.next().is_some() {
        return Err(wrong("is given twice"));
    }
    let text = key.to_str().ok();
    let text = text.filter(|text| !text.contains('\t'));
    match text.ok_or(()) {
        Ok(key) if (1..=LONGEST).contains(&key.len()) => Ok(Some(key.to_owned())),
        Ok("") => Err(wrong("is empty")),
        Ok(key) => Err(wrong(&format!("has {} characters", key.len()))),
        Err(()) => Err(wrong(&format!(
            "has other characters: {:?}",
            shorten(&String::from_utf8_lossy(key.as_bytes()))
        ))),
    }
}

fn wrong(problem: &str) -> Problem {
    Problem::new(
        Code::HeaderInvalid,
        format!(
            "`Idempotency-Key` is one text of 1 to {LONGEST} printable ASCII characters, such as a UUID; this {problem}"
        ),
    )
}
