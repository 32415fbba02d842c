//! Headers that several resources read: `Idempotency-Key` and `Prefer`.

use std::time::Duration;

use axum::http::HeaderMap;

use crate::http::response::problem::{Code, Problem};
use crate::limits::shorten;

/// A name that a client gives to a request, so that it may send it again when it does not know what became of it.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Longest key, in characters. A UUID has 36.
const LONGEST_KEY: usize = 255;

/// The `Idempotency-Key`, if there is one.
pub(in crate::http) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = given.next() else {
        return Ok(None);
    };
    if given.next().is_some() {
        return Err(wrong("is given twice"));
    }
    let text = key.to_str().ok();
    let text = text.filter(|text| !text.contains('\t'));
    match text.ok_or(()) {
        Ok(key) if (1..=LONGEST_KEY).contains(&key.len()) => Ok(Some(key.to_owned())),
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
            "`Idempotency-Key` is one text of 1 to {LONGEST_KEY} printable ASCII characters, such as a UUID; this {problem}"
        ),
    )
}

/// The longest wait. Most proxies give up on a response earlier.
const LONGEST_S: u64 = 600;

/// How long the client is willing to wait, when it says so: `wait` of `Prefer` (RFC 7240). Other preferences are ignored, as the RFC
/// demands.
pub(in crate::http) fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    headers
        .get_all("prefer")
        .iter()
        .filter_map(|header| header.to_str().ok())
        .flat_map(|header| header.split(','))
        .find_map(|preference| {
            let (name, value) = preference.split(';').next()?.split_once('=')?;
            let seconds: u64 = value.trim().trim_matches('"').parse().ok()?;
            name.trim()
                .eq_ignore_ascii_case("wait")
                .then(|| Duration::from_secs(seconds.min(LONGEST_S)))
        })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn waits(header: &'static str) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert("prefer", HeaderValue::from_static(header));
        preferred_wait(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn wait_is_found_among_other_preferences() {
        assert_eq!(waits("wait=10"), Some(10));
        assert_eq!(waits("respond-async, Wait = \"7\"; foo=1"), Some(7));
        assert_eq!(waits("wait=100000"), Some(600));
    }

    #[test]
    fn what_is_not_understood_is_ignored() {
        assert_eq!(waits("wait=soon"), None);
        assert_eq!(waits("return=minimal"), None);
    }
}
