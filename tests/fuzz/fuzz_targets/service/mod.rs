//! The service in memory: the router, on a database that is made again now and then, with an engine that answers no fit.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use batchfit::limits::Cancel;
use batchfit::http::router;
use batchfit::jobs::{
    Catalogue, Engine, EngineError, FitResult, Isolation, Jobs, Limits, Work,
};
use batchfit::model::Request as Question;
use batchfit::probe::{Detail, ProbeReport};
use batchfit::store::Db;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// So many requests go to one database.
const TURNS: u32 = 256;

/// No answer that has ended takes longer.
const PATIENCE: Duration = Duration::from_mins(2);

struct NoEngine(Catalogue);

fn failed() -> EngineError {
    EngineError::DeviceFailed {
        device: "sim:h200".to_owned(),
        cause: "nobody works here".to_owned(),
    }
}

impl Engine for NoEngine {
    fn catalogue(&self) -> &Catalogue {
        &self.0
    }

    fn fit(&self, _: &Question, _: Isolation, _: &Work<'_>) -> Result<FitResult, EngineError> {
        Err(failed())
    }

    fn probe(
        &self,
        _: &Question,
        _: u64,
        _: Detail,
        _: &Cancel,
    ) -> Result<ProbeReport, EngineError> {
        Err(failed())
    }
}

struct Service {
    runtime: Runtime,
    router: Router,
    shutdown: CancellationToken,
    turns: Cell<u32>,
}

impl Service {
    fn start() -> Service {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime starts");
        let shutdown = CancellationToken::new();
        let jobs = runtime.block_on(async {
            // A machine that fuzzes has little time for anything else.
            let db = loop {
                if let Ok(db) = Db::open_for_one("sqlite::memory:").await {
                    break db;
                }
            };
            let engine = Arc::new(NoEngine(Catalogue::without_gpus("nobody works here")));
            Jobs::start(db, engine, Limits::default(), shutdown.clone())
                .await
                .expect("jobs start")
        });
        Service {
            runtime,
            router: router(jobs),
            shutdown,
            turns: Cell::new(TURNS),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

thread_local! {
    static SERVICE: RefCell<Option<Service>> = const { RefCell::new(None) };
}

/// Sends a request, and reads its answer, which is never a fault of the service. Gives its status and its body.
pub fn send(request: Request<Body>) -> (u16, Vec<u8>) {
    SERVICE.with_borrow_mut(|service| {
        if service
            .as_ref()
            .is_some_and(|service| service.turns.get() == 0)
        {
            *service = None;
        }
        let service = service.get_or_insert_with(Service::start);
        service.turns.set(service.turns.get() - 1);
        let asked = format!("{} {}", request.method(), request.uri());
        let answering = async {
            let response = service
                .router
                .clone()
                .oneshot(request)
                .await
                .expect("it cannot fail");
            let (parts, body) = response.into_parts();
            let streams = parts
                .headers
                .get("content-type")
                .is_some_and(|kind| kind == "text/event-stream");
            let body = if streams {
                Vec::new()
            } else {
                to_bytes(body, usize::MAX)
                    .await
                    .expect("it is whole")
                    .to_vec()
            };
            (parts.status.as_u16(), body)
        };
        let (status, body) = service
            .runtime
            .block_on(async { tokio::time::timeout(PATIENCE, answering).await })
            .unwrap_or_else(|_| panic!("{asked} gets no answer"));
        assert!(
            status != 500,
            "{asked} gets {status}: {}",
            String::from_utf8_lossy(&body)
        );
        (status, body)
    })
}
