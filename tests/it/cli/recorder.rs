//! `--recorder` and `--module`, against a recorder that hands out golden recordings or misbehaves.

use std::path::PathBuf;
use std::process::Output;

use serde_json::{Value, json};

use super::{Sandbox, stderr, stdout};
use crate::recorder;

fn graph_of_unknown(place: &Sandbox) -> PathBuf {
    place.write("graph.json", &recorder::graph_of_unknown().to_string())
}

/// A recorder that behaves.
fn fake(place: &Sandbox) -> PathBuf {
    recorder::fake(place.directory.path(), "")
}

fn run(place: &Sandbox, arguments: &[&str]) -> Output {
    place.batchfit().args(arguments).output().unwrap()
}

/// The orders that the recorder was given.
fn orders(place: &Sandbox) -> Vec<Value> {
    recorder::orders(place.directory.path())
}

const ON: [&str; 4] = ["--on", "h200", "--memory-limit", "40GiB"];

#[test]
fn a_graph_with_an_unknown_operator_is_recorded_where_there_is_a_recorder() {
    let place = Sandbox::new();
    let (graph, python) = (graph_of_unknown(&place), fake(&place));
    let graph = graph.to_str().unwrap();

    let without = run(&place, &["fit", graph, ON[0], ON[1]]);
    let with = [
        &[
            "fit",
            graph,
            "--json",
            "--recorder",
            python.to_str().unwrap(),
        ],
        &ON[..],
        &["--precision", "amp_bf16"],
    ];
    let answered = run(&place, &with.concat());

    assert_eq!(without.status.code(), Some(2));
    assert!(
        stderr(&without).contains("frobnicate"),
        "{}",
        stderr(&without)
    );
    assert_eq!(answered.status.code(), Some(0), "{}", stderr(&answered));
    let document: Value = serde_json::from_slice(&answered.stdout).unwrap();
    let recommendation = &document["result"]["recommendation"];
    assert_eq!(recommendation["evidence"], "recorded");
    // What PyTorch trained on an H200; the fake hands out recordings of gpt2.
    assert_eq!(recommendation["max_batch_without_retries"], 27);
    let notes = recommendation["notes"].to_string();
    assert!(notes.contains("recorded at batch 2, 4"), "{notes}");
    assert!(notes.contains("frobnicate"), "{notes}");
    let training = &document["result"]["variants"][0]["training"];
    assert_eq!(training["precision"], "amp_bf16");
    assert_eq!(document["result"]["environment"]["pytorch"], "2.11.0");
    assert_eq!(document["result"]["gpu_work"]["runs"][0]["batch"], 2);
    let orders = orders(&place);
    assert_eq!(orders[0]["training"]["precision"], "amp_bf16");
    assert_eq!(orders[0]["arguments"], json!(["-m", "batchfit.recorder"]));
    assert_eq!(orders[1]["limit_bytes"], 40_u64 << 30);
}

#[test]
fn a_recorded_search_says_how_to_get_a_recorder() {
    let place = Sandbox::new();
    let graph = graph_of_unknown(&place);

    let output = run(
        &place,
        &[
            "fit",
            graph.to_str().unwrap(),
            ON[0],
            ON[1],
            "--search",
            "recorded",
        ],
    );

    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--recorder PYTHON"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_has_no_graph_cannot_be_recorded() {
    let place = Sandbox::new();
    let python = fake(&place);

    let output = run(
        &place,
        &[
            &["fit", "resnet18", "--search", "recorded", "--recorder"],
            &[python.to_str().unwrap()][..],
            &ON[..],
        ]
        .concat(),
    );

    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("batchfit export"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_target_is_recorded_with_gradients_that_live_on() {
    let place = Sandbox::new();
    let (graph, python) = (graph_of_unknown(&place), fake(&place));

    let output = run(
        &place,
        &[
            &[
                "fit",
                graph.to_str().unwrap(),
                "--json",
                "--target",
                "64",
                "--recorder",
            ],
            &[python.to_str().unwrap()][..],
            &ON[..],
        ]
        .concat(),
    );

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let accumulation: Vec<u64> = orders(&place)
        .iter()
        .filter_map(|order| order["accumulation"].as_u64())
        .collect();
    assert_eq!(accumulation.first(), Some(&1));
    assert_eq!(accumulation.last(), Some(&2), "{accumulation:?}");
}

#[test]
fn a_module_is_named_on_the_recorders_command_line_alone() {
    let place = Sandbox::new();
    let python = fake(&place);

    let output = run(
        &place,
        &[
            &[
                "fit",
                "--module",
                "mine:build",
                "--batch",
                "x=f32[B,8]",
                "y=i64[B]",
                "--loss",
                "mse",
                "--json",
                "--recorder",
            ],
            &[python.to_str().unwrap()][..],
            &ON[..],
        ]
        .concat(),
    );

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["result"]["recommendation"]["evidence"], "recorded");
    let recorded = document["request"]["model"]["recorded"].as_array().unwrap();
    assert!(recorded.len() >= 2);
    let opened = &orders(&place)[0];
    assert_eq!(opened["graph"], Value::Null);
    assert_eq!(
        opened["arguments"],
        json!([
            "-m",
            "batchfit.recorder",
            "--module=mine:build",
            "--loss=mse",
            "--batch=x=f32[B,8]",
            "--batch=y=i64[B]"
        ])
    );
}

#[test]
fn a_probe_runs_the_batch_itself() {
    let place = Sandbox::new();
    let (graph, python) = (graph_of_unknown(&place), fake(&place));
    let probe = |batch: &str| {
        let arguments = [
            &[
                "probe",
                graph.to_str().unwrap(),
                "--batch",
                batch,
                "--json",
                "--recorder",
            ],
            &[python.to_str().unwrap()][..],
            &ON[..],
        ];
        run(&place, &arguments.concat())
    };

    let recorded = probe("8");
    let too_large = probe("64");

    assert_eq!(recorded.status.code(), Some(0), "{}", stderr(&recorded));
    let report: Value = serde_json::from_slice(&recorded.stdout).unwrap();
    assert_eq!(report["evidence"], "recorded");
    assert_eq!(too_large.status.code(), Some(3), "{}", stderr(&too_large));
    assert!(stdout(&too_large).contains("out_of_memory"));
}

#[test]
fn a_recorder_that_does_not_do_its_work_is_an_error_with_its_last_line() {
    let cases = [
        ("dies", 4, "No module named 'batchfit'"),
        ("babble", 4, "wrote a line of more than 1 MiB"),
        ("other version", 4, "version 2"),
        ("refuses", 2, "no such operator"),
        ("crashes", 4, "illegal memory access"),
        ("elsewhere", 4, "recorder's file"),
        ("link", 4, "is no file"),
        ("out of memory", 2, "nothing fits"),
    ];
    for (how, code, says) in cases {
        let place = Sandbox::new();
        let python = recorder::fake(place.directory.path(), how);
        let graph = graph_of_unknown(&place);
        let arguments = [
            &[
                "fit",
                graph.to_str().unwrap(),
                "--recorder",
                python.to_str().unwrap(),
            ],
            &ON[..],
        ];

        let output = run(&place, &arguments.concat());

        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{how}: {told}");
        assert!(told.contains(says), "{how}: {told}");
    }
}

#[test]
fn a_recorder_that_hangs_is_ended_with_all_that_it_started() {
    let place = Sandbox::new();
    let python = recorder::fake(place.directory.path(), "hangs");
    let graph = graph_of_unknown(&place);
    let arguments = [
        &[
            "fit",
            graph.to_str().unwrap(),
            "--recorder",
            python.to_str().unwrap(),
        ],
        &ON[..],
        &["--probe-deadline", "1"],
    ];

    let output = run(&place, &arguments.concat());

    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("did not answer within 1.0 s"),
        "{}",
        stderr(&output)
    );
    recorder::assert_ended(place.directory.path());
}
