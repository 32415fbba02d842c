//! Searches whose batches somebody else runs.

use std::sync::Arc;

use batchfit::http::router;
use batchfit::jobs::Limits;
use batchfit::search::ask_tell::{Observation, Outcome};
use batchfit::store::{ObservationStatus, SearchBounds, Time};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::scripted::Scripted;
use super::{Answer, Service, assert_answer};

impl Service {
    /// Begins a search, and gives its path.
    async fn search(&self, terms: &Value) -> String {
        let begun = self.post("/v1/searches", terms.to_string()).await;
        assert_eq!(begun.status, 201, "{}", begun.text);
        assert_eq!(begun.json()["state"], "active");
        assert!(begun.json()["recommendation"].is_null());
        let path = begun.header("location").to_owned();
        assert_eq!(path, format!("/v1/searches/{}", begun.id()));
        path
    }

    async fn tell(&self, search: &str, observation: &Value) -> Answer {
        let path = format!("{search}/observations");
        self.post(&path, observation.to_string()).await
    }

    /// Runs what is proposed until there is an answer; gives the batches that ran.
    async fn follow(&self, search: &str, run: impl Fn(u64) -> Value) -> (Vec<u64>, Value) {
        let mut ran = Vec::new();
        let mut now = self.get(search).await.json();
        while let Some(batch) = now["next_batch"].as_u64() {
            assert_eq!(now["state"], "active");
            assert!(ran.len() < 40, "no end: {ran:?}");
            ran.push(batch);
            let told = self.tell(search, &run(batch)).await;
            assert_eq!(told.status, 201, "{}", told.text);
            now = told.json();
        }
        assert_eq!(now["state"], "done");
        assert_eq!(now["observations"].as_array().unwrap().len(), ran.len());
        (ran, now)
    }
}

fn fits_up_to(largest: u64) -> impl Fn(u64) -> Value {
    move |batch| {
        let outcome = if batch <= largest {
            "fits"
        } else {
            "out_of_memory"
        };
        json!({"batch": batch, "outcome": outcome})
    }
}

#[tokio::test]
async fn a_search_by_verdicts_ends_at_the_largest() {
    let service = Service::start(Scripted::default()).await;
    let search = service.search(&json!({})).await;

    let (ran, done) = service.follow(&search, fits_up_to(21)).await;

    assert_eq!(ran[..6], [1, 2, 4, 8, 16, 32]);
    assert_eq!(done["recommendation"]["micro_batch"], 21);
    assert_eq!(done["recommendation"]["evidence"], "trained");
    assert_eq!(service.get(&search).await.json(), done);
    assert_answer!(service.get(&search).await);
}

#[tokio::test]
async fn a_search_by_bytes_runs_out_of_memory_never() {
    let service = Service::start(Scripted::default()).await;
    let terms = json!({"memory_limit": "12GiB", "target_batch": 4096, "world_size": 2});
    let search = service.search(&terms).await;
    let run = |batch: u64| {
        let bytes = (1_500_u64 << 20) + batch * (37 << 20);
        assert!(bytes <= 12 << 30, "{batch} does not fit");
        json!({"batch": batch, "outcome": "fits", "peak_reserved_bytes": bytes})
    };

    let (ran, done) = service.follow(&search, run).await;

    let found = &done["recommendation"];
    assert!(ran.is_sorted() || ran.last() == Some(&256), "{ran:?}");
    assert_eq!(found["max_batch_without_retries"], 291);
    assert_eq!(
        (&found["micro_batch"], &found["accumulation_steps"]),
        (&json!(256), &json!(8))
    );
    assert_eq!(found["global_batch"], 4096);
    assert_eq!(found["limit_bytes"], 12_u64 << 30);
    let limited_by = found["limited_by"].as_str().unwrap();
    assert!(
        limited_by.starts_with("batch 292 would reserve about 12.0"),
        "{limited_by}"
    );
}

#[tokio::test]
async fn the_same_observation_twice_counts_once_and_contradictions_are_noted() {
    let service = Service::start(Scripted::default()).await;
    let search = service.search(&json!({"start_batch": 8})).await;
    let fits = json!({"batch": 8, "outcome": "fits", "peak_reserved_bytes": 5});

    let first = service.tell(&search, &fits).await;
    let again = service.tell(&search, &fits).await;

    assert_eq!((first.status, again.status), (201, 200));
    assert_eq!(
        again.json()["observations"],
        json!([{
            "batch": 8, "outcome": "fits", "peak_reserved_bytes": 5, "recorded": null
        }])
    );
    assert_eq!(again.json()["next_batch"], 16);
    // Noise: it counts as not fitting.
    let noise = service
        .tell(&search, &json!({"batch": 8, "outcome": "out_of_memory"}))
        .await;
    assert_eq!(noise.status, 201);
    assert_eq!(noise.json()["next_batch"], 4);
    let (_, done) = service.follow_on(&search, fits_up_to(7)).await;
    let notes = done["recommendation"]["notes"].to_string();
    assert!(
        notes.contains("batch 8 was told to fit and to run out of memory"),
        "{notes}"
    );
    assert_eq!(done["recommendation"]["micro_batch"], 7);
}

impl Service {
    /// The same for a search that was told something already.
    async fn follow_on(&self, search: &str, run: impl Fn(u64) -> Value) -> (Vec<u64>, Value) {
        let mut ran = Vec::new();
        loop {
            let now = self.get(search).await.json();
            let Some(batch) = now["next_batch"].as_u64() else {
                return (ran, now);
            };
            ran.push(batch);
            assert!(ran.len() < 40, "no end: {ran:?}");
            self.tell(search, &run(batch)).await;
        }
    }
}

#[tokio::test]
async fn three_crashes_in_a_row_end_a_search_with_a_statement() {
    let service = Service::start(Scripted::default()).await;
    let search = service.search(&json!({})).await;
    service
        .tell(&search, &json!({"batch": 1, "outcome": "fits"}))
        .await;

    let (ran, done) = service
        .follow_on(
            &search,
            |batch| json!({"batch": batch, "outcome": "crashed"}),
        )
        .await;

    assert_eq!(ran.len(), 3);
    assert_eq!(done["state"], "done");
    let limited_by = done["recommendation"]["limited_by"].as_str().unwrap();
    assert!(
        limited_by.starts_with("crashes: 3 runs in a row"),
        "{limited_by}"
    );
    assert_eq!(done["recommendation"]["micro_batch"], 1);
}

#[tokio::test]
async fn searches_survive_a_restart() {
    let first = Service::start(Scripted::default()).await;
    let search = first
        .search(&json!({"max_batch": 500, "allocator": "expandable_segments:True"}))
        .await;
    for batch in [1, 2, 4] {
        first.tell(&search, &fits_up_to(100)(batch)).await;
    }
    let before = first.get(&search).await.json();
    first.stop().await;

    let second = first.after_a_crash(Scripted::default()).await;

    assert_eq!(second.get(&search).await.json(), before);
    assert_eq!(before["next_batch"], 8);
    let (_, done) = second.follow_on(&search, fits_up_to(100)).await;
    assert_eq!(done["recommendation"]["micro_batch"], 100);
}

#[tokio::test]
async fn launchers_tell_at_the_same_time() {
    let service = Service::start(Scripted::default()).await;
    let search = service.search(&json!({})).await;
    // Two servers' worth of launchers: on one database, through two routers.
    let other = Service::on(
        Arc::clone(&service.directory),
        Scripted::default(),
        Limits::default(),
    )
    .await;
    let mut telling = JoinSet::new();
    for index in 0..20_u64 {
        let jobs = if index % 2 == 0 {
            &service.jobs
        } else {
            &other.jobs
        };
        let teller = Service {
            router: router(jobs.clone()),
            jobs: jobs.clone(),
            shutdown: tokio_util::sync::CancellationToken::new(),
            directory: Arc::clone(&service.directory),
            limits: service.limits,
        };
        let search = search.clone();
        // Each of ten observations twice.
        let observation = fits_up_to(6)(1 + index % 10);
        telling.spawn(async move { teller.tell(&search, &observation).await.status });
    }
    let mut statuses = telling.join_all().await;
    statuses.sort_unstable();

    assert_eq!(statuses[..10], [200; 10]);
    assert_eq!(statuses[10..], [201; 10]);
    let now = service.get(&search).await.json();
    assert_eq!(now["observations"].as_array().unwrap().len(), 10);
    assert_eq!(now["state"], "done");
    assert_eq!(now["recommendation"]["micro_batch"], 6);
}

#[tokio::test]
async fn a_cancelled_search_is_told_nothing_more_and_a_done_one_is_not_cancelled() {
    let service = Service::start(Scripted::default()).await;
    let search = service.search(&json!({})).await;
    service.tell(&search, &fits_up_to(9)(4)).await;

    let cancelled = service.delete(&search).await;

    assert_eq!(cancelled.status, 200);
    assert_eq!(cancelled.json()["state"], "cancelled");
    assert!(cancelled.json()["next_batch"].is_null());
    // What is known so far.
    assert_eq!(cancelled.json()["recommendation"]["micro_batch"], 4);
    assert_eq!(service.delete(&search).await.json(), cancelled.json());
    let refused = service.tell(&search, &fits_up_to(9)(8)).await;
    assert_eq!(
        (refused.status, &refused.json()["type"]),
        (409, &json!("/problems/search-ended"))
    );

    let search = service.search(&json!({"max_batch": 1})).await;
    service.tell(&search, &fits_up_to(9)(1)).await;
    let refused = service.delete(&search).await;
    assert_eq!(
        (refused.status, &refused.json()["type"]),
        (409, &json!("/problems/search-ended"))
    );
    // Late news are taken all the same.
    let told = service
        .tell(&search, &json!({"batch": 1, "outcome": "out_of_memory"}))
        .await;
    assert_eq!(told.json()["recommendation"]["micro_batch"], 0);
    assert_eq!(told.json()["state"], "done");
}

#[tokio::test]
async fn what_no_search_knows_is_not_found() {
    let service = Service::start(Scripted::default()).await;
    let observation = fits_up_to(1)(1).to_string();

    for answer in [
        service.get("/v1/searches/nothing").await,
        service.delete("/v1/searches/nothing").await,
        service
            .post("/v1/searches/nothing/observations", observation)
            .await,
    ] {
        assert_eq!(answer.status, 404);
        assert_eq!(answer.json()["type"], "/problems/not-found");
    }
}

/// No less than the service allows.
const BOUNDS: SearchBounds = SearchBounds {
    of_a_key: 1_000,
    searches: 1,
    observations: 500,
    contested_ms: 0,
};

#[tokio::test]
async fn a_search_is_told_so_much_and_no_more() {
    let service = Service::start(Scripted::default()).await;
    let search = service.search(&json!({})).await;
    // All but the last two as they are kept, since each that is told is answered by all that were.
    let id = search.rsplit('/').next().unwrap();
    for batch in 1..=498 {
        let told = Observation::new(batch, Outcome::Fits);
        let noted = service
            .jobs
            .db()
            .add_observation(id, &told, BOUNDS, Time(1));
        assert_eq!(noted.await.unwrap(), ObservationStatus::New, "{batch}");
    }
    for batch in [499, 500] {
        let told = service.tell(&search, &fits_up_to(500)(batch)).await;
        assert_eq!(told.status, 201, "{batch}");
    }

    let refused = service
        .tell(&search, &json!({"batch": 501, "outcome": "fits"}))
        .await;

    assert_eq!(
        (refused.status, &refused.json()["type"]),
        (409, &json!("/problems/search-full"))
    );
    let again = service
        .tell(&search, &json!({"batch": 7, "outcome": "fits"}))
        .await;
    assert_eq!(again.status, 200);
}

#[tokio::test]
async fn hostile_bodies_are_refused_with_their_place() {
    let service = Service::start(Scripted::default()).await;
    let search = service.search(&json!({})).await;
    let observations = format!("{search}/observations");
    let deep = "[".repeat(100_000);
    let wide = format!("[{}1]", "1,".repeat(20_000));
    let long = format!("{{\"{}\": 1}}", "w".repeat(50_000));
    let huge = format!("{{\"allocator\": \"{}\"}}", "w".repeat(1 << 20));
    let settings = format!("{{\"allocator\": \"{}\"}}", "w".repeat(50_000));
    let digits = format!("{{\"max_batch\": {}}}", "9".repeat(50_000));
    for path in ["/v1/searches", &observations] {
        for body in [
            "",
            "{",
            "null",
            "[]",
            "7",
            "\"fits\"",
            "\u{feff}{",
            "{\"a\": 1, \"a\": 1}",
            "{\"batch\": 1e400}",
            "{} {}",
            &deep,
            &wide,
            &long,
            &huge,
            &settings,
            &digits,
        ] {
            let answer = service.post(path, body.to_owned()).await;
            let start: String = body.chars().take(40).collect();
            assert!(
                [400, 422, 413].contains(&answer.status),
                "{start}: {}",
                answer.text
            );
            assert!(
                answer.text.len() < 2048,
                "{start}: {} bytes",
                answer.text.len()
            );
            assert!(answer.json()["detail"].is_string());
        }
        let unreadable = service.post(path, vec![0xff, 0xfe, 0x00]).await;
        assert_eq!(unreadable.status, 400);
    }
    for (path, body, pointer) in [
        (
            "/v1/searches",
            json!({"memory_limit": "0.8"}),
            "/memory_limit",
        ),
        ("/v1/searches", json!({"max_batch": 0}), "/max_batch"),
        (
            "/v1/searches",
            json!({"model": {"preset": "resnet50"}}),
            "/model",
        ),
        ("/v1/searches", json!({"targetbatch": 5}), "/targetbatch"),
        (&observations, json!({"batch": 1}), ""),
        (
            &observations,
            json!({"batch": 1, "outcome": "oom"}),
            "/outcome",
        ),
        (
            &observations,
            json!({"batch": 1u64 << 60, "outcome": "fits"}),
            "/batch",
        ),
        (
            &observations,
            json!({"batch": 1, "outcome": "fits", "recorded": "'; DROP TABLE search"}),
            "/recorded",
        ),
    ] {
        let answer = service.post(path, body.to_string()).await;
        assert_eq!(answer.status, 422, "{body}: {}", answer.text);
        assert_eq!(answer.json()["pointer"], pointer, "{body}");
    }
    assert_answer!(
        service
            .post("/v1/searches", json!({"targetbatch": 5}).to_string())
            .await
    );
    // Nothing of it was kept.
    assert_eq!(service.get(&search).await.json()["observations"], json!([]));
}

#[tokio::test]
async fn the_largest_numbers_are_answered_at_once() {
    let service = Service::start(Scripted::default()).await;
    let search = service
        .search(&json!({"target_batch": 1_099_511_627_776_u64, "memory_limit": 1_u64 << 60}))
        .await;
    for (batch, bytes) in [(1, 1_u64), (2, 1 << 60), (1 << 24, 1 << 60), (3, 1)] {
        let observation = json!({"batch": batch, "outcome": "fits", "peak_reserved_bytes": bytes});
        let told = service.tell(&search, &observation).await;
        assert_eq!(told.status, 201, "{}", told.text);
    }
}

/// The digest of a recording of batch 512 that the service has.
async fn kept_recording(service: &Service) -> Value {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/traces/trace-cifarnet-fp32-sgd-b512.txt.gz"
    );
    let kept = service
        .post("/v1/graphs", std::fs::read(file).unwrap())
        .await;
    assert_eq!(kept.status, 201, "{}", kept.text);
    kept.json()["digest"].clone()
}

#[tokio::test]
async fn what_recordings_predict_is_the_same_however_often_a_search_is_read() {
    let service = Service::start(Scripted::default()).await;
    let search = service.search(&json!({})).await;
    let digest = kept_recording(&service).await;
    let observation = json!({"batch": 512, "outcome": "fits", "recorded": digest});
    service.tell(&search, &observation).await;

    let (first, second) = (service.get(&search).await, service.get(&search).await);

    assert_eq!((first.status, second.text), (200, first.text.clone()));
    // Something else is predicted from more.
    let more =
        json!({"batch": 512, "outcome": "fits", "peak_reserved_bytes": 1, "recorded": digest});
    service.tell(&search, &more).await;
    assert_ne!(service.get(&search).await.text, first.text);
}

#[tokio::test]
async fn a_recording_that_a_search_was_told_stays_as_long_as_it_is_needed() {
    let service = Service::start(Scripted::default()).await;
    let search = service.search(&json!({})).await;
    let digest = kept_recording(&service).await;
    let path = format!("/v1/graphs/{}", digest.as_str().unwrap());

    let observation = json!({"batch": 512, "outcome": "fits", "recorded": digest});
    let told = service.tell(&search, &observation).await;

    assert_eq!(told.status, 201, "{}", told.text);
    assert!(told.json()["observations"][0]["recorded"].is_string());
    assert_eq!(service.tell(&search, &observation).await.status, 200);
    assert_eq!(service.delete(&path).await.status, 409);
    let missing =
        json!({"batch": 9, "outcome": "fits", "recorded": format!("sha256:{}", "0".repeat(64))});
    let refused = service.tell(&search, &missing).await;
    assert_eq!(
        (refused.status, &refused.json()["pointer"]),
        (422, &json!("/recorded"))
    );
    // Nobody needs it any more.
    service.delete(&search).await;
    assert_ne!(service.delete(&path).await.status, 409);
}
