//! What every request passes before its handler, and what may answer in the handler's place.

use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connections::ConnectionLimits;
use super::hosts::Hosts;
use super::keys::{Keys, revoked};
use super::transfer::Arrival;
use crate::http::response::problem::{Code, Problem};
use crate::jobs::under_key;

/// Whom the service answers, and until when.
#[derive(Debug, Clone)]
pub(in crate::http) struct AccessPolicy {
    hosts: Arc<Hosts>,
    /// The keys, where they are needed.
    keys: Option<Arc<Keys>>,
    ending: CancellationToken,
    last_words: Duration,
}

impl AccessPolicy {
    pub(in crate::http) fn new(
        hosts: Hosts,
        keys: Option<Keys>,
        ending: CancellationToken,
        limits: ConnectionLimits,
    ) -> AccessPolicy {
        AccessPolicy {
            hosts: Arc::new(hosts),
            keys: keys.map(Arc::new),
            ending,
            last_words: limits.last_words,
        }
    }

    /// Waits until it is too late for an answer.
    async fn closes(&self) {
        self.ending.cancelled().await;
        tokio::time::sleep(self.last_words).await;
    }
}

/// Lets a request through, and sees to it that it is answered.
pub(in crate::http) async fn authorize(
    State(policy): State<AccessPolicy>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Err(problem) = policy.hosts.admit(&request) {
        return problem.into_response();
    }
    let pass = match &policy.keys {
        None => None,
        Some(keys) => {
            let (method, headers) = (request.method(), request.headers());
            let path = request.uri().path();
            match keys.admit(method, path, headers, Instant::now).await {
                Ok(pass) => pass,
                Err(mut refused) => {
                    // What is not read of the body stands in the way of the next request.
                    if !request.body().is_end_stream() {
                        let close = HeaderValue::from_static("close");
                        refused.headers_mut().insert(CONNECTION, close);
                    }
                    return refused;
                }
            }
        }
    };
    let (Some(pass), Some(keys)) = (pass, &policy.keys) else {
        return answer(&policy, request, next).await;
    };
    let client = pass.client.clone();
    request.extensions_mut().insert(client.clone());
    let gone = || Arc::clone(keys).gone(client.clone());
    let answered = under_key(Arc::clone(&pass.share), answer(&policy, request, next));
    tokio::select! {
        biased;
        answer = answered => pass.until_sent(answer, gone()),
        () = gone() => revoked(),
    }
}

/// Has a request answered that was let in.
async fn answer(policy: &AccessPolicy, request: Request, next: Next) -> Response {
    let arrival = request.extensions().get::<Arc<Arrival>>().cloned();
    let refused = async {
        match &arrival {
            Some(arrival) => arrival.refused().await,
            // Not over a connection.
            None => std::future::pending().await,
        }
    };
    let answer = tokio::select! {
        biased;
        refused = refused => Problem::from(refused).into_response(),
        answer = next.run(request) => answer,
        () = policy.closes() => Problem::new(
            Code::NotReady,
            "the service is about to end; ask again when it is back",
        )
        .into_response(),
    };
    let Some(arrival) = arrival else {
        return answer;
    };
    arrival.answered();
    // A handler may have answered already that the body is damaged.
    match arrival.refusal() {
        Some(refused) => Problem::from(refused).into_response(),
        None => answer,
    }
}
