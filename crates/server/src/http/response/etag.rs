//! `ETag` and `If-None-Match` (RFC 9110): a client that has the answer already gets 304 instead of the body.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hasher as _};

use axum::body::{Body, HttpBody as _, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use foldhash::quality::FixedState;

use crate::http::response::problem::{Code, Problem};

/// The longest answer that is marked: a list of the most items is less. Longer ones would be read once more for it.
const LONGEST: u64 = 2 << 20;

/// Marks what GET answers with JSON by its contents, and sends 304 to clients that have it.
pub(in crate::http) async fn mark(request: Request, next: Next) -> Response {
    // HEAD has no body to be marked by.
    if request.method() != Method::GET {
        return next.run(request).await;
    }
    let known = request.headers().get_all(IF_NONE_MATCH).iter();
    let asked: HeaderMap = known.map(|known| (IF_NONE_MATCH, known.clone())).collect();
    let response = next.run(request).await;
    if response.status() != StatusCode::OK || !is_json(response.headers()) {
        return response;
    }
    // What is made while it is sent has no size.
    let size = response.body().size_hint().exact();
    if size.is_none_or(|size| size > LONGEST) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        return Problem::new(Code::Internal, "the answer could not be read").into_response();
    };
    let tag = tag(&bytes);
    let tag = HeaderValue::from_str(&tag).expect("digits are valid in headers");
    let is_known = is_known(&asked, &tag);
    parts.headers.insert(ETAG, tag);
    if is_known {
        parts.status = StatusCode::NOT_MODIFIED;
        parts.headers.remove(CONTENT_LENGTH);
        parts.headers.remove(CONTENT_TYPE);
        return Response::from_parts(parts, Body::empty());
    }
    Response::from_parts(parts, Body::from(bytes))
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind == "application/json")
}

/// A weak tag: the same JSON may be sent compressed. 128 bits, so that no two contents share it by
/// chance; a client that makes two on purpose harms only itself.
pub(in crate::http) fn tag(bytes: &[u8]) -> String {
    let mut text = "W/\"".to_owned();
    for seed in [1, 2] {
        let mut hasher = FixedState::with_seed(seed).build_hasher();
        hasher.write(bytes);
        let _ = write!(text, "{:016x}", hasher.finish());
    }
    text.push('"');
    text
}

/// Whether the client of these headers has what this tag marks.
pub(in crate::http) fn is_known(asked: &HeaderMap, tag: &HeaderValue) -> bool {
    let tag = tag.to_str().unwrap_or_default();
    let mut known = asked.get_all(IF_NONE_MATCH).iter();
    known.any(|known| names(known, tag))
}

/// Whether an `If-None-Match` names this tag, by the weak comparison.
fn names(header: &HeaderValue, tag: &str) -> bool {
    let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    header.to_str().is_ok_and(|header| {
        header.trim() == "*" || header.split(',').any(|known| opaque(known) == opaque(tag))
    })
}

#[cfg(test)]
mod tests {
    use crate::http::response::etag::*;

    #[test]
    fn tags_compare_by_what_they_hold() {
        let tag = tag(b"{}");
        let names = |header: &str| names(&HeaderValue::from_str(header).unwrap(), &tag);

        assert!(names(&tag));
        assert!(names(tag.trim_start_matches("W/")));
        assert!(names(&format!("\"other\", {tag}")));
        assert!(names("*"));
        assert!(!names("\"other\""));
        assert!(!names(""));
        assert_ne!(tag, crate::http::response::etag::tag(b"[]"));
    }
}
