//! `batchfit search --ask-tell`: whatever the other side says.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Sandbox, stderr, stdout};
use crate::sample::sample;

/// What is answered to these lines.
fn replies(place: &Sandbox, input: impl Into<Vec<u8>>, arguments: &[&str]) -> Vec<Value> {
    let output = place
        .batchfit()
        .args(["search", "--ask-tell"])
        .args(arguments)
        .write_stdin(input)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn recording(case: &str, batch: u64) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/recorded");
    folder
        .join(format!("{case}.b{batch}.gz"))
        .display()
        .to_string()
}

fn lines(lines: &[Value]) -> String {
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    lines.join("\n") + "\n"
}

const CASE: &str = "cifarnet-fp32-sgd";

/// A search that ends with 328: what is looked for, and what is told.
fn short(more: &Value) -> Vec<Value> {
    let mut terms = json!({"memory_limit": "330MiB", "avoid_out_of_memory": true, "gpu": "NVIDIA H200", "start_batch": 64});
    terms
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let told =
        |batch: u64| json!({"batch": batch, "outcome": "fits", "recorded": recording(CASE, batch)});
    vec![
        terms,
        told(64),
        told(128),
        told(256),
        json!({"batch": 328, "outcome": "fits"}),
    ]
}

#[test]
fn each_line_is_answered_and_a_wrong_one_changes_nothing() {
    let place = Sandbox::new();
    let good = short(&json!({}));
    let huge = "x".repeat(2 << 20);
    let input = [
        "nonsense\n".to_owned(),
        "\n".to_owned(),
        "{\"max_bach\": 3}\n".to_owned(),
        lines(&good[..1]),
        format!("{huge}\n"),
        "{\"batch\": 2}\n".to_owned(),
        json!({"batch": 2, "outcome": "fits", "recorded": "/nowhere/at/all"}).to_string() + "\n",
        json!({"batch": 2, "outcome": "fits", "recorded": 7}).to_string() + "\n",
        json!({"batch": 5, "outcome": "fits", "recorded": recording(CASE, 64)}).to_string() + "\n",
        lines(&good[1..3]),
        json!({"batch": 65, "outcome": "fits", "recorded": recording("mlp-fp32-adam", 65)})
            .to_string()
            + "\n",
        // Nothing ends the last line.
        good[3].to_string(),
    ];

    let said = replies(&place, input.concat(), &[]);

    let shown: Vec<Value> = said
        .iter()
        .map(|answer| match answer.get("error") {
            Some(error) => json!([error["status"], error["pointer"]]),
            None => json!([answer["state"], answer["next_batch"]]),
        })
        .collect();
    let expected = json!([
        [400, ""],
        [400, ""],
        [422, "/max_bach"],
        ["active", 64],
        [413, null],
        [422, ""],
        [422, "/recorded"],
        [422, "/recorded"],
        [422, "/recorded"],
        ["active", 89],
        ["active", 240],
        [422, "/recorded"],
        ["active", 320],
    ]);
    assert_eq!(Value::from(shown), expected);
}

#[test]
fn an_answer_is_found_again_by_the_first_recording() {
    let place = Sandbox::new();
    let first = replies(&place, lines(&short(&json!({}))), &[]);
    let done = first.last().unwrap();
    assert_eq!(
        (&done["state"], &done["recommendation"]["micro_batch"]),
        (&json!("done"), &json!(328))
    );
    assert_eq!(done["answered_by"], Value::Null);

    let again = |more: Value| {
        let lines_of = short(&more);
        replies(&place, lines(&lines_of[..2]), &[]).pop().unwrap()
    };
    let found = again(json!({}));
    assert_eq!(found["state"], "done");
    assert_eq!(found["answered_by"], done["id"]);
    assert_eq!(found["recommendation"]["micro_batch"], 328);
    let notes = found["recommendation"]["notes"].to_string();
    assert!(
        notes.contains(&format!(
            "answered by search {} of 20",
            done["id"].as_str().unwrap()
        )),
        "{notes}"
    );
    // Nearly as much memory.
    assert_eq!(
        again(json!({"memory_limit": 332_u64 << 20}))["answered_by"],
        done["id"]
    );
    let others = [
        json!({"fresh": true}),
        json!({"gpu": "NVIDIA A100"}),
        json!({"gpu": null}),
        json!({"allocator": "expandable_segments:True"}),
        json!({"memory_limit": (330_u64 << 20) - 1}),
        json!({"memory_limit": "350MiB"}),
        json!({"target_batch": 4096}),
        json!({"world_size": 2}),
        json!({"max_batch": 100}),
    ];
    for other in sample(4, others) {
        let answer = again(other.clone());
        assert_eq!(
            (&answer["state"], &answer["answered_by"]),
            (&json!("active"), &Value::Null),
            "{other}"
        );
    }
    // News are taken, and open it again.
    let mut more = short(&json!({}));
    more.truncate(2);
    more.push(json!({"batch": 328, "outcome": "out_of_memory"}));
    let reopened = replies(&place, lines(&more), &[]).pop().unwrap();
    assert_eq!(
        (&reopened["state"], &reopened["answered_by"]),
        (&json!("active"), &Value::Null)
    );
}

#[test]
fn where_nothing_can_be_kept_there_is_an_answer_all_the_same() {
    let place = Sandbox::new();
    let folder = place.directory.path().join("readonly");
    fs::create_dir(&folder).unwrap();
    // A folder in the place of the file: for whoever may write anything, too.
    fs::create_dir(folder.join("batchfit.db")).unwrap();
    let database = folder.join("batchfit.db").display().to_string();

    let all = replies(
        &place,
        lines(&short(&json!({}))),
        &["--database", &database],
    );

    assert_eq!(all.last().unwrap()["recommendation"]["micro_batch"], 328);
    let garbage = place.write(
        "garbage.db",
        "this is no database at all, and never was one: it is text",
    );
    let all = replies(
        &place,
        lines(&short(&json!({}))),
        &["--database", garbage.to_str().unwrap()],
    );
    assert_eq!(all.last().unwrap()["recommendation"]["micro_batch"], 328);
    assert!(
        fs::read_to_string(garbage)
            .unwrap()
            .starts_with("this is no database")
    );
}

#[test]
fn two_at_a_time_on_one_database_do_not_disturb_each_other() {
    let place = Sandbox::new();
    std::thread::scope(|scope| {
        let talks: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| replies(&place, lines(&short(&json!({"fresh": true}))), &[])))
            .collect();
        for talk in talks {
            let all = talk.join().unwrap();
            assert!(
                all.iter().all(|answer| answer.get("error").is_none()),
                "{all:?}"
            );
            assert_eq!(all.last().unwrap()["recommendation"]["micro_batch"], 328);
        }
    });
}

#[test]
fn it_takes_no_command_and_no_flags_of_one() {
    let place = Sandbox::new();
    for arguments in [
        &["--", "true", "{batch}"][..],
        &["--target", "5"],
        &["--json"],
    ] {
        let output = place
            .batchfit()
            .args(["search", "--ask-tell"])
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let output = place.batchfit().arg("search").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(replies(&place, "", &[]).is_empty());
}

/// Members of lines as somebody might write them.
fn member() -> impl Strategy<Value = (String, Value)> {
    let names = prop::sample::select(vec![
        "memory_limit",
        "target_batch",
        "world_size",
        "allocator",
        "start_batch",
        "max_batch",
        "avoid_out_of_memory",
        "gpu",
        "fresh",
        "batch",
        "outcome",
        "peak_reserved_bytes",
        "recorded",
        "else",
    ]);
    let value = prop_oneof![
        any::<u64>().prop_map(Value::from),
        (0..40_u64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
        prop::sample::select(vec![
            "fits",
            "out_of_memory",
            "crashed",
            "fits_with_retries",
            "12GiB",
            "",
            "0.5",
            "/dev/zero",
            "..",
            "\0"
        ])
        .prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({"a": []})),
    ];
    (names.prop_map(str::to_owned), value)
}

proptest! {
    /// Whatever lines come, each is answered by a search or by what is wrong.
    #[test]
    fn every_line_has_an_answer(all in prop::collection::vec(prop_oneof![
        4 => prop::collection::vec(member(), 0..5).prop_map(|members| Value::Object(members.into_iter().collect()).to_string()),
        2 => (1..40_u64, prop::sample::select(vec!["fits", "out_of_memory", "crashed"]))
            .prop_map(|(batch, outcome)| json!({"batch": batch, "outcome": outcome}).to_string()),
        1 => "[^\n]{0,40}",
    ], 0..30)) {
        let place = Sandbox::new();
        let input = [all.clone(), vec!["{}".to_owned()]].concat().join("\n");
        let answers = replies(&place, input, &["--database", "sqlite::memory:"]);
        prop_assert_eq!(answers.len(), all.len() + 1);
        for answer in answers {
            let is_error = answer["error"]["detail"].is_string();
            prop_assert!(is_error != answer["state"].is_string(), "{}", answer);
        }
    }
}
