//! The `Prefer` header (RFC 7240), of which one preference is honoured: `wait`.

use std::time::Duration;

use axum::http::HeaderMap;

/// The longest wait. Most proxies give up on a response earlier.
const LONGEST_S: u64 = 600;

/// How long the client is willing to wait, when it says so. Preferences that are not understood are
/// ignored, as the RFC demands.
pub(in crate::http) fn wait(headers: &HeaderMap) -> Option<Duration> {
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

    use crate::http::request::prefer::*;

    fn waits(header: &'static str) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert("prefer", HeaderValue::from_static(header));
        wait(&headers).map(|wait| wait.as_secs())
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
