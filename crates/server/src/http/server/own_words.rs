//! What HTTP itself answers, in the language of the service.
//!
//! What is no request of HTTP at all never reaches the router: hyper answers it with a bare status. That answer is
//! replaced on its way out by a problem document with a request id, as every other error has.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower_http::request_id::{MakeRequestId as _, MakeRequestUuid};

use super::connections::Connection;
use crate::http::problem::{Code, PROBLEM_JSON, Problem};

/// How an error begins that hyper answers with.
const ERROR: &[u8] = b"HTTP/1.1 4";

/// In the head of every answer of ours, and of none of hyper's.
const OURS: &[u8] = b"x-request-id";

/// A connection's stream.
pub(super) struct OwnWords<S> {
    stream: S,
    connection: Arc<Connection>,
    /// What is sent in the place of an answer of hyper's, and how much of it was.
    instead: Option<(Vec<u8>, usize)>,
}

impl<S> OwnWords<S> {
    pub(super) fn new(stream: S, connection: Arc<Connection>) -> OwnWords<S> {
        OwnWords {
            stream,
            connection,
            instead: None,
        }
    }
}

impl<S: AsyncWrite + Unpin> OwnWords<S> {
    /// Sends what is left of a replaced answer.
    fn poll_instead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((answer, sent)) = &mut self.instead {
            if *sent == answer.len() {
                self.instead = None;
                break;
            }
            let stream = Pin::new(&mut self.stream);
            match ready!(stream.poll_write(context, &answer[*sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                some => *sent += some,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Whether these bytes are an error that no handler gave, whose place is then taken.
    fn takes_the_place_of(&mut self, bytes: &[u8]) -> bool {
        if !bytes.starts_with(ERROR) || !self.connection.has_no_request() {
            return false;
        }
        let head = bytes.windows(4).position(|end| end == b"\r\n\r\n");
        let head = &bytes[..head.unwrap_or(bytes.len())];
        if head.windows(OURS.len()).any(|name| name == OURS) {
            return false;
        }
        let status = head
            .get(9..12)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        self.instead = Some((in_own_words(status.unwrap_or_default()), 0));
        true
    }
}

/// The whole answer to what is no request.
fn in_own_words(status: &str) -> Vec<u8> {
    let problem = match status {
        "431" => Problem::new(
            Code::HeadersTooLarge,
            "the head of the request is larger than 64 KiB, or has more than 100 headers",
        ),
        "414" => Problem::new(Code::PathTooLong, "the path of the request is too long"),
        _ => Problem::new(
            Code::BadRequest,
            "this is no request of HTTP/1.1, or one of its headers is not valid",
        ),
    };
    let request = axum::http::Request::new(());
    let id = MakeRequestUuid.make_request_id(&request);
    let id = id.map(|id| id.header_value().clone());
    let id = id.unwrap_or(HeaderValue::from_static(""));
    let id = id.to_str().unwrap_or_default().to_owned();
    let body = serde_json::to_string(&problem).expect("problems have string keys");
    let status = problem.into_response().status();
    tracing::debug!(request_id = id, %status, "refused what is no request");
    format!(
        "HTTP/1.1 {} {}\r\n{CONTENT_TYPE}: {PROBLEM_JSON}\r\n{}: {id}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
        "x-request-id",
        body.len()
    )
    .into_bytes()
}

impl<S: AsyncRead + Unpin> AsyncRead for OwnWords<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for OwnWords<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.takes_the_place_of(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(first) = parts.first()
            && self.takes_the_place_of(first)
        {
            return Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
