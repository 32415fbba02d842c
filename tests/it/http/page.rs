//! The page in the browser: what is sent of it, to whom. What it does is tested in a browser, by `tests/page/flows.py`.

use std::io::Read as _;
use std::path::Path;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use flate2::read::GzDecoder;
use tower::ServiceExt as _;

use super::scripted::Scripted;
use super::{Answer, Service};

async fn fetch(service: &Service, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    service.send(request.body(Body::empty()).unwrap()).await
}

fn committed(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/server/src/http/page");
    std::fs::read_to_string(folder.join(file)).unwrap()
}

#[tokio::test]
async fn the_page_may_run_its_own_files_alone() {
    let service = Service::start(Scripted::default()).await;

    let page = service.get("/").await;

    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert_eq!(
        page.header("content-security-policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    assert_eq!(page.header("referrer-policy"), "no-referrer");
    assert_eq!(page.header("cache-control"), "no-cache");
    assert_eq!(page.text, committed("index.html"));
    assert!(!page.text.contains("<style") && !page.text.contains("style="));
    assert!(!page.text.contains("https://") && !page.text.contains("http://"));
    let (_, without_script) = page.text.split_once("<noscript>").unwrap();
    for way in ["batchfit fit ", "curl -s "] {
        assert!(without_script.contains(way), "{way}");
    }
}

#[tokio::test]
async fn files_are_sent_as_they_are_with_their_kind() {
    let service = Service::start(Scripted::default()).await;

    for (file, kind) in [
        ("app.js", "text/javascript; charset=utf-8"),
        ("ask/view.js", "text/javascript; charset=utf-8"),
        ("page.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
        ("vendor/preact.LICENSE.txt", "text/plain; charset=utf-8"),
    ] {
        let path = format!("/page/{file}");
        let plain = service.get(&path).await;

        assert_eq!((plain.status, plain.header("content-type")), (200, kind));
        assert_eq!(plain.text, committed(file), "{file}");
        assert_eq!(plain.header("content-encoding"), "");
        let head = fetch(&service, "HEAD", &path, &[]).await;
        assert_eq!((head.status, head.text.as_str()), (200, ""));
        assert_eq!(head.header("etag"), plain.header("etag"));
    }
}

#[tokio::test]
async fn the_form_offers_the_words_of_the_rows() {
    let service = Service::start(Scripted::default()).await;

    let words = service.get("/page/words.js").await;

    let kind = "text/javascript; charset=utf-8";
    assert_eq!((words.status, words.header("content-type")), (200, kind));
    let optimizers = batchfit::model::Optimizer::ALL.map(batchfit::model::Optimizer::name);
    let expected =
        format!(", optimizer = {optimizers:?}, checkpointing = [\"none\", \"per_block\"];");
    assert!(words.text.contains(&expected), "{}", words.text);
}

#[tokio::test]
async fn files_are_compressed_for_clients_that_accept_it() {
    let service = Service::start(Scripted::default()).await;
    let request = Request::get("/page/app.js").header("accept-encoding", "br, gzip;q=0.8");
    let request = request.body(Body::empty()).unwrap();

    let answer = service.router.clone().oneshot(request).await.unwrap();

    assert_eq!(answer.headers()["content-encoding"], "gzip");
    assert_eq!(answer.headers()["vary"], "accept-encoding");
    let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let mut text = String::new();
    GzDecoder::new(&bytes[..])
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, committed("app.js"));
    let refused = fetch(
        &service,
        "GET",
        "/page/app.js",
        &[("accept-encoding", "gzip;q=0")],
    );
    assert_eq!(refused.await.text, text);
}

#[tokio::test]
async fn a_file_with_a_known_etag_is_not_sent_again() {
    let service = Service::start(Scripted::default()).await;
    let tag = service.get("/").await.header("etag").to_owned();

    let known = fetch(&service, "GET", "/", &[("if-none-match", &tag)]).await;
    let other = fetch(&service, "GET", "/page/app.js", &[("if-none-match", &tag)]).await;

    assert!(tag.starts_with("W/\""), "{tag:?}");
    assert_eq!((known.status, known.text.as_str()), (304, ""));
    assert_eq!(known.header("etag"), tag);
    assert_eq!(other.status, 200);
}

#[tokio::test]
async fn what_is_not_there_is_a_problem() {
    let service = Service::start(Scripted::default()).await;

    for path in [
        "/page/none.js",
        "/page/",
        "/page/VENDOR.md",
        "/page/vendor/VENDOR.md",
        "/page/../mod.rs",
        "/page/%2e%2e/mod.rs",
        "/index.html",
    ] {
        let missing = service.get(path).await;
        assert_eq!(missing.status, 404, "{path}");
        assert_eq!(missing.json()["type"], "/problems/not-found", "{path}");
    }
    let posted = fetch(&service, "POST", "/", &[]).await;
    assert_eq!(posted.status, 405);
    assert_eq!(posted.json()["type"], "/problems/method-not-allowed");
    let foreign = fetch(&service, "GET", "/", &[("host", "evil.example")]).await;
    assert_eq!(foreign.status, 421);
}

/// Whatever a module imports is a file that is sent, by the name it is sent under; and each file of the first view is announced in
/// the page, so that the browser asks for all of them at once.
#[tokio::test]
async fn all_that_modules_import_is_there_and_announced() {
    let service = Service::start(Scripted::default()).await;
    let index = committed("index.html");
    let mut waiting = vec!["app.js".to_owned()];
    let mut seen = Vec::new();

    while let Some(file) = waiting.pop() {
        if seen.contains(&file) {
            continue;
        }
        let module = service.get(&format!("/page/{file}")).await;
        assert_eq!(module.status, 200, "{file}");
        let is_announced = index.contains(&format!("\"/page/{file}\""));
        assert!(is_announced, "{file} is not named in index.html");
        for line in module.text.lines() {
            let Some((_, from)) = line.split_once(" from \"") else {
                continue;
            };
            let from = from.trim_end_matches([';', '"']);
            let mut path: Vec<&str> = file.split('/').collect();
            path.pop();
            for part in from.split('/') {
                match part {
                    "." => {}
                    ".." => drop(path.pop().expect("inside of the page")),
                    other => path.push(other),
                }
            }
            waiting.push(path.join("/"));
        }
        seen.push(file);
    }
    assert!(seen.len() > 10, "{seen:?}");
}
