//! Bodies on their way: requests from slow clients, and answers to them.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Method;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};

use super::connections::{Connection, ConnectionLimits};
use crate::http::response::problem::{Code, Problem};
use crate::lock;

/// What has to arrive of a body each time that the clock starts again. Less counts as waiting: a byte now and then would
/// keep a connection for ever.
const PROGRESS: usize = 16 << 10;

/// Why a request is not answered by its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Refused {
    /// Its body came too slowly.
    Late(Duration),
    /// Too many are being worked on.
    TooMany,
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Problem {
        match refused {
            Refused::Late(patience) => Problem::new(
                Code::BodyTimeout,
                format!(
                    "less than {} KiB of the body arrived within {} s",
                    PROGRESS >> 10,
                    patience.as_secs_f64()
                ),
            ),
            Refused::TooMany => Problem::new(
                Code::TooManyRequests,
                "too many other requests are being worked on; ask again",
            ),
        }
    }
}

/// How a request arrives. The router finds it among the request's extensions.
#[derive(Debug)]
pub(in crate::http) struct Arrival {
    /// Where requests that ask for work take their permits.
    requests: Option<Arc<Semaphore>>,
    state: Mutex<ArrivalState>,
    refused: Notify,
}

#[derive(Debug, Default)]
struct ArrivalState {
    refused: Option<Refused>,
    /// Held until the request is answered.
    permit: Option<OwnedSemaphorePermit>,
}

impl Arrival {
    /// A request whose head is here. Those that ask for work take a permit once their body is.
    pub(in crate::http) fn of<B>(request: &hyper::Request<B>, requests: Arc<Semaphore>) -> Arrival {
        // A look at the GPUs starts a process.
        let asks_for_work =
            request.method() == Method::POST || request.uri().path() == "/v1/devices";
        Arrival {
            requests: asks_for_work.then_some(requests),
            state: Mutex::default(),
            refused: Notify::new(),
        }
    }

    /// Waits until the request is refused, if ever.
    pub(in crate::http) async fn refused(&self) -> Refused {
        loop {
            if let Some(refused) = self.refusal() {
                return refused;
            }
            self.refused.notified().await;
        }
    }

    /// Why the request is refused, if it is.
    pub(in crate::http) fn refusal(&self) -> Option<Refused> {
        lock(&self.state).refused
    }

    /// The body is here, or is not read further: from now on the request is worked on. False where that is too much.
    fn complete(&self) -> bool {
        let Some(requests) = &self.requests else {
            return true;
        };
        let mut state = lock(&self.state);
        if state.permit.is_none() && state.refused.is_none() {
            if let Ok(permit) = Arc::clone(requests).try_acquire_owned() {
                state.permit = Some(permit);
            } else {
                drop(state);
                self.refuse(Refused::TooMany);
                return false;
            }
        }
        state.refused.is_none()
    }

    fn refuse(&self, why: Refused) {
        lock(&self.state).refused.get_or_insert(why);
        self.refused.notify_one();
    }

    /// Others may be worked on.
    pub(in crate::http) fn answered(&self) {
        lock(&self.state).permit = None;
    }
}

/// A body that did not arrive as it should.
#[derive(Debug, thiserror::Error)]
pub(in crate::http) enum UploadError {
    /// The request was refused meanwhile; the answer says why.
    #[error("the request was refused")]
    Refused,
    /// The connection broke, or what arrived is not HTTP.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

/// The body of a request, with a clock that runs while the client keeps us waiting, and only then.
pub(in crate::http) struct Upload {
    body: Incoming,
    arrival: Arc<Arrival>,
    connection: Arc<Connection>,
    patience: Duration,
    clock: Pin<Box<Sleep>>,
    /// Since when this wait lasts.
    waits_since: Option<Instant>,
    /// Spent on earlier waits since the last progress.
    waited: Duration,
    /// Bytes since the last progress.
    progress: usize,
}

impl Upload {
    pub(in crate::http) fn new(
        body: Incoming,
        arrival: Arc<Arrival>,
        connection: Arc<Connection>,
        patience: Duration,
    ) -> Upload {
        Upload {
            body,
            arrival,
            connection,
            patience,
            clock: Box::pin(sleep_until(Instant::now())),
            waits_since: None,
            waited: Duration::ZERO,
            progress: 0,
        }
    }

    /// Stops the clock.
    fn stop_clock(&mut self, bytes: usize) {
        if let Some(since) = self.waits_since.take() {
            self.waited += since.elapsed();
            self.connection.work();
        }
        self.progress += bytes;
        if self.progress >= PROGRESS {
            self.progress = 0;
            self.waited = Duration::ZERO;
        }
    }

    /// Starts the clock, or looks at it.
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.waits_since.is_none() {
            let now = Instant::now();
            self.waits_since = Some(now);
            // From before the machine started, where the clock does not reach: as good as now.
            let since = now.checked_sub(self.waited).unwrap_or(now);
            self.connection.wait_for_body(since);
            let left = self.patience.saturating_sub(self.waited);
            self.clock.as_mut().reset(now + left);
        }
        self.clock.as_mut().poll(context)
    }
}

impl hyper::body::Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let this = self.get_mut();
        if this.arrival.refusal().is_some() {
            return Poll::Ready(Some(Err(UploadError::Refused)));
        }
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            if this.wait(context).is_pending() {
                return Poll::Pending;
            }
            this.stop_clock(0);
            this.arrival.refuse(Refused::Late(this.patience));
            return Poll::Ready(Some(Err(UploadError::Refused)));
        };
        let bytes = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => 0,
        };
        this.stop_clock(bytes);
        let is_whole = frame.is_none() || this.body.is_end_stream();
        if is_whole && !this.arrival.complete() {
            return Poll::Ready(Some(Err(UploadError::Refused)));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(UploadError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Upload {
    /// Its reader has what it wants, even if more could come.
    fn drop(&mut self) {
        self.stop_clock(0);
        self.arrival.complete();
    }
}

/// An answer, with a clock that runs while the client does not take it, again for each part of [`PROGRESS`] bytes.
pub(in crate::http) struct Download {
    body: Body,
    /// What is not sent yet of what the body gave.
    rest: Bytes,
    connection: Arc<Connection>,
    limits: ConnectionLimits,
}

impl Download {
    pub(in crate::http) fn new(
        body: Body,
        connection: Arc<Connection>,
        limits: ConnectionLimits,
    ) -> Download {
        connection.wait_for_reading(limits.transfer);
        Download {
            body,
            rest: Bytes::new(),
            connection,
            limits,
        }
    }
}

impl hyper::body::Body for Download {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
                self.connection.wait_for_news();
                return Poll::Pending;
            };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        // It asks for the next part when there is room: the client has taken what came before.
        self.connection.wait_for_reading(self.limits.transfer);
        let part = self.rest.len().min(PROGRESS);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(part)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.body.size_hint().exact();
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        left.map_or_else(SizeHint::default, |left| SizeHint::with_exact(left + rest))
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.connection.wait_for_request(self.limits.idle);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use hyper::body::Body as _;

    use super::*;

    #[tokio::test]
    async fn each_part_of_a_long_answer_restarts_its_clock() {
        let long = vec![7; 5 * PROGRESS + 1];
        let limits = ConnectionLimits::default();
        let mut answer = Download::new(Body::from(long.clone()), Arc::default(), limits);
        let mut taken = Vec::new();
        while !answer.is_end_stream() {
            let left = u64::try_from(long.len() - taken.len()).unwrap();
            assert_eq!(answer.size_hint().exact(), Some(left));
            let part = answer.frame().await.unwrap().unwrap();
            let part = part.into_data().unwrap();
            assert!((1..=PROGRESS).contains(&part.len()));
            taken.extend_from_slice(&part);
        }
        assert_eq!(taken, long);
    }
}
