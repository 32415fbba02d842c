//! The service over HTTP: a router that reads as a table of contents, and one file for each resource.
//!
//! A handler (`resources`) reads its request, calls one function of [`crate::jobs`] and writes the answer. All errors are
//! problem documents (RFC 9457), those of the framework too: see [`Problem`]. The OpenAPI document is made from the same
//! list of routes.

mod docs;
mod health;
mod metrics;
mod openapi;
mod page;
mod problems;
mod request;
mod resources;
mod response;
mod server;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderName;
use axum::middleware;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::trace::TraceLayer;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::jobs::Jobs;
use crate::limits::shorten;

use metrics::Metrics;
use request::parameters::Known;
use request::slots::Slots;
use request::uploads::Uploads;
use response::response_cache::ResponseCache;
use server::access::AccessPolicy;

pub use openapi::{openapi, openapi_yaml};
pub use response::problem::{Code, Problem};
pub use server::connections::{ConnectionLimits, listen};
pub use server::hosts::{HostName, Hosts, NotAHostName};
pub use server::keys::KeyLimits;
pub use server::serve::{ListenConfig, ServeError, serve};

/// Answers of up to megabytes that are written at a time.
const LONG_ANSWERS: usize = 4;

/// What every handler may use.
#[derive(Clone)]
pub struct App(Arc<Service>);

/// The parts of the service.
pub struct Service {
    jobs: Jobs,
    /// One for each request that may wait for a fit to end.
    waiters: Slots,
    /// One for each client that may follow a fit.
    followers: Slots,
    /// One permit for each look at this machine's GPUs, which starts a process.
    looks: Arc<Semaphore>,
    /// One permit for each answer of up to megabytes that is written.
    long_answers: Arc<Semaphore>,
    uploads: Uploads,
    response_cache: ResponseCache,
    metrics: Metrics,
}

impl std::ops::Deref for App {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.0
    }
}

/// The whole service, in memory, as it is on loopback.
pub fn router(jobs: Jobs) -> Router {
    let limits = ConnectionLimits::default();
    let gate = AccessPolicy::new(Hosts::default(), None, CancellationToken::new(), limits);
    gated(jobs, gate, limits.waiters())
}

/// The whole service behind its gate; so many requests may wait for a fit to end.
fn gated(jobs: Jobs, gate: AccessPolicy, waiters: usize) -> Router {
    let (router, api) = routes().split_for_parts();
    let metrics = Metrics::default();
    let request_id = HeaderName::from_static("x-request-id");
    // The first of these sees a request first and its response last.
    let around = tower::ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(
            TraceLayer::new_for_http()
                .make_span_with(move |request: &Request| {
                    let id = request.headers().get(&request_id);
                    tracing::info_span!(
                        "request",
                        // As long as a client likes, and on every line that is logged of the request.
                        request_id =
                            shorten(id.and_then(|id| id.to_str().ok()).unwrap_or_default()),
                        method = shorten(request.method().as_str()),
                        path = shorten(request.uri().path()),
                        // The name of the key, once it is known whose it is.
                        key = tracing::field::Empty,
                    )
                })
                .on_failure(response::problem::log_failure),
        )
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(CompressionLayer::new())
        .layer(middleware::map_response(
            response::problem::speak_one_language,
        ));
    router
        .layer(middleware::from_fn_with_state(
            Known::of(&api),
            request::parameters::read,
        ))
        .layer(middleware::from_fn(response::etag::mark))
        .layer(CatchPanicLayer::custom(response::problem::panicked))
        .layer(middleware::from_fn_with_state(
            gate,
            server::access::authorize,
        ))
        .layer(middleware::from_fn_with_state(
            metrics.clone(),
            metrics::observe,
        ))
        .layer(around)
        .with_state(App(Arc::new(Service {
            uploads: Uploads::new(jobs.large_models(), jobs.db().folder()),
            jobs,
            waiters: Slots::new(waiters),
            followers: Slots::new(waiters),
            looks: Arc::new(Semaphore::new(1)),
            long_answers: Arc::new(Semaphore::new(LONG_ANSWERS)),
            response_cache: ResponseCache::default(),
            metrics,
        })))
}

/// Everything that can be asked.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::Description::openapi())
        // What is the largest batch?
        .routes(routes!(
            resources::fits::create_fit,
            resources::fits::list_fits
        ))
        .routes(routes!(
            resources::fits::get_fit,
            resources::fits::cancel_fit
        ))
        .routes(routes!(resources::events::get_fit_events))
        .routes(routes!(resources::events::get_events))
        .routes(routes!(response::formats::get_fit_format))
        // Does this batch fit?
        .routes(routes!(resources::probes::create_probe))
        .routes(routes!(resources::probes::get_probe))
        // Which batch shall I try next?
        .routes(routes!(resources::searches::create_search))
        .routes(routes!(
            resources::searches::get_search,
            resources::searches::cancel_search
        ))
        .routes(routes!(resources::searches::create_observation))
        // Files that requests name.
        .routes(routes!(
            resources::graphs::create_graph,
            resources::graphs::list_graphs
        ))
        .routes(routes!(
            resources::graphs::put_graph,
            resources::graphs::get_graph,
            resources::graphs::delete_graph
        ))
        // What would this recording have taken?
        .routes(routes!(resources::replays::create_replay))
        // What has been found so far?
        .routes(routes!(resources::recommendations::list_recommendations))
        .routes(routes!(resources::recommendations::get_recommendation))
        .routes(routes!(
            resources::recommendations::get_nearest_recommendation
        ))
        .routes(routes!(resources::recommendations::create_refresh))
        // What came of it?
        .routes(routes!(
            resources::outcomes::create_outcome,
            resources::outcomes::list_outcomes
        ))
        .routes(routes!(resources::outcomes::list_accuracy))
        // What came of scripts on a virtual GPU?
        .routes(routes!(resources::runs::list_runs))
        .routes(routes!(resources::runs::get_run))
        .routes(routes!(resources::runs::get_run_step))
        // What can be asked about?
        .routes(routes!(resources::catalogue::list_devices))
        .routes(routes!(resources::catalogue::list_cards))
        .routes(routes!(resources::catalogue::list_machines))
        .routes(routes!(resources::catalogue::list_presets))
        // Who works on other machines?
        .routes(routes!(
            resources::agents::list_agents,
            resources::agents::create_agent
        ))
        .routes(routes!(
            resources::agents::get_agent,
            resources::agents::change_agent,
            resources::agents::delete_agent
        ))
        .routes(routes!(resources::agents::jobs::create_claim))
        .routes(routes!(resources::agents::jobs::get_job_request))
        .routes(routes!(resources::agents::jobs::create_progress))
        .routes(routes!(resources::agents::jobs::put_result))
        // Is the service well?
        .routes(routes!(health::get_health))
        .routes(routes!(health::get_readiness))
        .routes(routes!(metrics::get_metrics))
        // What is all this?
        .routes(routes!(openapi::get_openapi))
        .routes(routes!(docs::get_docs))
        .routes(routes!(problems::list_problems))
        .routes(routes!(problems::get_problem))
        // The same for people, in a browser.
        .merge(page::routes())
        .fallback(response::problem::no_such_route)
}
