//! Descriptions of models, against what PyTorch exported.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad_requests;
mod beside_exports;
mod config_fields;
mod exported;
mod huggingface;
mod limits;
mod lowering;
mod mutations;
mod presets;

use std::io::Read;
use std::path::PathBuf;

use batchfit::model::{Request, RequestDocument, RequestError};
use flate2::read::GzDecoder;
use serde_json::Value;

/// The bytes of an exported graph of the corpus.
pub(crate) fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/exported")
        .join(format!("{name}.json.gz"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of the exported graphs of the corpus, in order.
pub(crate) fn golden_names() -> Vec<String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/exported");
    let names = std::fs::read_dir(folder).unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.strip_suffix(".json.gz").map(str::to_owned)
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// An exported graph of the corpus, as JSON.
fn golden_json(name: &str) -> Value {
    let mut text = Vec::new();
    GzDecoder::new(golden(name).as_slice())
        .read_to_end(&mut text)
        .unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Reads a request.
fn request(document: Value) -> Result<Request, RequestError> {
    Request::parse(RequestDocument::from(document))
}
