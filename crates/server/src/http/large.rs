//! Documents of megabytes: written, and compressed for whoever reads gzip, on the thread that made them.
//!
//! The layer that compresses other answers does so on the threads that serve connections, a piece at a time.

use std::io::Write as _;

use axum::body::Body;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::problem::{Code, Problem};
use super::uploads::decompress;
use crate::bounded::is_cancelled;

/// What is compressed before the next look at whether somebody still waits, in bytes: some 10 ms of work.
const PART: usize = 1 << 20;

/// The most that is decompressed of what is stored, in bytes.
const MOST_STORED: usize = 128 << 20;

/// Whether whoever asked reads gzip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadsGzip(pub(super) bool);

impl ReadsGzip {
    /// By `Accept-Encoding` (RFC 9110, 12.5.3).
    pub(super) fn of(headers: &HeaderMap) -> ReadsGzip {
        let all = headers.get_all(ACCEPT_ENCODING).iter();
        let codings = all.filter_map(|value| value.to_str().ok());
        ReadsGzip(codings.flat_map(|value| value.split(',')).any(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            let is_it = parts
                .next()
                .is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            let is_refused = weight.is_some_and(|weight| weight.parse() == Ok(0.0));
            is_it && !is_refused
        }))
    }
}

/// Writes an answer. Not on the threads that serve connections.
pub(super) fn written(
    status: StatusCode,
    document: &impl Serialize,
    ReadsGzip(reads_gzip): ReadsGzip,
) -> Result<Response, Problem> {
    let failed = |error: &dyn std::error::Error| {
        tracing::error!("an answer could not be written: {error}");
        Problem::new(
            Code::Internal,
            "the fault is in the log of the service, under the x-request-id of this response",
        )
    };
    let plain = serde_json::to_vec(document).map_err(|error| failed(&error))?;
    let body = if reads_gzip {
        compressed(&plain).map_err(|error| failed(&error))?
    } else {
        plain
    };
    Ok(answer(status, body, reads_gzip))
}

/// Gives JSON that is stored compressed, as whoever asked reads it. Not on the threads that serve connections.
pub(super) fn stored(
    packed: Vec<u8>,
    ReadsGzip(reads_gzip): ReadsGzip,
) -> Result<Response, Problem> {
    if reads_gzip {
        return Ok(answer(StatusCode::OK, packed, true));
    }
    match decompress(&packed, MOST_STORED)? {
        Some(plain) => Ok(answer(StatusCode::OK, plain, false)),
        None => Err(Problem::new(
            Code::Internal,
            format!(
                "it is longer than {MOST_STORED} bytes, decompressed; ask with `Accept-Encoding: gzip`"
            ),
        )),
    }
}

fn answer(status: StatusCode, body: Vec<u8>, is_gzip: bool) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if is_gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// As much of it as somebody waits for.
fn compressed(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::default());
    for part in plain.chunks(PART) {
        if is_cancelled() {
            break;
        }
        encoder.write_all(part)?;
    }
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_read_by_those_who_name_it_and_do_not_refuse_it() {
        let reads = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
            ReadsGzip::of(&headers) == ReadsGzip(true)
        };

        assert!(reads("gzip, deflate, br"));
        assert!(reads("br;q=1.0, GZIP;q=0.5"));
        assert!(!reads("gzip;q=0"));
        assert!(!reads("identity"));
        assert_eq!(ReadsGzip::of(&HeaderMap::new()), ReadsGzip(false));
    }
}
