//! `batchfit fit`.

use std::io::Read as _;
use std::process::{Command, Stdio};

use serde_json::json;

use super::{Sandbox, document, request, stderr, stdout};

#[test]
fn json_is_the_document_of_the_service_and_nothing_else() {
    let place = Sandbox::new();

    let answered = place.ask("fit", &request(), &["--json"]);

    assert_eq!(answered.status.code(), Some(0));
    assert_eq!(stderr(&answered), "");
    let fit = document(&answered);
    assert_eq!(fit["state"], "done");
    assert_eq!(fit["request"], request());
    let best = &fit["result"]["recommendation"];
    assert_eq!(best["evidence"], "simulated");
    assert_eq!(best["limit_bytes"], 1 << 30);
    let micro_batch = best["micro_batch"].as_u64().unwrap();
    let without_retries = best["max_batch_without_retries"].as_u64().unwrap();
    assert!(0 < micro_batch && micro_batch <= without_retries);
    assert!(without_retries <= best["max_batch"].as_u64().unwrap());
    assert_eq!(fit["result"]["environment"]["device"], "sim:h200");
    let probed = fit["result"]["probes"].as_array().unwrap();
    assert!(probed.iter().any(|probe| probe["batch"] == micro_batch
        && probe["verdict"] == "fits"
        && probe["retries"] == 0));
}

#[test]
fn people_get_a_table() {
    let place = Sandbox::new();

    let answered = place.ask("fit", &request(), &["--memory-limit", "256MiB"]);

    assert_eq!(answered.status.code(), Some(0));
    let text = stdout(&answered);
    assert!(text.contains("on NVIDIA H200 (sim:h200)"), "{text}");
    assert!(text.contains("\nTrain with a micro-batch of "), "{text}");
    assert!(text.contains("; the limit is 256.0 MiB\n"), "{text}");
}

#[test]
fn a_target_is_made_up_exactly() {
    let place = Sandbox::new();
    let mut wanted = request();
    wanted["target_batch"] = json!(1 << 20);

    let best =
        document(&place.ask("fit", &wanted, &["--json"]))["result"]["recommendation"].clone();

    let product =
        best["micro_batch"].as_u64().unwrap() * best["accumulation_steps"].as_u64().unwrap();
    assert_eq!(product, 1 << 20);
    assert_eq!(best["shortfall"], 0);
    assert!(best["accumulation_steps"].as_u64().unwrap() > 1);
}

#[test]
fn nothing_fits_is_an_answer_with_a_code_of_its_own() {
    let place = Sandbox::new();

    let answered = place.ask("fit", &request(), &["--json", "--memory-limit", "20MiB"]);

    assert_eq!(answered.status.code(), Some(3));
    let best = document(&answered)["result"]["recommendation"].clone();
    assert_eq!(best["micro_batch"], 0);
    assert!(best["missing_bytes"].as_u64().unwrap() > 0);
    let for_people = place.ask("fit", &request(), &["--memory-limit", "20MiB"]);
    assert_eq!(for_people.status.code(), Some(3));
    assert!(stdout(&for_people).contains("Nothing fits: one sample needs "));
}

#[test]
fn the_request_may_come_from_stdin() {
    let place = Sandbox::new();

    for what in ["-", "/dev/stdin"] {
        let answered = place
            .batchfit()
            .args(["fit", what, "--json"])
            .write_stdin(request().to_string())
            .output()
            .unwrap();

        assert_eq!(
            answered.status.code(),
            Some(0),
            "{what}: {}",
            stderr(&answered)
        );
    }
}

#[test]
fn flags_go_before_the_request() {
    let place = Sandbox::new();

    let answered = place.ask(
        "fit",
        &request(),
        &["--json", "--device", "sim:t4", "--memory-limit", "0.5"],
    );

    let fit = document(&answered);
    assert_eq!(fit["result"]["environment"]["device"], "sim:t4");
    // Half of 15,095 MiB.
    assert_eq!(
        fit["result"]["recommendation"]["limit_bytes"],
        7_914_127_360_u64
    );
    assert_eq!(fit["request"]["device"], "sim:t4");
}

#[test]
fn variants_are_compared() {
    let place = Sandbox::new();
    let mut several = request();
    several["training"]["optimizer"] = json!(["adam", "sgd"]);
    for (compare, first) in [("within_optimizer", "adam"), ("across_optimizers", "sgd")] {
        several["compare"] = json!(compare);

        // So little that Adam's two states count.
        let arguments = ["--json", "--memory-limit", "128MiB"];
        let fit = document(&place.ask("fit", &several, &arguments));

        let variants = fit["result"]["variants"].as_array().unwrap();
        assert_eq!(variants.len(), 2);
        assert_eq!(variants[0]["training"]["optimizer"], first);
        assert_eq!(
            variants[0]["recommendation"],
            fit["result"]["recommendation"]
        );
    }
}

#[test]
fn a_reader_that_leaves_is_no_panic() {
    let place = Sandbox::new();
    place.write("request.json", &request().to_string());
    let mut child = Command::new(env!("CARGO_BIN_EXE_batchfit"))
        .args(["fit", "request.json", "--json"])
        .current_dir(place.directory.path())
        .env("XDG_DATA_HOME", place.directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();

    drop(child.stdout.take());
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();

    assert_eq!(child.wait().unwrap().code(), Some(141));
    assert_eq!(said, "");
}
