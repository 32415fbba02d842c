//! A database that does not take what is written, and one that an older version filled.

use batchfit::jobs::Limits;
use batchfit::store::{Db, FitTerms, JsonText, NewFit, StoredRecommendation, Time};
use serde_json::json;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Executor as _};

use super::scripted::{Gate, Scripted};
use super::{RESNET, RESNET_8, Service};
use crate::wait;

/// The fingerprint of [`RESNET`] by the version before fingerprints named the rules that they are made by.
const OLD_FINGERPRINT: &str = "1b8eeec528f57fabaffc9d74c5fd9d277b2553b67887f676dc41e40c23a4f54e";

/// Somebody else who uses the service's database.
pub(super) async fn second_connection(service: &Service) -> SqliteConnection {
    let file = service.directory.path().join("batchfit.db");
    SqliteConnectOptions::new()
        .filename(file)
        .connect()
        .await
        .unwrap()
}

/// Asks until the service is (not) ready.
async fn until_readiness_is(service: &Service, status: u16) {
    wait::until_async(&format!("/readyz to say {status}"), async || {
        service.get("/readyz").await.status == status
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_cannot_be_stored_is_stored_as_soon_as_it_can() {
    let service = Service::start(Scripted::default()).await;
    let mut other = second_connection(&service).await;
    other
        .execute(
            "CREATE TRIGGER full BEFORE UPDATE ON fit WHEN NEW.state = 'done'
             BEGIN SELECT RAISE(ABORT, 'the disk is full'); END",
        )
        .await
        .unwrap();
    let fit = service.post("/v1/fits", RESNET).await;

    until_readiness_is(&service, 503).await;
    let kept = service.get(fit.header("location")).await.json();
    assert_eq!(kept["state"], "running");
    other.execute("DROP TRIGGER full").await.unwrap();

    let done = service.post_and_wait("/v1/fits", RESNET).await;
    assert_eq!(done.id(), fit.id());
    assert_eq!(done.json()["state"], "done");
    until_readiness_is(&service, 200).await;
    assert_eq!(
        service.post_and_wait("/v1/fits", RESNET_8).await.json()["state"],
        "done"
    );
}

#[tokio::test]
async fn an_answer_that_the_table_refuses_fails_its_fit_and_no_other() {
    let service = Service::start(Scripted::default()).await;
    let mut other = second_connection(&service).await;
    // A value that its column does not hold, however often it is tried.
    other
        .execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON recommendation WHEN NEW.limit_bytes > 0
             BEGIN UPDATE fit SET attempts = -1 WHERE id = NEW.fit_id; END",
        )
        .await
        .unwrap();

    let failed = service.post_and_wait("/v1/fits", RESNET).await.json();
    assert_eq!(failed["state"], "failed");
    assert_eq!(failed["error"]["code"], "internal");
    other.execute("DROP TRIGGER refuse").await.unwrap();

    let done = service.post_and_wait("/v1/fits", RESNET).await.json();
    assert_eq!(done["state"], "done");
}

#[tokio::test]
async fn a_running_fit_without_a_lease_is_queued_again() {
    let gate = Gate::closed();
    let limits = Limits {
        queued: 10,
        simulated_in_parallel: 1,
        ..Limits::default()
    };
    let service = Service::limited(Scripted::behind(&gate), limits).await;
    service.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let lost = service.post("/v1/fits", RESNET_8).await;
    // As if a claim had been stored and its confirmation lost.
    second_connection(&service)
        .await
        .execute(
            "UPDATE fit SET (state, started_at, attempts, holder, lease_until) =
                    (SELECT state, started_at, attempts, holder, lease_until FROM fit WHERE state = 'running')
              WHERE state = 'queued'",
        )
        .await
        .unwrap();

    gate.open();

    let done = service.post_and_wait("/v1/fits", RESNET_8).await;
    assert_eq!(done.id(), lost.id());
    assert_eq!(done.json()["state"], "done");
}

#[tokio::test]
async fn a_database_that_can_only_be_read_is_not_ready() {
    let service = Service::start(Scripted::default()).await;
    let mut other = second_connection(&service).await;
    until_readiness_is(&service, 200).await;

    other
        .execute(
            "CREATE TRIGGER full BEFORE UPDATE ON readiness
             BEGIN SELECT RAISE(ABORT, 'the disk is full'); END",
        )
        .await
        .unwrap();

    until_readiness_is(&service, 503).await;
    assert_eq!(service.get("/healthz").await.status, 200);
    other.execute("DROP TRIGGER full").await.unwrap();
    until_readiness_is(&service, 200).await;
}

#[tokio::test]
async fn answers_of_older_rules_are_kept_and_not_served() {
    let service = Service::start(Scripted::default()).await;
    let asked = Time(1_700_000_000_000);
    let old = NewFit {
        owner: String::new(),
        id: "0000000000000000".to_owned(),
        fingerprint: OLD_FINGERPRINT.to_owned(),
        batchfit_version: env!("CARGO_PKG_VERSION").to_owned(),
        model: "resnet18".to_owned(),
        model_digest: String::new(),
        taught: JsonText::from("[]"),
        device: "sim:h200".to_owned(),
        lane: "simulated".to_owned(),
        request: JsonText::from(RESNET),
        uploads: Vec::new(),
        aside: None,
        terms: FitTerms::default(),
        key: None,
        created_at: asked,
    };
    let answer = json!({ "recommendation": { "micro_batch": 1, "fits": true } });
    let no_rows: &[StoredRecommendation] = &[];
    let file = service.directory.path().join("batchfit.db");
    let db = Db::open(file.to_str().unwrap()).await.unwrap();
    db.record(&old, &answer, no_rows, asked).await.unwrap();

    let first = service.post_and_wait("/v1/fits", RESNET).await;
    let second = service.post_and_wait("/v1/fits", RESNET).await;

    assert_ne!(first.id(), old.id);
    assert_eq!(first.json()["result"]["recommendation"]["micro_batch"], 256);
    assert_eq!(second.id(), first.id(), "answers of these rules are served");
    let kept = service.get("/v1/fits/0000000000000000").await.json();
    assert_eq!(kept["result"], answer);
}
