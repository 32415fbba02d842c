//! Descriptions of models, against what PyTorch exported.

pub(crate) mod exported;

use std::path::PathBuf;

/// The bytes of an exported graph of the corpus.
pub(crate) fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/exported")
        .join(format!("{name}.json.gz"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
