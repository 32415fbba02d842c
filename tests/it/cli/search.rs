//! `batchfit search`: commands of every kind, none of which trains anything.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command as Process, Output, Stdio};

use serde_json::Value;

use super::{Sandbox, document, stderr, stdout};
use crate::wait;

/// A script that fits up to 21, and says what PyTorch says above.
const UP_TO_21: &str = r#"
echo "$1" >> ran
if [ "$1" -gt 21 ]; then
    echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." >&2
    exit 1
fi
echo "loss 0.1"
"#;

/// Runs `batchfit search FLAGS -- sh script.sh {batch}`.
fn search(place: &Sandbox, flags: &[&str], script: &str) -> Output {
    place.write("script.sh", script);
    place
        .batchfit()
        .arg("search")
        .args(flags)
        .args(["--", "sh", "script.sh", "{batch}"])
        .output()
        .unwrap()
}

fn ran(place: &Sandbox) -> Vec<u64> {
    let text = fs::read_to_string(place.directory.path().join("ran")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn search_result(flags: &[&str], script: &str) -> Value {
    let flags = [flags, &["--json"]].concat();
    let output = search(&Sandbox::new(), &flags, script);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document = document(&output);
    assert_eq!(document["state"], "done");
    document["recommendation"].clone()
}

#[test]
fn the_largest_batch_of_a_script_is_found_and_said() {
    let place = Sandbox::new();

    let output = search(&place, &[], UP_TO_21);

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(ran(&place), [1, 2, 4, 8, 16, 32, 24, 20, 22, 21]);
    insta::assert_snapshot!(stdout(&output));
    let said = stderr(&output);
    assert!(said.contains("note: run 1: batch 1\nloss 0.1\n"), "{said}");
    assert!(
        said.contains("note: batch 32 runs out of memory after "),
        "{said}"
    );
}

#[test]
fn quiet_is_quiet_and_a_document_is_alone() {
    let place = Sandbox::new();

    let output = search(&place, &["--quiet", "--json"], UP_TO_21);

    assert_eq!(stderr(&output), "");
    let said = document(&output);
    assert_eq!(said["observations"].as_array().unwrap().len(), 10);
    assert_eq!(said["recommendation"]["micro_batch"], 21);
    // Kept like any other answer.
    assert!(
        place
            .directory
            .path()
            .join(".local/share/batchfit/batchfit.db")
            .exists()
    );
}

#[test]
fn a_shell_gets_its_five_lines() {
    let place = Sandbox::new();

    let output = search(
        &place,
        &["--format", "env", "--target", "64", "--world-size", "2"],
        UP_TO_21,
    );

    assert_eq!(
        stdout(&output),
        "export BATCHFIT_MICRO_BATCH=16\nexport BATCHFIT_ACCUMULATION_STEPS=2\nexport BATCHFIT_GLOBAL_BATCH=64\n\
         export BATCHFIT_WORLD_SIZE=2\nexport BATCHFIT_PEAK_RESERVED_BYTES=\n"
    );
}

#[test]
fn bytes_lead_from_below() {
    let script = r#"
echo "batchfit: peak_reserved_bytes=$((1000000000 + $1 * 50000000))"
if [ "$1" -gt 100 ]; then exit 99; fi
"#;
    let flags = ["--memory-limit", "6000000000", "--oom-exit", "99", "--json"];
    let output = search(&Sandbox::new(), &flags, script);

    let said = document(&output);
    let outcomes = said["observations"].as_array().unwrap();
    assert!(
        outcomes.iter().all(|run| run["outcome"] == "fits"),
        "{said}"
    );
    assert!(outcomes.len() < 9, "{said}");
    let best = &said["recommendation"];
    assert_eq!(
        (&best["micro_batch"], &best["headroom_bytes"]),
        (&100.into(), &0.into())
    );
    assert_eq!(best["peak_reserved_bytes"], 6_000_000_000_u64);
}

#[test]
fn retries_are_not_recommended() {
    let script = "[ $1 -le 12 ] || echo batchfit: num_alloc_retries=3; [ $1 -le 20 ] || { echo CUDA out of memory; exit 1; }";

    let best = search_result(&[], script);

    assert_eq!(best["micro_batch"], 12);
    assert!(best["max_batch"].as_u64().unwrap() > 12);
}

#[test]
fn an_exit_code_or_words_of_ones_own_say_that_memory_ran_out() {
    let exits = "[ \"$1\" -le 5 ] || exit 77";
    assert_eq!(
        search_result(&["--oom-exit", "77"], exits)["micro_batch"],
        5
    );
    let says = "[ \"$1\" -le 5 ] || { echo Speicher VOLL; exit 1; }";
    assert_eq!(
        search_result(&["--oom-pattern", "(?i)speicher\\s+voll"], says)["micro_batch"],
        5
    );
    let killed = "[ \"$1\" -le 5 ] || kill -9 $$";
    assert_eq!(
        search_result(&["--oom-exit", "137"], killed)["micro_batch"],
        5
    );
    for says in [
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes.",
        "ResourceExhaustedError: OOM when allocating tensor with shape[9]",
    ] {
        let script = format!("[ \"$1\" -le 5 ] || {{ echo '{says}' >&2; exit 1; }}");
        assert_eq!(search_result(&[], &script)["micro_batch"], 5, "{says}");
    }
}

#[test]
fn noise_and_holes_are_survived() {
    // Does not fit at 8, though 16 does.
    let hole =
        "if [ \"$1\" -eq 20 ] || [ \"$1\" -gt 40 ]; then echo CUDA out of memory; exit 1; fi";
    let best = search_result(&["--start", "4"], hole);
    assert_eq!(best["micro_batch"], 40);
    // Crashes at 1 alone.
    let one =
        "[ \"$1\" -ne 1 ] || exit 1; [ \"$1\" -le 12 ] || { echo CUDA out of memory; exit 1; }";
    assert_eq!(search_result(&[], one)["micro_batch"], 12);
    // Every other run crashes, at whatever batch.
    let flaky = r#"
n=$(cat count 2>/dev/null || echo 0); echo $((n + 1)) > count
[ $((n % 2)) -eq 0 ] || exit 1
[ "$1" -le 12 ] || { echo CUDA out of memory; exit 1; }
"#;
    let micro_batch = search_result(&[], flaky)["micro_batch"].as_u64().unwrap();
    assert!((8..=12).contains(&micro_batch), "{micro_batch}");
}

#[test]
fn three_crashes_in_a_row_end_it() {
    let place = Sandbox::new();
    let script =
        "echo $1 >> ran; [ \"$1\" -lt 8 ] || { echo 'ValueError: no such thing'; exit 3; }";

    let output = search(&place, &[], script);

    assert_eq!(output.status.code(), Some(4));
    assert_eq!(ran(&place).len(), 6);
    let said = stderr(&output);
    assert!(
        said.contains("crashed (exit code 3), its last line being \"ValueError: no such thing\","),
        "{said}"
    );
    assert!(said.contains("error: crashes: 3 runs in a row"), "{said}");
    assert!(
        said.contains("a micro-batch of 4 was seen to fit"),
        "{said}"
    );
    let output = search(&Sandbox::new(), &["--format", "env"], "exit 1");
    assert_eq!(output.status.code(), Some(4));
    assert!(stdout(&output).ends_with("; false\n"));
}

#[test]
fn nothing_fits_has_its_own_exit_code() {
    let output = search(&Sandbox::new(), &[], "echo CUDA out of memory; exit 1");
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stdout(&output).contains("Nothing fits."),
        "{}",
        stdout(&output)
    );

    let output = search(
        &Sandbox::new(),
        &["--format", "env"],
        "echo CUDA out of memory; exit 1",
    );
    assert_eq!(output.status.code(), Some(3));
    assert!(stdout(&output).ends_with("; false\n"));
    assert!(stderr(&output).contains("nothing fits: batch 1 ran out of memory"));
}

#[test]
fn what_hangs_is_ended_with_all_that_it_started() {
    let place = Sandbox::new();
    let script = "sleep 600 & echo $! >> sleepers; wait";

    let output = search(&place, &["--timeout", "0.3"], script);

    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("it took too long and was ended"));
    assert_none_left(&place);
}

/// Waits until the processes are gone whose ids a script wrote down, if it came so far.
fn assert_none_left(place: &Sandbox) {
    let sleepers = fs::read_to_string(place.directory.path().join("sleepers"));
    for sleeper in sleepers.unwrap_or_default().lines() {
        wait::until("what a run started to end", || {
            let status = fs::read_to_string(format!("/proc/{sleeper}/status"));
            let status = status.unwrap_or_default();
            status.is_empty() || status.contains("zombie")
        });
    }
}

/// Ways to start a process that outlives who started it: in the background, in a session of its own, and as a daemon.
const LEAVERS: [&str; 3] = [
    "sleep 600 & echo $! >> sleepers",
    "rm -f left; setsid sh -c 'echo $$ | tee -a sleepers > left; exec sleep 600' & until grep -q . left; do :; done 2>/dev/null",
    "rm -f left; (setsid -f sh -c 'echo $$ | tee -a sleepers > left; exec sleep 600'); until grep -q . left; do :; done 2>/dev/null",
];

#[test]
fn what_a_run_leaves_behind_ends_with_it() {
    for leaver in LEAVERS {
        let place = Sandbox::new();
        let script = format!("{leaver}; [ \"$1\" -le 3 ] || exit 9");

        let output = search(&place, &["--oom-exit", "9", "--json"], &script);

        assert_eq!(document(&output)["recommendation"]["micro_batch"], 3);
        assert_none_left(&place);
    }
}

#[test]
fn what_a_run_started_ends_with_a_search_that_is_killed() {
    for leaver in LEAVERS {
        let place = Sandbox::new();
        place.write(
            "script.sh",
            &format!("echo $$ >> sleepers; {leaver}; echo hanging; sleep 600"),
        );
        let mut search = Process::new(env!("CARGO_BIN_EXE_batchfit"))
            .current_dir(place.directory.path())
            .env("HOME", place.directory.path())
            .env_remove("XDG_DATA_HOME")
            .args(["search", "--", "sh", "script.sh", "{batch}"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(search.stderr.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap() == "hanging"));

        search.kill().unwrap();
        search.wait().unwrap();

        assert_none_left(&place);
    }
}

#[test]
fn output_of_any_size_and_shape_is_read() {
    let script = r#"
head -c 1000000 /dev/zero | tr '\0' x
head -c 100000 /dev/urandom
[ "$1" -le 3 ] || { printf 'CUDA out of memory'; exit 1; }
printf 'batchfit: peak_reserved_bytes=77'
"#;
    let best = search_result(&["--quiet"], script);

    assert_eq!(best["micro_batch"], 3);
}

#[test]
fn bad_input_is_refused_before_anything_runs() {
    let place = Sandbox::new();
    let batch = "{batch}";
    for (arguments, sentence) in [
        (
            vec!["--", "sh", "-c", "exit 0"],
            "no argument has {batch} in it",
        ),
        (
            vec!["--", "./not-there", batch],
            "could not start `./not-there`",
        ),
        (vec!["--", "/", batch], "could not start `/`"),
        (
            vec!["--oom-pattern", "(", "--", "true", batch],
            "--oom-pattern",
        ),
        (
            vec!["--oom-pattern", "oom|", "--", "true", batch],
            "it matches every line",
        ),
        (
            vec!["--oom-pattern", "(a{1000}){1000}", "--", "true", batch],
            "--oom-pattern",
        ),
        (
            vec!["--memory-limit", "0.8", "--", "true", batch],
            "--memory-limit",
        ),
        (vec!["--max-batch", "0", "--", "true", batch], "--max-batch"),
        (
            vec!["--start", "9", "--max-batch", "3", "--", "true", batch],
            "--start",
        ),
        (
            vec!["--target", "1", "--world-size", "3", "--", "true", batch],
            "--target",
        ),
        (vec!["--timeout", "0", "--", "true", batch], "--timeout"),
        (vec!["--timeout", "nan", "--", "true", batch], "--timeout"),
        (vec!["--oom-exit", "0", "--", "true", batch], "--oom-exit"),
        (vec!["--"], "CMD"),
        (vec![], "CMD"),
    ] {
        let output = place
            .batchfit()
            .arg("search")
            .args(&arguments)
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert_eq!(stdout(&output), "", "{arguments:?}");
        assert!(
            stderr(&output).contains(sentence),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn the_batch_is_put_into_every_argument_and_nothing_is_read_from_a_terminal() {
    let place = Sandbox::new();
    place.write(
        "s.sh",
        "echo \"$1 $2\" >> seen; cat; [ \"${1#--batch=}\" -le 2 ] || exit 5",
    );

    let output = place
        .batchfit()
        .args([
            "search",
            "--oom-exit",
            "5",
            "--",
            "sh",
            "s.sh",
            "--batch={batch}",
            "b{batch}b{batch}",
        ])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let seen = fs::read_to_string(place.directory.path().join("seen")).unwrap();
    assert_eq!(
        seen,
        "--batch=1 b1b1\n--batch=2 b2b2\n--batch=4 b4b4\n--batch=3 b3b3\n"
    );
}

/// Ctrl-C, which reaches batchfit alone: its commands have process groups of their own.
#[test]
fn an_interrupt_ends_the_run_and_says_what_is_known() {
    for (signal, flags) in [("INT", vec!["--json"]), ("TERM", vec![])] {
        let place = Sandbox::new();
        place.write(
            "script.sh",
            "if [ \"$1\" -ge 4 ]; then sleep 600 & echo $! >> sleepers; echo hanging; wait; fi",
        );
        let mut search = Process::new(env!("CARGO_BIN_EXE_batchfit"))
            .current_dir(place.directory.path())
            .env("HOME", place.directory.path())
            .env_remove("XDG_DATA_HOME")
            .arg("search")
            .args(flags)
            .args(["--", "sh", "script.sh", "{batch}"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(search.stderr.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap() == "hanging"));

        let pid = search.id().to_string();
        let killed = Process::new("kill")
            .args(["-s", signal, &pid])
            .status()
            .unwrap();
        assert!(killed.success());
        let rest: Vec<String> = said.map(Result::unwrap).collect();
        let output = search.wait_with_output().unwrap();

        assert_eq!(output.status.code(), Some(130));
        let known =
            "error: interrupted after 2 runs: batch 2 fits, and none was seen to run out of memory";
        assert!(rest.iter().any(|line| line == known), "{rest:?}");
        assert_none_left(&place);
        if signal == "INT" {
            let said = document(&output);
            assert_eq!(said["state"], "cancelled");
            assert_eq!(said["recommendation"]["micro_batch"], 2);
        } else {
            assert_eq!(stdout(&output), "");
        }
    }
}
