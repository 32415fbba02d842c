//! `--recorded` and `record-check`.

use std::path::Path;

use serde_json::json;

use super::{Sandbox, stderr, stdout};

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/recorded");
    folder.join(name).display().to_string()
}

fn gpt2() -> [String; 3] {
    [2, 4, 8].map(|batch| golden(&format!("gpt2-ampbf16-adamw.b{batch}.gz")))
}

/// Recordings that are read in no time.
fn cifarnet() -> [String; 3] {
    [64, 128, 256].map(|batch| golden(&format!("cifarnet-fp32-sgd.b{batch}.gz")))
}

#[test]
fn a_fit_takes_recordings_in_the_place_of_a_model() {
    let place = Sandbox::new();
    let mut command = place.batchfit();
    command
        .args(["fit", "-", "--json", "--recorded"])
        .args(gpt2());
    let request =
        json!({"device": "sim:h200", "memory_limit": "40GiB", "training": {"precision": "fp16"}});

    let answered = command.write_stdin(request.to_string()).output().unwrap();

    assert_eq!(answered.status.code(), Some(0), "{}", stderr(&answered));
    let document: serde_json::Value = serde_json::from_slice(&answered.stdout).unwrap();
    let recommendation = &document["result"]["recommendation"];
    // What PyTorch trained on an H200.
    assert_eq!(recommendation["max_batch_without_retries"], 27);
    assert_eq!(recommendation["evidence"], "recorded");
    assert_eq!(recommendation["next_batch"], 13);
    assert_eq!(
        document["result"]["variants"][0]["training"],
        json!({"recorded": true, "accumulation": 1})
    );
    let recorded = document["request"]["model"]["recorded"].as_array().unwrap();
    assert!(
        recorded
            .iter()
            .all(|digest| digest.as_str().unwrap().starts_with("sha256:"))
    );
}

#[test]
fn a_recording_is_told_by_its_content_and_answers_for_its_batch_alone() {
    let place = Sandbox::new();
    let [first, ..] = cifarnet();

    let fit = place
        .batchfit()
        .args(["fit", &first, "--on", "h200"])
        .output()
        .unwrap();
    let probe = place
        .batchfit()
        .args(["probe", &first, "--on", "h200", "--batch", "64"])
        .output()
        .unwrap();
    let other = place
        .batchfit()
        .args(["probe", &first, "--on", "h200", "--batch", "65"])
        .output()
        .unwrap();
    let listed = place
        .batchfit()
        .args([
            "program",
            "--recorded",
            &first,
            "--on",
            "h200",
            "--batch",
            "64",
        ])
        .output()
        .unwrap();

    assert_eq!(fit.status.code(), Some(2));
    assert!(
        stderr(&fit).contains("record at least one other batch, such as 128"),
        "{}",
        stderr(&fit)
    );
    assert_eq!(probe.status.code(), Some(0), "{}", stderr(&probe));
    assert_eq!(other.status.code(), Some(2));
    assert!(
        stderr(&other).contains("which is 64, not 65"),
        "{}",
        stderr(&other)
    );
    assert!(stdout(&listed).contains("parameter"), "{}", stderr(&listed));
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    let place = Sandbox::new();
    let [first, second, _] = cifarnet();
    for (arguments, expected) in [
        (
            &["--recorded", &first, &second, "--batches", "64"][..],
            "1 batches for 2 recordings",
        ),
        (
            &["--recorded", &first, &second, "--batches", "64,5"],
            ".b128.gz: the file is of batch 128, not 5",
        ),
        (
            &["--recorded", &first, &first],
            "two recordings are of batch 64",
        ),
        (
            &["--recorded", &first, "--model", &second],
            "cannot be used with",
        ),
        (
            &["resnet18", "--recorded", &first],
            "is a model already; with --recorded",
        ),
        (
            &["--recorded", &first, &second, "--seq-len", "8"],
            "--seq-len",
        ),
        (&["--recorded", "nowhere.gz"], "nowhere.gz"),
    ] {
        let refused = place
            .batchfit()
            .args(["fit", "--on", "h200"])
            .args(arguments)
            .output()
            .unwrap();

        assert_eq!(
            refused.status.code(),
            Some(2),
            "{arguments:?}: {}",
            stderr(&refused)
        );
        assert!(
            stderr(&refused).contains(expected),
            "{arguments:?}: {}",
            stderr(&refused)
        );
    }
}

#[test]
fn recordings_that_align_are_described_and_others_refused() {
    let place = Sandbox::new();
    let [first, second, third] = cifarnet();
    let check = |arguments: &[&str]| {
        place
            .batchfit()
            .arg("record-check")
            .args(arguments)
            .output()
            .unwrap()
    };

    let aligned = check(&[&first, &second, "--against", &third, "--json"]);
    let text = check(&[&first, &second, &third]);
    let apart = check(&[&first, &golden("mlp-fp32-adam.b65.gz")]);

    assert_eq!(aligned.status.code(), Some(0), "{}", stderr(&aligned));
    let document: serde_json::Value = serde_json::from_slice(&aligned.stdout).unwrap();
    assert_eq!(document["predictions"][0]["batch"], 256);
    assert!(
        document["predictions"][0]["bytes_at_peak"]
            .as_f64()
            .unwrap()
            > 0.99
    );
    assert!(stdout(&text).contains("proportional"), "{}", stdout(&text));
    assert_eq!(apart.status.code(), Some(2));
    assert!(
        stderr(&apart).contains("they part at [\"line "),
        "{}",
        stderr(&apart)
    );
}
