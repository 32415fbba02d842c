//! Step programs learnt from recordings, beside the recordings themselves and what PyTorch did.

mod conservative;
mod format;
mod hostile;
mod learnt;

use std::fs;
use std::path::{Path, PathBuf};

use batchfit::recorded::{ReadError, Sequence, read};
use batchfit::replay::Bounds;

/// The recording of a public case at a batch.
fn file(case: &str, batch: u64) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/recorded");
    folder.join(format!("{case}.b{batch}.gz"))
}

fn recording(case: &str, batch: u64) -> Sequence {
    read(
        &fs::read(file(case, batch)).unwrap(),
        None,
        Bounds::default(),
    )
    .unwrap()
}

fn recordings(case: &str, batches: &[u64]) -> Vec<Sequence> {
    batches
        .iter()
        .map(|batch| recording(case, *batch))
        .collect()
}

fn parsed(text: &str) -> Result<Sequence, ReadError> {
    read(text.as_bytes(), None, Bounds::default())
}

/// A recording in batchfit's own format, of a batch, with these lines.
fn text(batch: u64, lines: &[String]) -> String {
    format!(
        "batchfit recording 1\n{{\"batch\": {batch}}}\n{}\n",
        lines.join("\n")
    )
}
