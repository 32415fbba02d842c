//! `batchfit fit` with several lengths or sizes.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Sandbox, document, stderr, stdout};

/// A small GPT-2, whose lengths can be anything up to 1024.
fn gpt2() -> Value {
    json!({
        "model": {"hf": {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
            "n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 512
        }},
        "device": "sim:h200",
        "memory_limit": "512MiB"
    })
}

/// What a fit of one length alone recommends.
fn alone(place: &Sandbox, request: &Value, member: &str, length: &Value) -> Value {
    let mut request = request.clone();
    request["model"][member] = length.clone();
    let answered = document(&place.ask("fit", &request, &["--json"]));
    answered["result"]["recommendation"].clone()
}

/// The members of a recommendation but its notes, which may stand at the answer instead, and why it is so, which only a fit of that
/// length alone says.
fn figures(recommendation: &Value) -> Value {
    let mut figures = recommendation.clone();
    for member in ["notes", "why"] {
        figures.as_object_mut().unwrap().remove(member);
    }
    figures
}

#[test]
fn each_row_is_a_fit_of_that_length() {
    let place = Sandbox::new();

    let answered = place.ask(
        "fit",
        &gpt2(),
        &["--json", "--seq-len", "64,33,200-300:100"],
    );

    let result = document(&answered)["result"].clone();
    let table = &result["lengths"];
    let rows = table["rows"].as_array().unwrap();
    let lengths: Vec<u64> = rows
        .iter()
        .map(|row| row["length"].as_u64().unwrap())
        .collect();
    assert_eq!(lengths, [33, 64, 200, 300]);
    for row in rows {
        let expected = alone(&place, &gpt2(), "seq_len", &row["length"]);
        assert_eq!(figures(&row["recommendation"]), figures(&expected), "{row}");
    }
    let smallest = rows
        .iter()
        .map(|row| row["recommendation"]["micro_batch"].as_u64().unwrap())
        .min();
    assert_eq!(result["recommendation"]["micro_batch"].as_u64(), smallest);
    assert_eq!(
        result["variants"][0]["recommendation"],
        result["recommendation"]
    );
}

#[test]
fn a_budget_is_safe_at_every_length_and_one_more_token_is_not() {
    let place = Sandbox::new();

    let answered = place.ask("fit", &gpt2(), &["--json", "--seq-len", "32-256:32"]);

    let table = document(&answered)["result"]["lengths"].clone();
    let rows = table["rows"].as_array().unwrap();
    let budget = table["budget"].as_u64().unwrap();
    let safe = |row: &Value| row["recommendation"]["micro_batch"].as_u64().unwrap();
    assert_eq!(table["budget_was_run"], true);
    for row in rows {
        let length = row["length"].as_u64().unwrap();
        assert_eq!(row["within_budget"].as_u64(), Some(budget / length));
        assert!(budget / length <= safe(row), "{row}");
    }
    let is_safe = |budget: u64| {
        rows.iter()
            .all(|row| budget / row["length"].as_u64().unwrap() <= safe(row))
    };
    assert!(!is_safe(budget + 1));
}

#[test]
fn buckets_pad_less_under_the_histogram() {
    let place = Sandbox::new();
    let mut request = gpt2();
    request["lengths"] = json!({"seq_len": {"32": 900, "64": 90, "256": 10}, "buckets": 2});

    let answered = place.ask("fit", &request, &["--json"]);

    let table = document(&answered)["result"]["lengths"].clone();
    let buckets = table["buckets"].as_array().unwrap();
    // 32 and 64 together: 900 samples of 32 padded to 64 are 28,800 tokens; 64 padded to 256 would be 17,280.
    assert_eq!(buckets[0]["lengths"], json!([32, 32]));
    assert_eq!(buckets[1]["lengths"], json!([64, 256]));
    assert_eq!(buckets[1]["count"], 100);
    let padding = 1.0 - (90.0 * 64.0 + 10.0 * 256.0) / (100.0 * 256.0);
    assert!((buckets[1]["padding"].as_f64().unwrap() - padding).abs() < 1e-9);
    let batch = buckets[1]["micro_batch"].as_u64().unwrap();
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows[2]["recommendation"]["micro_batch"], batch);
    assert_eq!(
        buckets[1]["batches"].as_u64(),
        Some(100_u64.div_ceil(batch))
    );
}

#[test]
fn sizes_of_images_are_answered_alike() {
    let place = Sandbox::new();
    let request = json!({
        "model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "2GiB"
    });

    let answered = place.ask(
        "fit",
        &request,
        &["--json", "--image-size", "64,96x64,64x96"],
    );

    let table = document(&answered)["result"]["lengths"].clone();
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let expected = alone(&place, &request, "image_size", &row["length"]);
        assert_eq!(figures(&row["recommendation"]), figures(&expected), "{row}");
    }
    // None of the last two holds the other, so each is a bucket of its own.
    assert_eq!(table["buckets"].as_array().unwrap().len(), 3);
    assert_eq!(table["padding_of_one_bucket"], Value::Null);
}

#[test]
fn variants_are_those_of_the_length_that_decides() {
    let place = Sandbox::new();

    let answered = place.ask(
        "fit",
        &gpt2(),
        &[
            "--json",
            "--seq-len",
            "64,512",
            "--checkpoint",
            "none,per_block",
        ],
    );

    let result = document(&answered)["result"].clone();
    let table = &result["lengths"];
    assert_eq!(table["training"], result["variants"][0]["training"]);
    for row in table["rows"].as_array().unwrap() {
        let variants = row["variants"].as_array().unwrap();
        assert_eq!(variants.len(), 2);
        let same = variants
            .iter()
            .find(|variant| variant["training"] == table["training"]);
        assert_eq!(
            figures(&same.unwrap()["recommendation"]),
            figures(&row["recommendation"])
        );
    }
}

/// A graph of `tests/golden/lengths`.
fn graph(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/lengths");
    folder.join(format!("{name}.json.gz")).display().to_string()
}

#[test]
fn a_graph_that_leaves_its_length_open_is_that_of_each_length() {
    let place = Sandbox::new();
    let fit = |graph: &str, flags: &[&str]| {
        let all = [
            "fit",
            "--model",
            graph,
            "--on",
            "t4",
            "--memory-limit",
            "1GiB",
            "--json",
        ];
        let output = place.batchfit().args(all).args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        document(&output)["result"].clone()
    };

    let table = fit(&graph("open"), &["--seq-len", "24,64"])["lengths"].clone();

    for (row, length) in table["rows"].as_array().unwrap().iter().zip(["24", "64"]) {
        let exported = fit(&graph(length), &[]);
        assert_eq!(
            figures(&row["recommendation"]),
            figures(&exported["recommendation"]),
            "{length}"
        );
        let one = fit(&graph("open"), &["--seq-len", length]);
        assert_eq!(
            figures(&one["recommendation"]),
            figures(&exported["recommendation"])
        );
    }
}

#[test]
fn where_there_is_no_such_length_it_is_said_what_would_be_right() {
    let place = Sandbox::new();
    let layers = json!({
        "model": {"layers": [{"type": "linear", "out_features": 8}], "input": {"shape": [8]}, "loss": "cross_entropy"}
    });
    place.write("layers.json", &layers.to_string());
    let vit = json!({"model": {"hf": {"architectures": ["ViTForImageClassification"]}}});
    place.write("vit.json", &vit.to_string());
    let (open, fixed) = (graph("open"), graph("24"));
    for (arguments, expected) in [
        (
            vec!["resnet18", "--seq-len", "8,9"],
            "--seq-len: this model has no seq_len that could differ; it has image_size",
        ),
        (
            vec!["layers.json", "--seq-len", "8,9"],
            "--seq-len: a model of layers has one seq_len",
        ),
        (
            vec!["vit.json", "--seq-len", "8,9"],
            "--seq-len: samples of this model do not change with seq_len",
        ),
        (
            vec!["gpt2", "--seq-len", "64", "--image-size", "8,9"],
            "--image-size: samples of this model do not change with image_size",
        ),
        (vec!["gpt2", "--seq-len", "8,2000"], "2000"),
        (
            vec!["--model", &fixed, "--seq-len", "8,9"],
            "export it with a second dynamic dimension",
        ),
        (
            vec!["--model", &open, "--seq-len", "8,257"],
            "exported for lengths up to 256",
        ),
        (
            vec!["--model", &open],
            "say how long samples are (`seq_len`)",
        ),
        (
            vec!["gpt2", "--seq-len", "1-4096"],
            "--seq-len: these are more than the 512 lengths",
        ),
        (vec!["gpt2", "--seq-len", "lengths.json"], "lengths.json"),
        (
            vec!["gpt2", "--buckets", "2"],
            "--buckets: lengths needs one of seq_len and image_size",
        ),
    ] {
        let refused = place
            .batchfit()
            .args(["fit", "--on", "t4"])
            .args(&arguments)
            .output()
            .unwrap();

        let said = stderr(&refused);
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert_ne!(refused.status.code(), Some(0), "{arguments:?}");
        assert_eq!(stdout(&refused), "");
    }
}

#[test]
fn a_file_holds_the_histogram() {
    let place = Sandbox::new();
    place.write("lengths.json", r#"{"64": 3, "32": 5}"#);

    let answered = place.ask("fit", &gpt2(), &["--json", "--seq-len", "lengths.json"]);

    let rows = document(&answered)["result"]["lengths"]["rows"].clone();
    let counts: Vec<&Value> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["count"])
        .collect();
    assert_eq!(counts, [5, 3]);
}

#[test]
fn trainers_get_the_batch_that_is_safe_at_all_lengths() {
    let place = Sandbox::new();

    let json = place.ask("fit", &gpt2(), &["--seq-len", "64,256", "--json"]);
    let env = place.ask("fit", &gpt2(), &["--seq-len", "64,256", "--format", "env"]);

    let micro_batch = document(&json)["result"]["recommendation"]["micro_batch"].to_string();
    assert!(
        stdout(&env).contains(&format!("BATCHFIT_MICRO_BATCH={micro_batch}\n")),
        "{}",
        stdout(&env)
    );
}

#[test]
fn one_length_and_several_are_not_both_the_answer() {
    let place = Sandbox::new();
    let mut both = gpt2();
    both["model"]["seq_len"] = json!(256);
    both["lengths"] = json!({"seq_len": "64,128"});

    let refused = place.ask("fit", &both, &[]);

    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("leave one out"),
        "{}",
        stderr(&refused)
    );
    let ask = |request: &Value, flag: &str| {
        document(&place.ask("fit", request, &["--json", "--seq-len", flag]))["result"].clone()
    };
    // A flag overrides what the request says, be it one or several.
    let mut several = gpt2();
    several["lengths"] = both["lengths"].clone();
    let one = ask(&several, "256");
    assert!(one.get("lengths").is_none_or(Value::is_null), "{one}");
    assert_eq!(
        one["recommendation"]["micro_batch"],
        alone(&place, &gpt2(), "seq_len", &json!(256))["micro_batch"]
    );
    let mut single = gpt2();
    single["model"]["seq_len"] = json!(256);
    let rows = ask(&single, "64,128")["lengths"]["rows"].clone();
    assert_eq!(rows.as_array().unwrap().len(), 2);
}

#[test]
fn an_error_about_the_longest_of_several_lengths_is_about_the_lengths() {
    let place = Sandbox::new();
    let mut request = gpt2();
    request["lengths"] = json!({"seq_len": "128,2000"});

    let refused = place.ask("fit", &request, &[]);

    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("/lengths/seq_len"),
        "{}",
        stderr(&refused)
    );
}
