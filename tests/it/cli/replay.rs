//! `batchfit replay`.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use super::Sandbox;

fn golden(name: &str) -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    file.to_str().unwrap().to_owned()
}

fn run(arguments: &[&str]) -> Output {
    let place = Sandbox::new();
    place
        .batchfit()
        .arg("replay")
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn running_out_of_memory_is_an_answer() {
    let output = run(&[
        &golden("traces/trace-gpt2-ampbf16-adamw-b10.txt.gz"),
        "--json",
    ]);

    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verdict"], "out_of_memory");
    assert_eq!(report["equals_recording"], true);
}

#[test]
fn what_grows_is_told_with_the_line_and_what_to_change() {
    let output = run(&[&golden("planted/growth-losses.pickle.gz")]);

    let printed = String::from_utf8(output.stdout).unwrap();
    let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(printed.contains("Memory grows: something is kept from each round."));
    assert!(printed.contains("made 1 block of them each time, 512 B together"));
    assert!(printed.contains("keep `loss.item()` in its place"));
    assert!(printed.contains("Who holds the memory when most is allocated"));
}

#[test]
fn a_drawing_is_written() {
    let place = Sandbox::new();

    let output = place
        .batchfit()
        .args([
            "replay",
            &golden("snapshots/overrun.pickle.gz"),
            "--svg",
            "memory.svg",
        ])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(0));
    let svg = std::fs::read_to_string(place.directory.path().join("memory.svg")).unwrap();
    assert!(svg.starts_with("<svg "));
}

#[test]
fn bad_input_names_the_file_or_the_flag() {
    let trace = golden("traces/trace-cifarnet-fp32-sgd-b512.txt.gz");
    let snapshot = golden("snapshots/overrun.pickle.gz");
    let readme = golden("snapshots/README.md");
    let cases: [(&[&str], &str); 6] = [
        (&["missing.txt"], "could not read missing.txt"),
        (&[&readme], "line 1: the header is not as expected"),
        (
            &[&trace, "--allocator", "max_split_size:32"],
            "--allocator: unknown allocator setting `max_split_size`",
        ),
        (
            &[&trace, "--memory-limit", "24576"],
            "did you mean \"24576MiB\"?",
        ),
        (
            &[&snapshot, "--memory-limit", "0.5"],
            "--memory-limit: a snapshot does not say",
        ),
        (
            &[&trace, "--svg", "no/such/folder.svg"],
            "could not write no/such/folder.svg",
        ),
    ];

    for (arguments, expected) in cases {
        let output = run(arguments);

        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
