//! Descriptions of models, against what PyTorch exported.

mod bad_requests;
mod exported;
mod lowering;
mod mutations;

use std::path::PathBuf;

use batchfit::model::{Invalid, Request, RequestDocument};
use serde_json::Value;

/// Simulated devices that requests in these tests may name.
const SIMS: &[&str] = &["h200", "h100", "a100-80g", "rtx4090"];

/// The bytes of an exported graph of the corpus.
pub(crate) fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/exported")
        .join(format!("{name}.json.gz"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads a request.
fn request(document: Value) -> Result<Request, Invalid> {
    Request::parse(RequestDocument(document), SIMS)
}
