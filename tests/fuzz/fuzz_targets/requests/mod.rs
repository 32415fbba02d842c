//! Requests, read as the service reads them before any device is looked for.

use batchfit::device::sim;
use batchfit::jobs::{validate, validate_batch};
use batchfit::model::{Request, RequestDocument};

/// Reads a document to the end of what is looked at before it is queued.
pub fn ask(text: Vec<u8>) {
    let Ok(document) = RequestDocument::from_bytes(text) else {
        return;
    };
    let _ = (document.references(), document.model_aside());
    let Ok(request) = Request::parse(document) else {
        return;
    };
    let Ok(lowered) = validate(&request) else {
        return;
    };
    for batch in [1, 7, 1 << 20, u64::MAX] {
        let _ = validate_batch(lowered, batch);
    }
    let print = request.fingerprint(lowered, None);
    let (shown, _) = request.shown();
    assert!(serde_json::from_str::<serde_json::Value>(&shown.text()).is_ok());
    // A process of its own gets the request so.
    let again =
        Request::parse(request.self_contained()).expect("it was read before");
    let lowered = validate(&again).expect("it was valid before");
    assert_eq!(again.fingerprint(lowered, None), print);
}

/// A request about a model whose description these bytes are.
#[allow(dead_code, reason = "each target has its own copy")]
pub fn ask_about(member: &str, bytes: &[u8], beside: &str) {
    let start =
        format!("{{\"device\":\"sim:h200\",\"memory_limit\":\"8GiB\",\"model\":{{\"{member}\":");
    ask([start.as_bytes(), bytes, beside.as_bytes(), b"}}"].concat());
}
