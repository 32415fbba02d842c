//! `batchfit answers`, `outcome`, `outcomes`, and what `fit` does with earlier answers.

use std::process::Output;

use serde_json::{Value, json};

use super::{Sandbox, document, request, stderr, stdout};

impl Sandbox {
    fn run(&self, arguments: &[&str]) -> Output {
        self.batchfit().args(arguments).output().unwrap()
    }

    /// Asks `request`, and gives the fit's document.
    fn fit(&self, request: &Value, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["--json"]].concat();
        document(&self.ask("fit", request, &arguments))
    }

    /// Tells what a training by this answer came to.
    fn tell(&self, fit: &Value, outcome: &str, peak: &str) -> Output {
        let batch = fit["result"]["recommendation"]["micro_batch"].to_string();
        let id = fit["id"].as_str().unwrap();
        let said = [
            "outcome",
            id,
            "--batch",
            &batch,
            "--outcome",
            outcome,
            "--steps",
            "100",
            "--gpu",
            "NVIDIA H200",
            "--pytorch",
            "2.11.0+cu130",
        ];
        let peak: &[&str] = if peak.is_empty() {
            &[]
        } else {
            &["--peak-reserved", peak]
        };
        self.run(&[said.as_slice(), peak].concat())
    }
}

#[test]
fn what_is_told_raises_the_headroom_of_the_next_answer() {
    let place = Sandbox::new();
    let first = place.fit(&request(), &[]);
    let id = first["id"].as_str().unwrap();
    assert_eq!(
        first["result"]["recommendation"]["headroom"]["from"],
        "default"
    );

    let told = place.tell(&first, "out-of-memory", "");

    assert_eq!(told.status.code(), Some(0), "{}", stderr(&told));
    let text = stdout(&told);
    assert!(text.contains("before"), "{text}");
    let second = place.fit(&request(), &[]);
    let headroom = &second["result"]["recommendation"]["headroom"];
    assert_eq!(headroom["from"], "learnt");
    assert_eq!(headroom["outcomes"], 1);
    let batch = |fit: &Value| {
        fit["result"]["recommendation"]["micro_batch"]
            .as_u64()
            .unwrap()
    };
    assert!(batch(&second) < batch(&first));
    let people = stdout(&place.ask("fit", &request(), &["-v"]));
    assert!(
        people.contains("one outcome of earlier answers"),
        "{people}"
    );
    let asked = place.fit(&request(), &["--headroom", "0.005"]);
    assert_eq!(
        asked["result"]["recommendation"]["headroom"]["from"],
        "asked"
    );
    assert_eq!(batch(&asked), batch(&first));
    // Predicted against real, for the answer and for the model.
    let listed = document(&place.run(&["outcomes", id, "--json"]));
    assert_eq!(listed["items"][0]["outcome"], "out_of_memory");
    let text = stdout(&place.run(&["outcomes", id]));
    assert!(text.contains("out of memory"), "{text}");
    let known = document(&place.run(&["outcomes", "--json"]));
    assert_eq!(known["items"][0]["misses"], 1);
    assert_eq!(known["items"][0]["gpu"], "NVIDIA H200");
    let elsewhere = place.run(&["outcomes", "--gpu", "NVIDIA L4"]);
    assert!(stdout(&elsewhere).starts_with("No outcome was reported"));
}

#[test]
fn an_outcome_comes_from_a_file_and_counts_once_under_its_name() {
    let place = Sandbox::new();
    let fit = place.fit(&request(), &[]);
    let best = &fit["result"]["recommendation"];
    let told = json!({
        "batch": best["micro_batch"], "outcome": "fits", "peak_reserved_bytes": best["peak_reserved_bytes"],
        "retries": 0, "steps": 10, "environment": {"gpu": "NVIDIA H200", "pytorch": "2.11.0"},
    });
    place.write("outcome.json", &told.to_string());
    let id = fit["id"].as_str().unwrap();
    let tell = |more: &[&str]| {
        let said = ["outcome", id, "outcome.json", "--name", "run-1", "--json"];
        place.run(&[said.as_slice(), more].concat())
    };

    let first = document(&tell(&[]));
    let again = document(&tell(&[]));

    assert_eq!(first, again);
    assert_eq!(first["doubt"], Value::Null);
    assert_eq!(first["error"], 0.0);
    let other = tell(&["--steps", "11"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(stderr(&other).contains("--name"), "{}", stderr(&other));
    let known = document(&place.run(&["outcomes", "--json"]));
    assert_eq!(known["items"][0]["outcomes"], 1);
}

#[test]
fn wrong_outcomes_are_told_by_the_flag() {
    let place = Sandbox::new();
    let fit = place.fit(&request(), &[]);
    let id = fit["id"].as_str().unwrap();
    place.write(
        "negative.json",
        r#"{"batch": 1, "outcome": "fits", "peak_reserved_bytes": -5}"#,
    );
    place.write("list.json", "[]");

    for (arguments, about) in [
        (vec!["outcome", id, "--batch", "1"], "--outcome"),
        (vec!["outcome", id, "--outcome", "crashed"], "--batch"),
        (
            vec!["outcome", "nothing", "--batch", "1", "--outcome", "fits"],
            "no answer \"nothing\"",
        ),
        (vec!["outcome", id, "negative.json"], "peak_reserved_bytes"),
        (vec!["outcome", id, "list.json"], "no JSON object"),
        (vec!["outcome", id, "absent.json"], "absent.json"),
        (
            vec![
                "outcome",
                id,
                "--batch",
                "1",
                "--outcome",
                "fits",
                "--steps",
                "18446744073709551615",
            ],
            "steps",
        ),
        (
            vec![
                "outcome",
                id,
                "--batch",
                "1",
                "--outcome",
                "fits",
                "--gpu",
                "a\u{1b}[31m",
            ],
            "gpu",
        ),
        (
            vec![
                "outcome",
                id,
                "--batch",
                "1",
                "--outcome",
                "fits",
                "--name",
                "",
            ],
            "--name",
        ),
        (vec!["outcomes", "nothing"], "no answer \"nothing\""),
        (vec!["answers", "nothing"], "no answer \"nothing\""),
        (vec!["fit", "--again", "nothing"], "no answer \"nothing\""),
    ] {
        let refused = place.run(&arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        let text = stderr(&refused);
        assert!(text.contains(about), "{arguments:?}: {text}");
    }
}

#[test]
fn an_outdated_answer_is_marked_and_made_again() {
    let place = Sandbox::new();
    assert!(stdout(&place.run(&["answers"])).starts_with("No answer is stored"));
    let first = place.fit(&request(), &[]);
    let id = first["id"].as_str().unwrap();
    let listed = document(&place.run(&["answers", "--json"]));
    assert_eq!(listed["items"][0]["fit_id"], id);
    assert_eq!(listed["items"][0]["stale"], Value::Null);

    place.tell(&first, "out-of-memory", "");

    let listed = document(&place.run(&["answers", "--gpu", "NVIDIA H200", "--json"]));
    assert_eq!(
        listed["items"][0]["stale"]["because"][0]["what"],
        "headroom"
    );
    let text = stdout(&place.run(&["answers", id]));
    let words: Vec<&str> = text.split_whitespace().collect();
    let says = format!("`batchfit fit --again {id}` makes it again.");
    assert!(words.join(" ").ends_with(&says), "{text}");
    let again = document(&place.run(&["fit", "--again", id, "--json"]));
    assert_eq!(again["request"], first["request"]);
    assert_eq!(
        again["result"]["recommendation"]["headroom"]["from"],
        "learnt"
    );
    let other = document(&place.run(&["fit", "--again", id, "--memory-limit", "2GiB", "--json"]));
    assert_eq!(
        other["result"]["recommendation"]["limit_bytes"],
        2_u64 << 30
    );
    let listed = document(&place.run(&["answers", "--limit", "2", "--json"]));
    let stale = |item: usize| &listed["items"][item]["stale"];
    assert_eq!((stale(0), stale(1)), (&Value::Null, &Value::Null));
    assert!(listed["next"].is_string());
}

#[test]
fn the_stored_answer_or_the_nearest_one_is_shown_without_computing() {
    let place = Sandbox::new();
    let near =
        |arguments: &[&str]| place.ask("fit", &request(), &[&["--stored"], arguments].concat());
    let none = near(&[]);
    assert_eq!(none.status.code(), Some(2));
    assert!(
        stderr(&none).contains("no answer for this model"),
        "{}",
        stderr(&none)
    );
    let fit = place.fit(&request(), &[]);

    let exact = document(&near(&["--json"]));
    assert_eq!(
        (&exact["exact"], &exact["differs"]),
        (&json!(true), &json!([]))
    );
    assert_eq!(exact["recommendation"]["fit_id"], fit["id"]);
    let other = document(&near(&[
        "--memory-limit",
        "3GiB",
        "--optimizer",
        "adam",
        "--json",
    ]));
    assert_eq!(other["exact"], false);
    assert_eq!(other["differs"], json!(["optimizer", "limit_bytes"]));
    // A GPU that is not here.
    let absent = document(&near(&["--device", "cuda:77", "--json"]));
    assert_eq!(absent["differs"], json!(["device"]));
    let text = stdout(&near(&["--memory-limit", "3GiB"]));
    assert!(text.contains("differs in: limit bytes."), "{text}");
    let env = near(&["--format", "env"]);
    assert_eq!(env.status.code(), Some(2));
    // Nothing was stored by looking.
    let listed = document(&place.run(&["answers", "--json"]));
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
}

#[test]
fn headroom_that_was_asked_for_teaches_others_nothing() {
    let place = Sandbox::new();
    let plain = place.fit(&request(), &[]);
    let asked = place.fit(&request(), &["--headroom", "0.2"]);
    let best = |fit: &Value| fit["result"]["recommendation"].clone();
    assert_ne!(best(&asked)["micro_batch"], best(&plain)["micro_batch"]);

    let told = place.tell(
        &asked,
        "fits",
        &best(&asked)["peak_reserved_bytes"].to_string(),
    );

    assert_eq!(told.status.code(), Some(0), "{}", stderr(&told));
    let after = place.fit(&request(), &[]);
    assert_eq!(best(&after)["micro_batch"], best(&plain)["micro_batch"]);
}

/// A small GPT-2 on sentences of several lengths, or of one.
fn sentences(lengths: &str) -> Value {
    let mut request = json!({
        "model": {"hf": {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 512
        }},
        "device": "sim:h200", "memory_limit": "512MiB"
    });
    if lengths.contains(',') {
        request["lengths"] = json!({ "seq_len": lengths });
    } else {
        request["model"]["seq_len"] = lengths.parse::<u64>().unwrap().into();
    }
    request
}

#[test]
fn a_training_that_mixes_lengths_teaches_nothing_of_one_length() {
    let place = Sandbox::new();
    let batch = |fit: &Value| fit["result"]["recommendation"]["micro_batch"].clone();
    let one = place.fit(&sentences("256"), &[]);
    let mixed = place.fit(&sentences("32,64,256"), &[]);

    let told = place.tell(&mixed, "fits", "700MiB");

    assert_eq!(told.status.code(), Some(0), "{}", stderr(&told));
    assert_eq!(batch(&place.fit(&sentences("256"), &[])), batch(&one));
    let again = place.fit(&sentences("32,64,256"), &[]);
    assert!(batch(&again).as_u64() < batch(&mixed).as_u64());
    // Nor is the answer of the one that of the other.
    let near = place.ask("fit", &sentences("128"), &["--stored"]);
    assert!(!stdout(&near).contains("Train with"), "{}", stdout(&near));
}

#[test]
fn what_was_reserved_is_a_size() {
    let place = Sandbox::new();
    let fit = place.fit(&request(), &[]);
    for wrong in ["0.5", "much", "-1", "13.9"] {
        let told = place.tell(&fit, "fits", wrong);
        assert_eq!(told.status.code(), Some(2), "{wrong}");
    }
}
