//! Names the rules that this build answers by: `BATCHFIT_ENGINE_DIGEST` is a digest of all sources that an answer can depend on. A number that
//! people have to raise would be forgotten, and old answers served for new ones.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::io;
use std::path::Path;

#[path = "../platform/build/files.rs"]
mod files;

/// Where answers are made. The last is the child that runs probes on a GPU.
const SOURCES: [&str; 7] = [
    "../card",
    "../cuda",
    "../fit",
    "../models",
    "../step",
    "../torch",
    "../../src/worker",
];

fn main() -> io::Result<()> {
    let mut sources = BTreeSet::new();
    for folder in SOURCES {
        println!("cargo::rerun-if-changed={folder}");
        files::collect(Path::new(folder), &mut sources)?;
    }
    // No secret and no defence: an accident in 2^64 is good enough.
    let mut rules = DefaultHasher::new();
    for file in sources {
        rules.write(file.to_string_lossy().as_bytes());
        let text = fs::read(&file)?;
        rules.write_usize(text.len());
        rules.write(&text);
    }
    println!(
        "cargo::rustc-env=BATCHFIT_ENGINE_DIGEST={:016x}",
        rules.finish()
    );
    Ok(())
}
