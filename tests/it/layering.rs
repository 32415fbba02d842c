//! The order of modules: a module uses only those on lines above its own.

use std::fs;
use std::path::{Path, PathBuf};

/// Lowest first. A module may use those before it, and itself.
const LAYERS: &[&str] = &["worker", "report", "cli"];

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == module)
}

#[test]
fn modules_use_only_lower_layers() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut upward = Vec::new();

    for path in files(&src) {
        let inside = path.strip_prefix(&src).unwrap().with_extension("");
        let module = inside.iter().next().unwrap().to_str().unwrap();
        // What a test builds its case with is no part of the program.
        if ["lib", "main"].contains(&module) || inside.ends_with("tests") {
            continue;
        }
        let Some(own) = rank(module) else {
            upward.push(format!("{module} is not in the list"));
            continue;
        };
        let Ok(text) = fs::read_to_string(&path) else {
            continue; // A recorded file, such as a compressed table.
        };
        if text.contains("use crate::{") {
            upward.push(format!("{} hides what it uses in braces", inside.display()));
        }
        for used in text.split("crate::").skip(1) {
            let used = used
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap();
            if rank(used).is_some_and(|other| other > own) {
                upward.push(format!("{} uses {used}", inside.display()));
            }
        }
    }

    assert!(upward.is_empty(), "upward edges:\n{}", upward.join("\n"));
}

/// All files below a folder.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}
