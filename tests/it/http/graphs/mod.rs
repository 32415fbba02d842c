//! Graphs and recordings that are uploaded, and requests that name them.

mod hostile;
mod kept;
mod recorded;

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::Request;
use batchfit::model::Digest;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use super::scripted::Scripted;
use super::{Answer, Service};

/// A file of the corpus.
fn golden(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    std::fs::read(folder.join(name)).unwrap()
}

pub(super) fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    plain
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// A small graph, as a file of a user.
pub(super) fn graph() -> Vec<u8> {
    golden("exported/mlp.json.gz")
}

fn digest(file: &[u8]) -> String {
    Digest::of(file).to_string()
}

/// A request that names an upload.
fn naming(digest: &str) -> String {
    format!(r#"{{"model": {{"exported": "{digest}"}}, "device": "sim:h200"}}"#)
}

impl Service {
    async fn put(&self, digest: &str, file: Vec<u8>) -> Answer {
        let request = Request::put(format!("/v1/graphs/{digest}"));
        self.send(request.body(Body::from(file)).unwrap()).await
    }

    /// Uploads a file that is new.
    async fn upload(&self, file: Vec<u8>) -> String {
        let answer = self.post("/v1/graphs", file).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.json()["digest"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_file_is_put_described_used_and_deleted_under_its_digest() {
    let service = Service::start(Scripted::default()).await;
    let file = graph();
    let (named, path) = (digest(&file), format!("/v1/graphs/{}", digest(&file)));

    let created = service.put(&named, file.clone()).await;
    assert_eq!(created.status, 201, "{}", created.text);
    assert_eq!(created.header("location"), path);
    let document = created.json();
    assert_eq!(document["digest"], named);
    assert_eq!(document["contents"], digest(&gunzip(&file)));
    assert_eq!(document["kind"], "exported");
    assert_eq!(document["bytes"], gunzip(&file).len());
    assert!(document["nodes"].as_u64().unwrap() > 5, "{document}");
    assert_eq!(document["referred"], false);
    assert!(document["expires_at"].is_string());

    let again = service.put(&named, file.clone()).await;
    assert_eq!(again.status, 200, "{}", again.text);
    assert_eq!(again.json()["created_at"], document["created_at"]);
    assert_eq!(service.post("/v1/graphs", file).await.status, 200);
    assert_eq!(service.get(&path).await.json()["digest"], named);

    let fit = service.post_and_wait("/v1/fits", naming(&named)).await;
    assert_eq!(fit.status, 200, "{}", fit.text);
    assert_eq!(fit.json()["state"], "done", "{}", fit.text);
    assert_eq!(fit.json()["request"]["model"]["exported"], named);
    let batch = naming(&named).replacen('{', r#"{"batch": 8, "#, 1);
    let probe = service.post_and_wait("/v1/probes", batch).await;
    assert_eq!(probe.status, 201, "{}", probe.text);
    let document = service.get(&path).await.json();
    assert_eq!(document["referred"], true);
    assert_eq!(document["in_use"], false);
    assert!(document["expires_at"].is_null(), "{document}");

    let deleted = service.delete(&path).await;
    assert_eq!((deleted.status, deleted.text.as_str()), (204, ""));
    assert_eq!(service.get(&path).await.status, 404);
    assert_eq!(service.delete(&path).await.status, 404);
    let kept = service.get(fit.header("location")).await;
    assert_eq!(kept.json()["state"], "done");
}

/// However a graph comes, it is one question, found under one name.
#[tokio::test]
async fn a_graph_is_one_question_by_whatever_way_it_came() {
    let engine = Scripted::default();
    let service = Service::start(engine.clone()).await;
    let file = graph();
    let plain = gunzip(&file);
    let with_newline = [&plain[..], b"\n"].concat();
    let inline = format!(
        r#"{{"model": {{"exported": {}}}, "device": "sim:h200"}}"#,
        String::from_utf8(plain.clone()).unwrap()
    );

    let first = service.post_and_wait("/v1/fits", inline).await;
    assert_eq!(first.json()["state"], "done", "{}", first.text);
    // The graph is small, and not returned whenever somebody asks how far its fit is.
    assert_eq!(first.json()["request"]["model"]["exported"], digest(&plain));
    for file in [
        plain.clone(),
        file.clone(),
        gzip(&plain),
        gzip(&plain[..1])
            .into_iter()
            .chain(gzip(&plain[1..]))
            .collect(),
        with_newline,
    ] {
        let named = service.post("/v1/graphs", file.clone()).await;
        assert!(named.status < 300, "{}", named.text);
        assert_eq!(named.json()["digest"], digest(&file));
        let fit = service
            .post_and_wait("/v1/fits", naming(&digest(&file)))
            .await;
        // The asker's own document is given back, with the answer that was found once.
        assert_eq!(fit.json()["result"], first.json()["result"]);
        assert_eq!(fit.json()["request"]["model"]["exported"], digest(&file));
    }
    assert_eq!(engine.fits.load(Ordering::Relaxed), 1);
    // What came with a request is there to be named, and is one of them.
    let fit = service
        .post_and_wait("/v1/fits", naming(&digest(&plain)))
        .await;
    assert_eq!(fit.id(), first.id());
    let model = &service.get("/v1/fits").await.json()["items"][0]["model"];
    let name = format!("Loss-{}", &Digest::of(&plain).digits()[..8]);
    assert_eq!(*model, name);
}

/// As the command line stores it, with `--model FILE` and `--database`.
#[tokio::test]
async fn an_answer_of_the_command_line_is_found_by_upload() {
    use batchfit::model::{ModelFiles, Request, RequestDocument};

    let engine = Scripted::default();
    let service = Service::start(engine.clone()).await;
    for file in [golden("exported/mlp-small.pt2"), graph()] {
        let document = RequestDocument::from_json(br#"{"device": "sim:h200"}"#).unwrap();
        let request = Request::parse(document.with_files(ModelFiles::Graph(file.clone()))).unwrap();
        let now = batchfit::store::Time(1_700_000_000_000);
        let result = super::scripted::result(&request);
        let answer = batchfit::jobs::FitDocument::finished(&request, &result, now, now);
        let db = service.jobs.db();
        batchfit::jobs::record(db, &request, &result, &answer)
            .await
            .unwrap();

        let named = service.upload(file.clone()).await;
        assert_eq!(named, digest(&file));
        let found = service.post_and_wait("/v1/fits", naming(&named)).await;

        // By another name of the same file: a document of its own, with the answer that is known.
        assert_eq!(
            found.json()["result"],
            serde_json::to_value(&result).unwrap(),
            "{}",
            found.text
        );
    }
    assert_eq!(engine.fits.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn recordings_are_kept_beside_graphs() {
    let service = Service::start(Scripted::default()).await;
    let trace = golden("traces/trace-cifarnet-fp32-sgd-b3900.txt.gz");
    let snapshot = golden("snapshots/complete.pickle.gz");

    let kept = service.post("/v1/graphs", trace.clone()).await.json();
    assert_eq!(kept["kind"], "recorded", "{kept}");
    assert_eq!(kept["batch"], 3900);
    assert_eq!(kept["case"], "cifarnet-fp32-sgd");
    assert!(kept["events"].as_u64().unwrap() > 10, "{kept}");
    let plain = service.post("/v1/graphs", gunzip(&trace)).await;
    assert_eq!(plain.status, 200, "the same contents: {}", plain.text);
    let kept = service.put(&digest(&snapshot), snapshot.clone()).await;
    assert_eq!(kept.json()["kind"], "recorded", "{}", kept.text);
    let kept = service.post("/v1/graphs", gunzip(&snapshot)).await;
    assert_eq!(kept.status, 200, "{}", kept.text);

    // It is no graph, and says so where it is named as one.
    let refused = service
        .post_and_wait("/v1/fits", naming(&digest(&trace)))
        .await;
    assert_eq!(refused.status, 422, "{}", refused.text);
    let refused = refused.json();
    assert_eq!(refused["pointer"], "/model/exported");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("is a recording"), "{detail}");
}

#[tokio::test]
async fn uploads_are_listed_page_by_page() {
    let service = Service::start(Scripted::default()).await;
    let mut all = Vec::new();
    for name in [
        "exported/mlp.json.gz",
        "exported/mlp-small.pt2",
        "traces/trace-cifarnet-fp32-sgd-b3900.txt.gz",
    ] {
        let kept = service.post("/v1/graphs", golden(name)).await.json();
        all.push(kept["contents"].as_str().unwrap().to_owned());
    }
    let mut listed = Vec::new();
    let mut path = "/v1/graphs?limit=2".to_owned();
    loop {
        let page = service.get(&path).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let page = page.json();
        let items = page["items"].as_array().unwrap();
        listed.extend(
            items
                .iter()
                .map(|item| item["digest"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/graphs?limit=2&cursor={next}"),
            None => break,
        }
    }
    listed.sort_unstable();
    all.sort_unstable();
    assert_eq!(listed, all);
    let no_cursors = ["x".to_owned(), digest(b"x"), digest(&graph())];
    for cursor in no_cursors {
        let refused = service.get(&format!("/v1/graphs?cursor={cursor}")).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
    }
}

#[tokio::test]
async fn an_encoded_body_is_the_file_in_it() {
    let service = Service::start(Scripted::default()).await;
    let file = graph();
    let plain = gunzip(&file);
    let encoded = |named: String, body: Vec<u8>| {
        Request::put(format!("/v1/graphs/{named}"))
            .header("content-encoding", "gzip")
            .body(Body::from(body))
            .unwrap()
    };

    // The JSON, compressed on its way; a compressed file, compressed again; and a file that was announced as an
    // encoding, whose digest is that of the body.
    for (named, body, status) in [
        (digest(&plain), file.clone(), 201),
        (digest(&file), gzip(&file), 200),
        (digest(&file), file.clone(), 200),
    ] {
        let kept = service.send(encoded(named.clone(), body)).await;
        assert_eq!(kept.status, status, "{}", kept.text);
        assert_eq!(kept.json()["digest"], named);
        assert_eq!(kept.json()["contents"], digest(&plain));
    }
}

/// Tools for JSON that know no integers write the bound of a symbol, 2^63 - 1, as a double.
#[tokio::test]
async fn a_graph_whose_bounds_were_rounded_is_read_all_the_same() {
    let engine = Scripted::default();
    let service = Service::start(engine.clone()).await;
    let plain = String::from_utf8(gunzip(&graph())).unwrap();
    let (start, rest) = plain.split_once("\"max_val\": ").unwrap();
    let end = rest.find(['}', ',']).unwrap();
    for bound in [
        "9223372036854775807",
        "9.223372036854776e+18",
        "9223372036854775808",
        "9223372036854776000",
    ] {
        let file = format!("{start}\"max_val\": {bound}{}", &rest[end..]);
        let named = service.upload(file.into_bytes()).await;
        let fit = service.post_and_wait("/v1/fits", naming(&named)).await;
        assert_eq!(fit.status, 200, "{bound}: {}", fit.text);
    }
    assert_eq!(engine.fits.load(Ordering::Relaxed), 1, "one question");
}
