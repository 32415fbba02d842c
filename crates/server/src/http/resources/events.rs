//! Events of a fit and of all of them, as they happen: Server-Sent Events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::http::App;
use crate::http::request::parameters::MOST_WHOLE;
use crate::http::request::slots::Slot;
use crate::http::response::problem::{Code, Problem};
use crate::http::server::keys::Client;
use crate::jobs::{Event, FitNews, Follower, Jobs, Notification, Progress, StateNews};
use crate::limits::shorten;

/// How often something is sent while there is nothing to tell: proxies close what is silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// After what time a browser asks again when the connection is lost.
const RETRY: Duration = Duration::from_secs(1);

/// What a client has that asks again.
const LAST_EVENT_ID: &str = "last-event-id";

/// Follow a fit.
///
/// Server-Sent Events: `state` (`{"state": "running"}`) when the fit waits, runs or has ended, `probe` (the fit's `progress`)
/// with each batch that is tried, and last of all `result`, the fit as `GET /v1/fits/{id}` gives it. The id of an event is its
/// number; ask with `Last-Event-ID` for those after it. When the last one is among those that you have, the answer is 204,
/// and no reason to ask again.
#[utoipa::path(get, path = "/v1/fits/{id}/events", tag = "fits",
    params(("id" = String, Path, description = "The fit's id"),
        ("Last-Event-ID" = Option<u64>, Header, description = "The number of the last event that you have", example = 3)),
    responses(
        (status = 200, body = ref("#/components/schemas/FitEvent"), content_type = "text/event-stream",
            description = "Its events, from the first or the one after `Last-Event-ID` on, one after the other; the schema is that of one"),
        (status = 204, description = "There are no more events, and will be none")))]
pub(in crate::http) async fn get_fit_events(
    State(app): State<App>,
    client: Client,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let last = last_event(&headers)?;
    let follower = Problem::unless(app.jobs.events(&id, last).await?, "fit", &id)?;
    if follower.is_over() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let place = place(&app, &client)?;
    let reader = Reader {
        follower,
        jobs: app.jobs.clone(),
        id,
        is_first: true,
        _place: place,
    };
    let events = stream::unfold(reader, |mut reader| async {
        let event = reader.next().await?;
        Some((Ok::<_, Infallible>(event), reader))
    });
    Ok(streamed(Sse::new(events)))
}

/// Follow all fits.
///
/// Server-Sent Events: `list` (`{}`) at first, and whenever the reader was too slow to be told everything: now is the time to
/// read the list of fits. `fit` (`{"id": "...", "state": "running"}`) whenever a fit waits, runs or has ended. Fits that the
/// command line answers on the same database are in the list, but nothing is told of them.
#[utoipa::path(get, path = "/v1/events", tag = "fits",
    responses((status = 200, body = ref("#/components/schemas/AnyFitEvent"), content_type = "text/event-stream",
            description = "What happens from now on; the schema is that of one event")))]
pub(in crate::http) async fn get_events(
    State(app): State<App>,
    client: Client,
) -> Result<Response, Problem> {
    let place = place(&app, &client)?;
    let reader = AnyReader {
        changes: app.jobs.follow_all(),
        jobs: app.jobs.clone(),
        is_first: true,
        _place: place,
    };
    let events = stream::unfold(reader, |mut reader| async {
        let event = reader.next().await?;
        Some((Ok::<_, Infallible>(event), reader))
    });
    Ok(streamed(Sse::new(events)))
}

/// Where a client is in what changes of all fits.
struct AnyReader {
    changes: broadcast::Receiver<FitNews>,
    jobs: Jobs,
    is_first: bool,
    _place: Slot,
}

impl AnyReader {
    /// The next event, until the server ends.
    async fn next(&mut self) -> Option<sse::Event> {
        let list = || sse::Event::default().event("list").data("{}");
        if std::mem::take(&mut self.is_first) {
            return Some(list().retry(RETRY));
        }
        let change = tokio::select! {
            change = self.changes.recv() => change,
            () = self.jobs.ending() => return None,
        };
        match change {
            Ok(news) => Some(sse::Event::default().event("fit").data(json(&news))),
            Err(RecvError::Lagged(_)) => Some(list()),
            Err(RecvError::Closed) => None,
        }
    }
}

/// A place for one more client that follows.
fn place(app: &App, client: &Client) -> Result<Slot, Problem> {
    app.followers.take(&client.id).ok_or_else(|| {
        Problem::new(
            Code::TooManyRequests,
            "too many clients follow fits at the moment, or too many under this key; ask again, or get the fit from time to time",
        )
    })
}

/// Events as they are sent.
fn streamed<S>(events: Sse<S>) -> Response
where
    S: Stream<Item = Result<sse::Event, Infallible>> + Send + 'static,
{
    let events = events.keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // Or nginx would collect them.
    ([("x-accel-buffering", "no")], events).into_response()
}

/// The number of the last event that a client has.
fn last_event(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(header) = headers.get(LAST_EVENT_ID) else {
        return Ok(None);
    };
    let text = header.to_str().unwrap_or("?");
    let number = text.parse().ok().filter(|number| *number <= MOST_WHOLE);
    let number = number.ok_or_else(|| {
        let detail = format!(
            "`Last-Event-ID` is the id of an event of this fit, a whole number, not {:?}; leave it out to get all of them",
            shorten(text)
        );
        Problem::new(Code::HeaderInvalid, detail)
    })?;
    Ok(Some(number))
}

/// Where a client is in the events of a fit.
struct Reader {
    follower: Follower,
    jobs: Jobs,
    id: String,
    is_first: bool,
    _place: Slot,
}

impl Reader {
    /// The next event. The stream ends after the last one, and when the server does: the client asks again then.
    async fn next(&mut self) -> Option<sse::Event> {
        let event = tokio::select! {
            event = self.follower.next() => event?,
            () = self.jobs.ending() => return None,
        };
        let Event { number, news } = event;
        let (kind, data) = match news {
            Notification::State(state) => ("state", json(&StateNews { state })),
            Notification::Probe(progress) => ("probe", json::<Progress>(&progress)),
            Notification::Result => ("result", json(&self.jobs.fit(&self.id).await.ok()??)),
        };
        let event = sse::Event::default().id(number.to_string()).event(kind);
        let event = event.data(data);
        Some(if std::mem::take(&mut self.is_first) {
            event.retry(RETRY)
        } else {
            event
        })
    }
}

fn json<T: Serialize>(data: &T) -> String {
    serde_json::to_string(data).expect("documents have text keys and finite numbers")
}
