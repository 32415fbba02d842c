//! Answers that cannot be written, or that nobody reads to their end.

use std::fs::{File, OpenOptions};
use std::process::{Command, Stdio};

use super::{Sandbox, request, stderr};

/// Every command that prints, as it is asked here.
const COMMANDS: [&[&str]; 19] = [
    &["fit", "request.json"],
    &["fit", "request.json", "--json"],
    &["fit", "request.json", "--format", "env"],
    &["fit", "request.json", "--format", "markdown"],
    &["probe", "request.json", "--batch", "4"],
    &["program", "request.json", "--batch", "4"],
    &["replay", "trace.txt"],
    &["search", "-q", "--max-batch", "2", "--", "true", "{batch}"],
    &["search", "--help"],
    &["devices"],
    &["presets", "--json"],
    &["openapi"],
    &["operators"],
    &["--help"],
    &["--version"],
    &["fit", "--help"],
    &["fit", "-h"],
    &["completions", "bash"],
    &["man"],
];

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

fn command(place: &Sandbox, arguments: &[&str]) -> Command {
    place.write("request.json", &request().to_string());
    place.write(
        "trace.txt",
        "# {\"total\": 25769803776}\nsegment_alloc 7f0000000000 2097152 0\n",
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_batchfit"));
    command
        .current_dir(place.directory.path())
        .env("HOME", place.directory.path())
        .env_remove("XDG_DATA_HOME")
        .stdin(Stdio::null())
        .args(arguments);
    command
}

#[test]
fn a_closed_stdout_is_said_in_a_sentence() {
    let place = Sandbox::new();
    let closed = r#"exec "$0" "$@" >&-"#;
    for arguments in [
        &["presets"][..],
        &["--help"],
        &["fit", "alexnet", "--on", "t4"],
    ] {
        let output = place
            .command("sh")
            .args(["-c", closed, env!("CARGO_BIN_EXE_batchfit")])
            .args(arguments)
            .output()
            .unwrap();

        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("stdout: it is closed"), "{said}");
    }
}

#[test]
fn a_full_disk_is_said_in_a_sentence() {
    let place = Sandbox::new();
    for arguments in COMMANDS {
        let output = command(&place, arguments).stdout(full()).output().unwrap();

        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = stderr(&output);
        let sentence = "the answer could not be written to stdout: No space left on device";
        assert!(said.contains(sentence), "{arguments:?}: {said}");
    }
}

#[test]
fn a_reader_that_goes_is_no_trouble_and_not_taken_for_one_that_read() {
    let place = Sandbox::new();
    for arguments in COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(&place, arguments).stdout(writer).output().unwrap();

        assert_eq!(output.status.code(), Some(141), "{arguments:?}");
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
}

#[test]
fn a_key_that_could_not_be_shown_is_not_stored() {
    let place = Sandbox::new();
    let create = [
        "keys",
        "create",
        "--name",
        "ci",
        "--scope",
        "fit",
        "--database",
        "a.db",
    ];
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for stdout in [Stdio::from(full()), Stdio::from(writer), Stdio::null()] {
        let unseen = command(&place, &create).stdout(stdout).output().unwrap();
        assert_ne!(unseen.status.code(), Some(0), "{}", stderr(&unseen));
    }
    let listed = command(&place, &["keys", "list", "--json", "--database", "a.db"]).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    assert!(listed.contains(r#""items": []"#), "{listed}");
    // Its name is free.
    let seen = command(&place, &create).output().unwrap();
    assert_eq!(seen.status.code(), Some(0), "{}", stderr(&seen));
}

#[test]
fn a_full_disk_for_what_is_said_beside_the_answer_changes_nothing() {
    let place = Sandbox::new();

    let output = command(&place, &["presets", "--log", "[[["])
        .stderr(full())
        .output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    let output = command(&place, &["fit", "absent.json"])
        .stderr(full())
        .output();
    assert_eq!(output.unwrap().status.code(), Some(2));
}
