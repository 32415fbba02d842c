//! How long uploads are kept, and what they may take.

use std::sync::Arc;

use batchfit::jobs::{Limits, UploadLimits};
use batchfit::store::{Db, Time};
use sqlx::migrate::Migrator;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Executor as _};
use tempfile::TempDir;

use super::super::scripted::{Gate, Scripted};
use super::super::storage::second_connection;
use super::super::{Answer, Service};
use super::{digest, golden, graph, gunzip, gzip, naming};

/// Drops what has expired by the end of time, and says how much that is.
async fn expire(service: &Service) -> u64 {
    let db = service.jobs.db();
    db.sweep_uploads(Time(i64::MAX), 16).await.unwrap()
}

#[tokio::test]
async fn what_nothing_refers_to_expires() {
    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;
    let used = service.upload(graph()).await;
    let fit = service.post("/v1/fits", naming(&used)).await;
    assert_eq!(fit.status, 202, "{}", fit.text);
    gate.arrival().await;
    let unused = service.upload(golden("exported/mlp-small.pt2")).await;

    assert_eq!(expire(&service).await, 1);

    let gone = service.get(&format!("/v1/graphs/{unused}")).await;
    assert_eq!(gone.status, 404, "{}", gone.text);
    let kept = service.get(&format!("/v1/graphs/{used}")).await.json();
    assert_eq!(kept["in_use"], true, "{kept}");
    assert!(kept["expires_at"].is_null());
    gate.open();
    service.ended(&fit.id()).await;
    // The answer refers to it.
    assert_eq!(expire(&service).await, 0);
    let kept = service.get(&format!("/v1/graphs/{used}")).await;
    assert_eq!(kept.json()["in_use"], false, "{}", kept.text);
    // And one that is named again has to be sent again.
    let refused = service.post_and_wait("/v1/fits", naming(&unused)).await;
    assert_eq!(refused.json()["type"], "/problems/upload-unknown");
    service.upload(golden("exported/mlp-small.pt2")).await;
}

#[tokio::test]
async fn what_a_fit_needs_is_not_deleted() {
    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;
    let named = service.upload(graph()).await;
    let path = format!("/v1/graphs/{named}");
    let fit = service.post("/v1/fits", naming(&named)).await;
    gate.arrival().await;

    let refused = service.delete(&path).await;
    assert_eq!(refused.status, 409, "{}", refused.text);
    assert_eq!(refused.json()["type"], "/problems/upload-in-use");

    service.delete(fit.header("location")).await;
    assert_eq!(service.delete(&path).await.status, 204);
}

#[tokio::test]
async fn a_fit_by_name_survives_the_end_of_its_server() {
    let gate = Gate::closed();
    let first = Service::start(Scripted::behind(&gate)).await;
    let named = first.upload(graph()).await;
    let fit = first.post("/v1/fits", naming(&named)).await;
    gate.arrival().await;

    let second = first.after_a_crash(Scripted::default()).await;
    let done = second.post_and_wait("/v1/fits", naming(&named)).await;

    assert_eq!(done.id(), fit.id());
    assert_eq!(done.json()["state"], "done", "{}", done.text);
    let kept = second.get(&format!("/v1/graphs/{named}")).await.json();
    assert_eq!(kept["referred"], true, "{kept}");
    gate.open();
}

/// Its model is read from the database, where the graph stands under its own digest.
#[tokio::test]
async fn a_fit_with_its_graph_in_it_survives_too() {
    let gate = Gate::closed();
    let first = Service::start(Scripted::behind(&gate)).await;
    let plain = String::from_utf8(gunzip(&graph())).unwrap();
    let layers = vec![r#"{"type": "relu"}"#; 5000].join(",");
    let layers = format!(
        r#"{{"input": {{"shape": [4]}}, "layers": [{{"type": "linear", "out_features": 4}}, {layers}]}}"#
    );
    let mut ids = Vec::new();
    for model in [format!(r#"{{"exported": {plain}}}"#), layers] {
        let body = format!(r#"{{"model": {model}, "device": "sim:h200"}}"#);
        let fit = first.post("/v1/fits", body).await;
        assert_eq!(fit.status, 202, "{}", fit.text);
        assert!(fit.text.len() < 1000, "{}", fit.text);
        ids.push(fit.id());
        gate.arrival().await;
    }

    let second = first.after_a_crash(Scripted::default()).await;

    for id in ids {
        let done = second.ended(&id).await;
        assert_eq!(done["state"], "done", "{done}");
    }
    gate.open();
}

#[tokio::test]
async fn uploads_together_take_no_more_than_they_may() {
    let file = graph();
    let limits = Limits {
        uploads: UploadLimits {
            bytes: u64::try_from(file.len()).unwrap() + 8192,
            ..UploadLimits::USUAL
        },
        ..Limits::default()
    };
    let service = Service::limited(Scripted::default(), limits).await;
    let named = service.upload(file.clone()).await;
    let other = golden("exported/vit.json.gz");

    let refused = service.put(&digest(&other), other.clone()).await;

    assert_eq!(refused.status, 507, "{}", refused.text);
    assert_eq!(refused.json()["type"], "/problems/uploads-full");
    assert_eq!(service.post("/v1/graphs", file).await.status, 200);
    // Fits with their graphs in them are answered all the same.
    let plain = String::from_utf8(gunzip(&other)).unwrap();
    let body = format!(r#"{{"model": {{"exported": {plain}}}, "device": "sim:h200"}}"#);
    let fit = service.post_and_wait("/v1/fits", body).await;
    assert_eq!(fit.json()["state"], "done", "{}", fit.text);
    service.delete(&format!("/v1/graphs/{named}")).await;
    let small = gzip(&gunzip(&golden("exported/mlp.json.gz")));
    assert_eq!(service.post("/v1/graphs", small).await.status, 201);
}

/// A database of the version before uploads, in which a fit waits whose model was put aside.
#[tokio::test]
async fn models_that_an_older_version_put_aside_are_taken_over() {
    let directory = Arc::new(TempDir::new().unwrap());
    let file = directory.path().join("batchfit.db");
    let migrations = directory.path().join("migrations");
    std::fs::create_dir(&migrations).unwrap();
    let all = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    for entry in std::fs::read_dir(all).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if name.to_str().unwrap() < "0004" {
            std::fs::copy(&path, migrations.join(name)).unwrap();
        }
    }
    let options = SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true);
    let mut old = options.connect().await.unwrap();
    Migrator::new(migrations.as_path())
        .await
        .unwrap()
        .run(&mut old)
        .await
        .unwrap();
    let plain = gunzip(&graph());
    let named = digest(&plain);
    let digits = named.strip_prefix("sha256:").unwrap();
    let model = [b"{\"exported\": ", &plain[..], b"}"].concat();
    let row = sqlx::query("INSERT INTO model (digest, gzip, created_at) VALUES (?1, ?2, 1)");
    row.bind(digits)
        .bind(gzip(&model))
        .execute(&mut old)
        .await
        .unwrap();
    let request = naming(&named);
    let row = sqlx::query(
        "INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, request, created_at)
         VALUES ('1', 'f', '0.1.0', 'queued', 'm', 'sim:h200', 'simulated', ?1, 1)",
    );
    row.bind(&request).execute(&mut old).await.unwrap();
    drop(old);

    let service = Service::on(directory, Scripted::default(), Limits::default()).await;

    let done = service.ended("1").await;
    assert_eq!(done["state"], "done", "{done}");
    // Uploaded, it is a graph like any other.
    assert_eq!(service.put(&named, plain).await.status, 201);
    let fit = service.post_and_wait("/v1/fits", request).await;
    assert_eq!(fit.json()["state"], "done", "{}", fit.text);
    let db: &Db = service.jobs.db();
    assert!(db.fit("1").await.unwrap().is_some());
}

#[tokio::test]
async fn a_file_that_is_dropped_as_it_comes_was_kept() {
    let service = Service::start(Scripted::default()).await;
    let file = gunzip(&graph());
    let kept = service.put(&digest(&file), file.clone()).await;
    let gone = service
        .delete(&format!("/v1/graphs/{}", digest(&file)))
        .await;
    assert_eq!((kept.status, gone.status), (201, 204));
    let mut other = second_connection(&service).await;
    let drop = "CREATE TRIGGER gone AFTER INSERT ON upload BEGIN DELETE FROM upload WHERE digest = NEW.digest; END";
    other.execute(drop).await.unwrap();

    let dropped = service.put(&digest(&file), file).await;

    assert_eq!(dropped.status, 201, "{}", dropped.text);
    let said = |answer: &Answer| {
        [
            answer.json()["digest"].clone(),
            answer.json()["bytes"].clone(),
            answer.json()["kind"].clone(),
        ]
    };
    assert_eq!(said(&dropped), said(&kept));
}
