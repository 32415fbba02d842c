//! The service over HTTP: a router that reads as a table of contents, and one file for each resource.
//!
//! Handlers understand the request, call one function of [`crate::jobs`], and shape the answer. Every
//! error is a problem document (RFC 9457), also those of the framework: see [`problem`]. The OpenAPI
//! document comes out of the same list of routes.

mod body;
mod devices;
mod fits;
mod health;
mod openapi;
mod parameters;
mod prefer;
mod presets;
mod probes;
mod problem;
mod problems;
mod recommendations;
mod replays;
mod serve;
mod uploads;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderName;
use axum::middleware;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::trace::TraceLayer;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::jobs::Jobs;

use uploads::Uploads;

pub use openapi::{openapi, openapi_yaml};
pub use problem::{Code, Problem};
pub use serve::{ServeError, serve};

/// What every handler may use.
#[derive(Clone)]
pub struct App {
    jobs: Jobs,
    uploads: Uploads,
}

/// The whole service, in memory.
pub fn router(jobs: Jobs) -> Router {
    let (router, _) = routes().split_for_parts();
    let request_id = HeaderName::from_static("x-request-id");
    // The first of these sees a request first and its response last.
    let around = tower::ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(
            TraceLayer::new_for_http().make_span_with(move |request: &Request| {
                let id = request.headers().get(&request_id);
                tracing::info_span!(
                    "request",
                    request_id = id.and_then(|id| id.to_str().ok()).unwrap_or_default(),
                    method = %request.method(),
                    path = request.uri().path(),
                )
            }),
        )
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(CompressionLayer::new())
        .layer(middleware::map_response(problem::speak_one_language));
    router
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(CatchPanicLayer::custom(problem::panicked))
        .layer(around)
        .with_state(App {
            jobs,
            uploads: Uploads::default(),
        })
}

/// Everything that can be asked.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::Description::openapi())
        // What is the largest batch?
        .routes(routes!(fits::create_fit, fits::list_fits))
        .routes(routes!(fits::get_fit, fits::cancel_fit))
        // Does this batch fit?
        .routes(routes!(probes::create_probe))
        .routes(routes!(probes::get_probe))
        // What would this recording have taken?
        .routes(routes!(replays::create_replay))
        // What has been found so far?
        .routes(routes!(recommendations::list_recommendations))
        .routes(routes!(recommendations::get_recommendation))
        // What can be asked about?
        .routes(routes!(devices::list_devices))
        .routes(routes!(presets::list_presets))
        // Is the service well?
        .routes(routes!(health::get_health))
        .routes(routes!(health::get_readiness))
        // What is all this?
        .routes(routes!(openapi::get_openapi))
        .routes(routes!(problems::list_problems))
        .routes(routes!(problems::get_problem))
        .fallback(problem::no_such_route)
}
