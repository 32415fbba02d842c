//! `batchfit probe`.

use serde_json::json;

use super::{Sandbox, document, request, stderr, stdout};

#[test]
fn json_has_the_report_at_the_top_level() {
    let place = Sandbox::new();

    let answered = place.ask("probe", &request(), &["--batch", "64", "--json"]);

    assert_eq!(answered.status.code(), Some(0));
    let report = document(&answered);
    assert_eq!(
        (&report["batch"], &report["verdict"]),
        (&json!(64), &json!("fits"))
    );
    assert_eq!(report["steps"].as_array().unwrap().len(), 3);
    assert_eq!(report["retries"], 0);
    assert!(!report["timeline"].as_array().unwrap().is_empty());
    // Two weights and two biases, in blocks of 512 bytes.
    assert_eq!(
        report["model_allocated_bytes"],
        4_194_304 + 4096 + 40_960 + 512
    );
}

#[test]
fn out_of_memory_has_an_exit_code_of_its_own_and_a_report_all_the_same() {
    let place = Sandbox::new();

    let answered = place.ask("probe", &request(), &["--batch", "1000000", "--json"]);

    assert_eq!(answered.status.code(), Some(3));
    let report = document(&answered);
    assert_eq!(report["verdict"], "out_of_memory");
    assert!(
        report["cause"]
            .as_str()
            .unwrap()
            .starts_with("no room for ")
    );
}

#[test]
fn a_batch_that_fits_with_retries_is_answered() {
    let place = Sandbox::new();
    let request = json!({
        "model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "8GiB",
        "training": {"optimizer": "sgd"},
    });
    let fit = place.ask("fit", &request, &["--json"]);
    let largest = &document(&fit)["result"]["recommendation"]["max_batch"];
    let largest = largest.to_string();

    let answered = place.ask("probe", &request, &["--batch", &largest, "--json"]);

    assert_eq!(document(&answered)["verdict"], "fits_with_retries");
    assert_eq!(answered.status.code(), Some(0));
}

#[test]
fn people_read_a_verdict_first() {
    let place = Sandbox::new();

    let answered = place.ask("probe", &request(), &["--batch", "64"]);

    let text = stdout(&answered);
    assert!(text.starts_with("Batch 64 fits (simulated).\n"), "{text}");
    assert!(text.contains("\nAt the peak\n"), "{text}");
}

#[test]
fn several_variants_are_no_probe() {
    let place = Sandbox::new();
    let mut several = request();
    several["training"]["optimizer"] = json!(["adam", "sgd"]);

    let refused = place.ask("probe", &several, &["--batch", "64"]);

    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("at /training: a probe runs one variant"));
}

#[test]
fn a_batch_of_zero_is_refused() {
    let place = Sandbox::new();

    let refused = place.ask("probe", &request(), &["--batch", "0"]);

    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn a_pt2_archive_is_a_model_file() {
    let place = Sandbox::new();
    let archive = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/exported/mlp-small.pt2"
    );

    let flags = ["--batch", "64", "--json", "--model", archive];
    let answered = place.ask("probe", &json!({"device": "sim:h200"}), &flags);

    assert_eq!(answered.status.code(), Some(0), "{}", stderr(&answered));
    // Two weights and two biases, in blocks of 512 bytes.
    assert_eq!(document(&answered)["model_allocated_bytes"], 4 * 512);
}

#[test]
fn an_archive_without_a_model_is_bad_input() {
    let place = Sandbox::new();
    place.write("weights.pt2", "PK\u{3}\u{4}");

    let flags = ["--batch", "64", "--model", "weights.pt2"];
    let answered = place.ask("probe", &request(), &flags);

    assert_eq!(answered.status.code(), Some(2));
    assert!(
        stderr(&answered).contains("weights.pt2: this is an archive, but it cannot be read"),
        "{}",
        stderr(&answered)
    );
}

#[test]
fn what_a_gpu_runs_is_told_without_one() {
    let place = Sandbox::new();

    let runs = place.ask("probe", &request(), &["--batch", "64", "--explain"]);

    assert_eq!(runs.status.code(), Some(0));
    assert!(stdout(&runs).contains("runs on sim:"), "{}", stdout(&runs));
}

#[test]
fn a_simulated_card_is_advised_where_there_is_no_gpu_to_ask_about() {
    let place = Sandbox::new();
    let mut elsewhere = request();
    elsewhere["device"] = json!("cuda:4095");

    let refused = place.ask("probe", &elsewhere, &["--batch", "4", "--explain"]);

    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("such as `sim:h200`"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn each_allocation_and_free_is_written_to_a_file() {
    let place = Sandbox::new();
    let flags = ["--batch", "64", "--json", "--events", "events.json"];

    let answered = place.ask("probe", &request(), &flags);

    let report = document(&answered);
    assert!(report.get("events").is_none());
    let text = std::fs::read_to_string(place.directory.path().join("events.json")).unwrap();
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    let told: batchfit::probe::MemoryEvents = serde_json::from_value(told).unwrap();
    assert!(told.events > 10);
    assert_eq!(told.blocks.bytes.len(), told.blocks.freed.len());
}
