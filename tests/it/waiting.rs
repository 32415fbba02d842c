//! Tests look at no clock: `wait.rs` does it for them.

use std::fs;
use std::path::Path;

use regex::Regex;

use crate::layering::files;

/// What waits for time to pass, or looks how much has.
const WORDS: &str = r"\bsleep\(|\byield_now\b|\.elapsed\(\)|\bInstant::now\b|\bSystemTime::now\b|\btimeout\(|\bwait_timeout\(|\.duration_since\(";

/// Files that may, and why.
const MAY: &[(&str, &str)] = &[
    ("tests/it/wait.rs", "it is what waits"),
    ("tests/it/waiting.rs", "it has the words"),
    (
        "crates/server/src/jobs/clock.rs",
        "the origin of a clock that the test sets",
    ),
    (
        "crates/server/src/http/server/keys/tests.rs",
        "the origin of a clock that the test sets",
    ),
    (
        "crates/server/src/jobs/leases.rs",
        "the origin of a clock that the test sets",
    ),
];

#[test]
fn tests_wait_for_events_and_never_for_time() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let words = Regex::new(WORDS).unwrap();
    let mut found = Vec::new();
    let mut looked_at = 0;
    let folders = ["crates", "src", "tests/it"].iter();
    for path in folders.flat_map(|folder| files(&root.join(folder))) {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        if path.extension().is_none_or(|end| end != "rs")
            || MAY.iter().any(|(file, _)| *file == name)
        {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        // A file of tests is one from its first line on, others from the module of tests on, which comes last.
        let is_test = name.starts_with("tests/") || name.contains("/tests");
        let begin = if is_test {
            Some(0)
        } else {
            text.find("#[cfg(test)]\nmod ")
        };
        let Some(begin) = begin else {
            continue;
        };
        looked_at += 1;
        let before = text[..begin].lines().count();
        for (index, line) in text[begin..].lines().enumerate() {
            if words.is_match(line) {
                found.push(format!("{name}:{}: {}", before + index + 1, line.trim()));
            }
        }
    }

    assert!(looked_at > 100, "{looked_at} files of tests");
    assert!(
        found.is_empty(),
        "wait for what is needed with `wait.rs`, or give the code its clock:\n{}",
        found.join("\n")
    );
}
