//! `/metrics`: how the service does, in numbers, for Prometheus; and the access log.
//!
//! Requests are counted where they are answered, fits where they stand in the database, and the process by the system. No
//! label has a value that a client chooses.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::App;
use crate::http::response::problem::Problem;

/// What Prometheus asks for.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of the classes of durations, in seconds: reads take a fraction of a millisecond, fits minutes.
const SECONDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 600.0,
];

/// What is told apart of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    /// As in openapi.yaml; `other` where there is no such path.
    route: String,
    status: u16,
}

/// One label, with its value.
type Label<T> = [(&'static str, T); 1];

/// The counters of a service. Cloning them shares them.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    registry: Arc<Registry>,
    requests: Family<Answered, Counter>,
    durations: Family<Label<String>, Histogram, fn() -> Histogram>,
    under_way: Gauge,
    /// Answers to POST /v1/fits that came from the cache.
    pub(super) hits: Counter,
    fits: Family<Label<&'static str>, Gauge>,
    recommendations: Gauge,
    outcomes: Family<Label<&'static str>, Gauge>,
    learnt: Gauge,
    ready: Gauge,
    resident: Gauge,
    open_files: Gauge,
    threads: Gauge,
}

/// A metric of this name, which the registry shows.
fn shown<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut all = Registry::default();
        let one = all.sub_registry_with_prefix("batchfit");
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        one.register("build", "The version that runs", version);
        let requests = shown(one, "http_requests", "Requests that were answered");
        let durations = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> _);
        let lasting = "From the head of a request to the head of its answer";
        let (name, unit) = ("http_request_duration", Unit::Seconds);
        one.register_with_unit(name, lasting, unit, durations.clone());
        let under_way = shown(one, "http_requests_under_way", "Requests without an answer");
        let at_hand = "Fits whose answer was sent again without reading the request";
        let hits = shown(one, "fits_at_hand", at_hand);
        let fits = shown(one, "fits", "Fits that wait or run");
        let recommendations = shown(one, "recommendations", "Stored recommendations");
        let told =
            "Trainings that were told of: learnt from, and as predicted or a miss, or doubted";
        let outcomes = shown(one, "outcomes", told);
        let known = "Models on cards of which something is known";
        let learnt = shown(one, "learnt", known);
        let ready = shown(one, "ready", "1 where /readyz is 200");
        let process = all.sub_registry_with_prefix("process");
        let (name, resident) = ("resident_memory", Gauge::default());
        process.register_with_unit(name, "Resident memory", Unit::Bytes, resident.clone());
        let open_files = shown(process, "open_fds", "Open files");
        let threads = shown(process, "threads", "Threads");
        Metrics {
            registry: Arc::new(all),
            requests,
            durations,
            under_way,
            hits,
            fits,
            recommendations,
            outcomes,
            learnt,
            ready,
            resident,
            open_files,
            threads,
        }
    }
}

/// Counts a request, and says in the log how it was answered.
pub(super) async fn observe(
    State(metrics): State<Metrics>,
    request: Request,
    next: Next,
) -> Response {
    let method = match request.method().as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        _other => "OTHER",
    };
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map_or("other", MatchedPath::as_str).to_owned();
    let under_way = InFlight::begin(&metrics.under_way);
    let begun = Instant::now();
    let response = next.run(request).await;
    drop(under_way);
    let took = begun.elapsed();
    let status = response.status().as_u16();
    tracing::info!(
        target: "batchfit::access",
        status,
        duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        "answered with {status}"
    );
    let durations = metrics.durations.get_or_create(&[("route", route.clone())]);
    durations.observe(took.as_secs_f64());
    // It is locked while it is held.
    drop(durations);
    let answered = Answered {
        method,
        route,
        status,
    };
    metrics.requests.get_or_create(&answered).inc();
    response
}

/// A request without an answer, also one whose client goes away.
struct InFlight(Gauge);

impl InFlight {
    fn begin(under_way: &Gauge) -> InFlight {
        under_way.inc();
        InFlight(under_way.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Get what there is to be watched.
///
/// In the text format that Prometheus reads. `deploy/grafana.json` shows it.
#[utoipa::path(get, path = "/metrics", tag = "service",
    responses((status = 200, body = String, content_type = "application/openmetrics-text", description = "Counters, gauges and histograms")))]
pub(super) async fn get_metrics(State(app): State<App>) -> Result<Response, Problem> {
    let metrics = &app.metrics;
    let counted = app.jobs.db().counted().await?;
    for (state, count) in [("queued", counted.queued), ("running", counted.running)] {
        metrics.fits.get_or_create(&[("state", state)]).set(count);
    }
    metrics.recommendations.set(counted.recommendations);
    let learnt = app.jobs.db().learnt_count().await?;
    for (result, count) in [
        ("as_predicted", learnt.outcomes - learnt.misses),
        ("miss", learnt.misses),
        ("doubted", learnt.doubted),
    ] {
        let outcomes = metrics.outcomes.get_or_create(&[("result", result)]);
        outcomes.set(count);
    }
    metrics.learnt.set(learnt.models);
    let ready = i64::from(app.jobs.is_ready().await.is_ok());
    metrics.ready.set(ready);
    metrics.look_at_process();
    let mut text = String::new();
    encode(&mut text, &metrics.registry).expect("a string takes what is written to it");
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}

impl Metrics {
    /// Asks the system about the process; where it is not Linux, nothing is known.
    fn look_at_process(&self) {
        // Files that the system makes up, in microseconds.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number
                .and_then(|number| number.parse::<i64>().ok())
                .unwrap_or(0)
        };
        self.resident.set(number("VmRSS:") << 10);
        self.threads.set(number("Threads:"));
        let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        self.open_files.set(i64::try_from(files).unwrap_or(0));
    }
}
