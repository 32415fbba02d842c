//! Pages in a browser, which can reach a service on loopback.

use axum::body::Body;
use axum::http::Request;

use super::scripted::Scripted;
use super::{Answer, RESNET, Service, assert_answer};

async fn post(service: &Service, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::post("/v1/fits").header("content-type", "text/plain");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    service
        .send(request.body(Body::from(RESNET)).unwrap())
        .await
}

async fn stored(service: &Service) -> usize {
    let list = service.get("/v1/fits").await.json();
    list["items"].as_array().unwrap().len()
}

/// A form with `enctype="text/plain"` needs nobody's leave.
#[tokio::test]
async fn a_page_of_another_site_may_not_ask() {
    let service = Service::start(Scripted::default()).await;

    let page = [
        ("host", "127.0.0.1:8080"),
        ("origin", "https://evil.example"),
    ];
    let answer = post(&service, &page).await;

    assert_answer!(answer);
    let sandboxed = [("host", "127.0.0.1:8080"), ("origin", "null")];
    assert_eq!(post(&service, &sandboxed).await.status, 403);
    let neighbour = [
        ("host", "localhost:8080"),
        ("origin", "http://localhost:3000"),
    ];
    assert_eq!(post(&service, &neighbour).await.status, 403);
    assert_eq!(stored(&service).await, 0);
}

/// The page's site leads to 127.0.0.1 by now, so that page and service are of one origin; the name gives it away.
#[tokio::test]
async fn a_page_whose_name_was_rebound_may_not_ask() {
    let service = Service::start(Scripted::default()).await;
    let rebound = [
        ("host", "rebind.evil.example:8080"),
        ("origin", "http://rebind.evil.example:8080"),
    ];

    let answer = post(&service, &rebound).await;

    assert_answer!(answer);
    // Browsers send no `Origin` when a page reads from its own.
    let read = Request::get("/v1/fits").header("host", "rebind.evil.example:8080");
    let read = service.send(read.body(Body::empty()).unwrap()).await;
    assert_eq!(read.status, 421);
    assert_eq!(stored(&service).await, 0);
}

#[tokio::test]
async fn programs_and_pages_of_the_service_may_ask() {
    let service = Service::start(Scripted::default()).await;

    let program = [("host", "localhost:8080")];
    assert_eq!(post(&service, &program).await.status, 202);
    let own = [
        ("host", "localhost:8080"),
        ("origin", "http://localhost:8080"),
    ];
    assert_eq!(post(&service, &own).await.status, 202);
}
