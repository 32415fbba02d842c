//! Documents of megabytes: serialized, and compressed for clients that accept gzip, on the thread that made them.
//!
//! The layer that compresses other answers does so on the threads that serve connections, a piece at a time.

use std::io::{self, Write as _};
use std::mem;

use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use flate2::Compression;
use flate2::write::{GzDecoder, GzEncoder};
use futures_util::stream;
use serde::Serialize;

use crate::http::response::problem::Problem;
use crate::limits::is_cancelled;
use crate::store::{Db, StoreError};

/// What is compressed before the next check that the client still waits, in bytes: some 10 ms of work.
pub(in crate::http) const PART: usize = 1 << 20;

/// How much of a stored step is read at a time, and how much of that is sent at a time, in bytes.
const STORED_PART: usize = 256 << 10;
const PACKED_AT_ONCE: usize = 16 << 10;

/// Whether the client accepts gzip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct ReadsGzip(pub(in crate::http) bool);

impl ReadsGzip {
    /// By `Accept-Encoding` (RFC 9110, 12.5.3).
    pub(in crate::http) fn of(headers: &HeaderMap) -> ReadsGzip {
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
pub(in crate::http) fn serialize(
    status: StatusCode,
    document: &impl Serialize,
    reads_gzip: ReadsGzip,
) -> Result<Response, Problem> {
    let plain = serde_json::to_vec(document).map_err(|error| failed(&error))?;
    written(status, plain, reads_gzip)
}

/// The same of an answer that is JSON already.
pub(in crate::http) fn written(
    status: StatusCode,
    plain: Vec<u8>,
    ReadsGzip(reads_gzip): ReadsGzip,
) -> Result<Response, Problem> {
    if !reads_gzip && plain.len() <= PART {
        return Ok(answer(status, plain, false));
    }
    // A reader that takes its time has the service hold a tenth of it.
    let packed = compressed(&plain).map_err(|error| failed(&error))?;
    Ok(as_taken(status, packed, None, reads_gzip))
}

fn failed(error: &dyn std::error::Error) -> Problem {
    tracing::error!("an answer could not be written: {error}");
    Problem::fault()
}

/// The step of a run, as the client accepts it; `None` where nothing is kept of it. It is read and unpacked as it is taken, so that many readers,
/// or slow ones, take no more memory than a part each.
pub(in crate::http) async fn step_of_run(
    db: Db,
    id: String,
    ReadsGzip(reads_gzip): ReadsGzip,
) -> Result<Option<Response>, StoreError> {
    let Some(packed) = db.part_of_step(&id, 0, STORED_PART).await? else {
        return Ok(None);
    };
    let rest = Some((db, id, packed.len()));
    Ok(Some(as_taken(StatusCode::OK, packed, rest, reads_gzip)))
}

/// Sends compressed JSON a part at a time, unpacked for clients that do not accept gzip; `rest` is where what follows `packed` is read.
fn as_taken(
    status: StatusCode,
    packed: Vec<u8>,
    rest: Option<(Db, String, usize)>,
    reads_gzip: bool,
) -> Response {
    let packed = Packed {
        at_hand: Bytes::from(packed),
        rest,
        decoder: (!reads_gzip).then(|| GzDecoder::new(Vec::new())),
    };
    let parts = stream::try_unfold(packed, |mut packed| async move {
        let part = packed.next().await?;
        Ok::<_, io::Error>((!part.is_empty()).then_some((part, packed)))
    });
    answer(status, Body::from_stream(parts), reads_gzip)
}

/// Compressed JSON on its way.
struct Packed {
    /// What of it is in memory and was not yet sent.
    at_hand: Bytes,
    /// The step of this run that it is, and how much was read of it.
    rest: Option<(Db, String, usize)>,
    /// Where it is sent unpacked, until its end.
    decoder: Option<GzDecoder<Vec<u8>>>,
}

impl Packed {
    /// What is sent next; nothing at the end. An error ends the connection, so that no reader takes a part for the whole.
    async fn next(&mut self) -> io::Result<Bytes> {
        loop {
            if let (true, Some((db, id, from))) = (self.at_hand.is_empty(), &mut self.rest) {
                let part = db.part_of_step(id, *from, STORED_PART).await;
                // Without one it was dropped meanwhile.
                let part = part
                    .map_err(io::Error::other)?
                    .ok_or(io::ErrorKind::NotFound)?;
                *from += part.len();
                self.at_hand = Bytes::from(part);
            }
            let part = self
                .at_hand
                .split_to(self.at_hand.len().min(PACKED_AT_ONCE));
            let Some(mut decoder) = self.decoder.take() else {
                return Ok(part);
            };
            let unpacked = if part.is_empty() {
                decoder.finish()?
            } else {
                decoder.write_all(&part)?;
                let unpacked = mem::take(decoder.get_mut());
                self.decoder = Some(decoder);
                unpacked
            };
            if part.is_empty() || !unpacked.is_empty() {
                return Ok(Bytes::from(unpacked));
            }
        }
    }
}

fn answer(status: StatusCode, body: impl Into<Body>, is_gzip: bool) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if is_gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// As much of it as the client waits for.
fn compressed(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::fast());
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
    use http_body_util::BodyExt as _;

    use crate::http::response::large::*;

    #[tokio::test]
    async fn a_long_answer_is_unpacked_as_it_is_taken() {
        let document: Vec<u32> = (0..500_000).collect();
        let answer = serialize(StatusCode::OK, &document, ReadsGzip(false)).unwrap();
        let (mut body, mut taken) = (answer.into_body(), Vec::new());
        while let Some(part) = body.frame().await {
            let part = part.unwrap().into_data().unwrap();
            assert!(part.len() < PART, "{}", part.len());
            taken.extend_from_slice(&part);
        }
        assert_eq!(taken, serde_json::to_vec(&document).unwrap());
    }

    #[test]
    fn gzip_is_sent_where_accept_encoding_allows_it() {
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
