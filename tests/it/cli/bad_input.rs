//! What is wrong, in the service's words, on stderr.

use serde_json::{Value, json};

use super::{Sandbox, request, stderr};

/// Exit code, stdout and stderr of a fit.
fn refused(request: &Value, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Sandbox::new().ask("fit", request, arguments);
    assert!(output.stdout.is_empty());
    (output.status.code(), stderr(&output))
}

#[test]
fn a_wrong_word_gets_its_place_and_the_nearest_one() {
    let mut wrong = request();
    wrong["training"]["precision"] = json!("fp61");

    let (code, said) = refused(&wrong, &[]);

    assert_eq!(code, Some(2));
    assert_eq!(
        said,
        "error: at /training/precision: unknown precision \"fp61\"; did you mean \"fp16\"?\n"
    );
}

#[test]
fn with_json_the_problem_document_is_on_stderr() {
    let (code, said) = refused(&request(), &["--json", "--device", "sim:h2000"]);

    assert_eq!(code, Some(2));
    let problem: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(problem["type"], "/problems/request-invalid");
    assert_eq!(problem["pointer"], "/device");
    assert_eq!(problem["nearest"], "sim:h200");
}

#[test]
fn a_wrong_body_is_told_before_a_missing_device() {
    let mut wrong = request();
    wrong["device"] = json!("cuda:9999");
    wrong["training"]["checkpointing"] = json!({"modules": ["no.such.module"]});

    let (code, said) = refused(&wrong, &[]);

    assert_eq!(code, Some(2));
    assert!(said.contains("no module matches no.such.module"), "{said}");
}

#[test]
fn a_missing_device_says_what_is_missing_and_what_works_anywhere() {
    let (code, said) = refused(&request(), &["--json", "--device", "cuda:9999"]);

    assert_eq!(code, Some(4));
    let problem: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(problem["type"], "/problems/device-unavailable");
    assert_ne!(problem["missing"], "");
    let simulated = problem["simulated"].as_array().unwrap();
    assert!(simulated.contains(&json!("sim:h200")));
}

#[test]
fn what_is_no_json_gets_line_and_column() {
    let place = Sandbox::new();
    place.write("request.json", "{\n  \"model\": ");

    let output = place
        .batchfit()
        .args(["fit", "request.json"])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("line 2, column"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let place = Sandbox::new();

    let output = place
        .batchfit()
        .args(["fit", "absent.json"])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("error: could not read absent.json: "));
}

#[test]
fn an_unknown_flag_is_bad_input() {
    let output = Sandbox::new()
        .batchfit()
        .args(["fit", "request.json", "--batch-size", "3"])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_device_without_end_is_no_file() {
    let output = Sandbox::new()
        .batchfit()
        .args(["fit", "/dev/zero"])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr(&output),
        "error: could not read /dev/zero: it is a device, not a file\n"
    );
}

#[test]
fn a_batch_is_bounded_as_it_is_for_the_service() {
    for command in ["probe", "program"] {
        for (batch, is_read) in [("4294967296", true), ("4294967297", false), ("0", false)] {
            let output = Sandbox::new().ask(command, &request(), &["--batch", batch]);

            let is_refused = output.status.code() == Some(2);
            assert_eq!(
                is_refused,
                !is_read,
                "{command} {batch}: {}",
                stderr(&output)
            );
        }
    }
}

#[test]
fn names_in_a_file_do_not_reach_the_terminal_as_control_characters() {
    let place = Sandbox::new();
    let trace = "# {\"total\": 25769803776, \"case\": \"a\\u001b[31mb\"}\nsegment_alloc 7f0000000000 2097152 0\n";
    place.write("trace.txt", trace);
    place.write(
        "wrong.txt",
        "# {\"total\": 25769803776}\nallo\u{1b}c 7f0000000000 1024 0\n",
    );
    let replayed = |name: &str| place.batchfit().args(["replay", name]).output().unwrap();

    let (read, refused) = (replayed("trace.txt"), replayed("wrong.txt"));

    let said = String::from_utf8(read.stdout).unwrap();
    assert!(said.contains("a\u{fffd}[31mb"), "{said:?}");
    assert!(
        stderr(&refused).contains("`allo\u{fffd}c`"),
        "{:?}",
        stderr(&refused)
    );
}
