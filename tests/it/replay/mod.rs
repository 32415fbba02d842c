//! Replays of recordings: exact ones, what-ifs, damaged ones.

mod bad_input;
mod bytes;
mod exact;
mod picture;
mod planted;
mod what_if;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use batchfit::replay::{
    Bounds, Recording, RecordingError, Replay, ReplayOptions, ReplayReport, read, replay,
};
use flate2::read::GzDecoder;

/// A golden file.
fn golden(name: &str) -> Vec<u8> {
    fs::read(folder().join(name)).unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The golden files of a folder, by name.
pub(crate) fn all(kind: &str) -> Vec<String> {
    let entries = fs::read_dir(folder().join(kind)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names
        .filter(|name| Path::new(name).extension().is_some_and(|end| end == "gz"))
        .map(|name| format!("{kind}/{name}"))
        .collect();
    names.sort();
    names
}

fn decompressed(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = golden(name);
    GzDecoder::new(&file[..]).read_to_end(&mut bytes).unwrap();
    bytes
}

fn recording(bytes: &[u8]) -> Result<Recording, RecordingError> {
    read(bytes, Bounds::default())
}

fn replayed(name: &str, asked: &ReplayOptions) -> (Recording, Replay) {
    let recording = recording(&golden(name)).unwrap();
    let replay = replay(&recording, asked).unwrap();
    (recording, replay)
}

pub(crate) fn report(name: &str, asked: &ReplayOptions) -> ReplayReport {
    replayed(name, asked).1.report
}
