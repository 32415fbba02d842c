//! Keys: what each is for, and how much it may ask.
//!
//! Keys are in the database, and are read from there once a second at most: one that was revoked opens nothing from then on,
//! whichever server revoked it. Where they cannot be read, no request is let in.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::FromRequestParts;
use axum::http::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::Span;

use crate::http::response::problem::{Code, Problem};
use crate::http::{App, page};
use crate::jobs::Share;
use crate::lock;
use crate::store::{ApiKey, Db, Scope};

/// How long the keys that were read are taken for those that there are.
const FRESH: Duration = Duration::from_secs(1);

/// What needs no key: whether the service is well, and what it can be asked.
const OPEN: [&str; 4] = ["/healthz", "/readyz", "/openapi.yaml", "/docs"];

/// Whether this path needs no key. The page's own files say nothing about what the service has found.
pub(in crate::http) fn is_open(path: &str) -> bool {
    OPEN.contains(&path) || path == "/" || path.starts_with(page::FOLDER)
}

/// What agents ask is below this path.
const AGENTS: &str = "/v1/agents";

/// How long a request beyond what its key may ask waits for its refusal: a client that asks again at once takes no processor from others.
const REFUSED_AFTER: Duration = Duration::from_millis(250);

/// Longest `Authorization` that is looked at, in bytes.
const LONGEST: usize = 256;

/// How much each key may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyLimits {
    /// Requests in a second, of which so many may come at once; `None` for any number.
    pub per_second: Option<u32>,
    /// Requests at a time, those that follow a fit included; `None` for any number.
    pub at_a_time: Option<u32>,
}

impl Default for KeyLimits {
    /// More than launchers of a cluster ask, and less than what the service can do for all.
    fn default() -> KeyLimits {
        KeyLimits {
            per_second: Some(200),
            at_a_time: Some(64),
        }
    }
}

/// Who sends a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) struct Client {
    /// The id of its key; empty where none is needed.
    pub(in crate::http) id: String,
    /// What the key is for; everything, where none is needed.
    pub(in crate::http) scope: Scope,
}

impl FromRequestParts<App> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Client, Infallible> {
        let client = parts.extensions.get::<Client>().cloned();
        Ok(client.unwrap_or(Client {
            id: String::new(),
            scope: Scope::Admin,
        }))
    }
}

impl Client {
    /// Whose things it may change: its own alone, or those of all keys.
    pub(in crate::http) fn owner(&self) -> Option<&str> {
        (self.scope != Scope::Admin).then_some(&self.id)
    }
}

/// The keys.
#[derive(Debug)]
pub(in crate::http) struct Keys {
    db: Db,
    limits: KeyLimits,
    lanes: u32,
    known: Mutex<Option<(Instant, Known)>>,
    /// Held while the keys are read.
    reading: tokio::sync::Mutex<()>,
}

/// Keys that were not revoked, by id.
type Known = Arc<HashMap<String, Arc<KnownKey>>>;

#[derive(Debug)]
struct KnownKey {
    key: ApiKey,
    rate: Mutex<Bucket>,
    places: Option<Arc<Semaphore>>,
    share: Arc<Share>,
}

/// Requests that may come at once; they come back over time, by a clock that is never set.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    /// Takes one of `per_second`, or says how long it is until there is one.
    fn take(&mut self, per_second: u32, now: Instant) -> Result<(), Duration> {
        let rate = f64::from(per_second);
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * rate).min(rate.max(1.0));
        self.at = now;
        if self.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.left) / rate));
        }
        self.left -= 1.0;
        Ok(())
    }
}

/// Lets one request of a key in; its place is free again when this is dropped.
pub(in crate::http) struct RateToken {
    pub(in crate::http) client: Client,
    pub(in crate::http) share: Arc<Share>,
    place: Option<OwnedSemaphorePermit>,
}

impl RateToken {
    /// Keeps the place until the answer has been sent, or `gone` is at its end: the key was revoked.
    pub(in crate::http) fn until_sent(
        self,
        answer: Response,
        gone: impl Future<Output = ()> + Send + 'static,
    ) -> Response {
        answer.map(|body| {
            Body::new(BodyWithToken {
                body,
                gone: Box::pin(gone),
                _place: self.place,
            })
        })
    }
}

/// An answer that holds a place until it has been sent.
struct BodyWithToken {
    body: Body,
    gone: Pin<Box<dyn Future<Output = ()> + Send>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl HttpBody for BodyWithToken {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_pending() && self.gone.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Keys {
    /// The keys of a service that simulates on so many lanes.
    pub(in crate::http) fn new(db: Db, limits: KeyLimits, lanes: u32) -> Keys {
        Keys {
            db,
            limits,
            lanes,
            known: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }

    /// Lets a request in that has a key for what it asks; `None` where none is needed.
    pub(in crate::http) async fn admit(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        now: impl Fn() -> Instant,
    ) -> Result<Option<RateToken>, Response> {
        if is_open(path) {
            return Ok(None);
        }
        let text = bearer(headers).map_err(|detail| unauthorized(detail, None))?;
        let known = self.known(&now).await;
        let known = known.map_err(IntoResponse::into_response)?;
        let wrong = || {
            unauthorized(
                "this key is not known, or was revoked",
                Some("invalid_token"),
            )
        };
        let key = ApiKey::id_in(text).and_then(|id| known.get(id));
        let key = key.filter(|known| known.key.is(text)).ok_or_else(wrong)?;
        Span::current().record("key", &key.key.name);
        let needed = needed(method, path);
        if !key.key.scope.includes(needed) {
            return Err(out_of_scope(&key.key, needed));
        }
        let place = match self.place(key, now()) {
            Ok(place) => place,
            Err(refused) => {
                tokio::time::sleep(REFUSED_AFTER).await;
                return Err(refused);
            }
        };
        Ok(Some(RateToken {
            client: Client {
                id: key.key.id.clone(),
                scope: key.key.scope,
            },
            share: Arc::clone(&key.share),
            place,
        }))
    }

    /// Ends within a second or so of when this key was revoked.
    pub(in crate::http) async fn gone(self: Arc<Keys>, client: Client) {
        loop {
            tokio::time::sleep(FRESH).await;
            let known = self.known(Instant::now).await;
            if known.is_ok_and(|known| !known.contains_key(&client.id)) {
                return;
            }
        }
    }

    /// Counts a request.
    fn place(
        &self,
        key: &KnownKey,
        now: Instant,
    ) -> Result<Option<OwnedSemaphorePermit>, Response> {
        let name = &key.key.name;
        if let Some(per_second) = self.limits.per_second {
            let taken = {
                let mut rate = lock(&key.rate);
                rate.take(per_second, now)
            };
            taken.map_err(|wait| {
                let detail = format!("the key {name} may ask {per_second} times in a second");
                let wait = wait.as_secs() + 1;
                let mut answer = Problem::new(Code::RateLimited, detail).into_response();
                answer
                    .headers_mut()
                    .insert(RETRY_AFTER, HeaderValue::from(wait));
                answer
            })?;
        }
        let place = key.places.as_ref().map(|places| {
            Arc::clone(places).try_acquire_owned().map_err(|_| {
                let most = self.limits.at_a_time.unwrap_or_default();
                let detail = format!(
                    "{most} requests of the key {name} are being answered, and no key may have more at a time"
                );
                Problem::new(Code::KeyBusy, detail).into_response()
            })
        });
        place.transpose()
    }

    async fn known(&self, now: impl Fn() -> Instant) -> Result<Known, Problem> {
        if let Some(fresh) = self.fresh(now()) {
            return Ok(fresh);
        }
        let _reading = self.reading.lock().await;
        if let Some(fresh) = self.fresh(now()) {
            return Ok(fresh);
        }
        let keys = self.db.keys().await?;
        let before = self.latest().map(|(_, known)| known).unwrap_or_default();
        let keys = keys.into_iter().filter(|key| key.revoked_at.is_none());
        let keys = keys.map(|key| {
            let known = match before.get(&key.id) {
                Some(known) if known.key == key => Arc::clone(known),
                Some(_) | None => Arc::new(self.fill(key.clone(), now())),
            };
            (key.id, known)
        });
        let known: Known = Arc::new(keys.collect());
        let mut latest = lock(&self.known);
        *latest = Some((now(), Arc::clone(&known)));
        Ok(known)
    }

    fn fill(&self, key: ApiKey, now: Instant) -> KnownKey {
        let places = self.limits.at_a_time;
        KnownKey {
            key,
            rate: Mutex::new(Bucket {
                left: f64::from(self.limits.per_second.unwrap_or_default()),
                at: now,
            }),
            places: places.map(|places| Arc::new(Semaphore::new(places.max(1) as usize))),
            share: Arc::new(Share::new(self.lanes as usize)),
        }
    }

    fn fresh(&self, now: Instant) -> Option<Known> {
        let is_fresh = |read| now.saturating_duration_since(read) < FRESH;
        let latest = self.latest();
        latest.and_then(|(read, known)| is_fresh(read).then_some(known))
    }

    fn latest(&self) -> Option<(Instant, Known)> {
        let latest = lock(&self.known);
        latest.clone()
    }
}

/// What a request needs a key for.
fn needed(method: &Method, path: &str) -> Scope {
    match *method {
        // What an agent is to answer, for that agent alone.
        Method::GET if path.starts_with(AGENTS) && path.ends_with("/request") => Scope::Agent,
        Method::GET | Method::HEAD | Method::OPTIONS => Scope::Read,
        Method::DELETE if path.starts_with("/v1/graphs") => Scope::Admin,
        // What an operator says to an agent.
        Method::PATCH if path.starts_with(AGENTS) => Scope::Admin,
        _ if path.starts_with(AGENTS) => Scope::Agent,
        _ => Scope::Fit,
    }
}

/// The text after `Bearer`.
fn bearer(headers: &HeaderMap) -> Result<&str, &'static str> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(one), None) = (given.next(), given.next()) else {
        return Err(
            "send a key, as `Authorization: Bearer KEY`, once; `batchfit keys create --name NAME --scope read|fit|agent|admin` makes \
             one on the machine of the service",
        );
    };
    let text = one.to_str().ok().filter(|text| text.len() <= LONGEST);
    let parts = text.and_then(|text| text.trim().split_once(' '));
    match parts {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => Ok(key.trim_start()),
        Some(_) | None => {
            Err("`Authorization` is not of the form `Bearer KEY`; other schemes are not understood")
        }
    }
}

/// What is answered to who waited under a key that was revoked meanwhile.
pub(in crate::http) fn revoked() -> Response {
    unauthorized("this key was revoked", Some("invalid_token"))
}

fn unauthorized(detail: &str, error: Option<&str>) -> Response {
    let error = error.map_or_else(String::new, |error| format!(", error=\"{error}\""));
    challenge(Code::Unauthorized, detail.to_owned(), &error)
}

fn out_of_scope(key: &ApiKey, needed: Scope) -> Response {
    let detail = format!(
        "the key {} is for `{}`, and this needs one for `{}`",
        key.name,
        key.scope.name(),
        needed.name()
    );
    let needed = needed.name();
    let error = format!(", error=\"insufficient_scope\", scope=\"{needed}\"");
    challenge(Code::ScopeMissing, detail, &error)
}

fn challenge(code: Code, detail: String, error: &str) -> Response {
    let mut answer = Problem::new(code, detail).into_response();
    let challenge = format!("Bearer realm=\"batchfit\"{error}");
    let challenge = HeaderValue::from_str(&challenge).expect("it is ASCII of ours");
    answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    answer
}

#[cfg(test)]
mod tests;
