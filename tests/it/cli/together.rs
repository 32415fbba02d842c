//! What holds at all lengths of a fit together, whatever target, objective, variants or soak it has.

use serde_json::{Value, json};

use super::{Sandbox, document, stderr, stdout};

/// The answer to `fit` with these words.
fn fit(words: &str) -> Value {
    let output = help_of(&format!("{words} --json"));
    document(&output)["result"].clone()
}

fn help_of(words: &str) -> std::process::Output {
    let place = Sandbox::new();
    let words: Vec<&str> = words.split(' ').collect();
    let output = place.batchfit().arg("fit").args(words).output().unwrap();
    assert!(
        matches!(output.status.code(), Some(0 | 3)),
        "{}",
        stderr(&output)
    );
    output
}

/// The batch of a recommendation.
fn batch(of: &Value) -> u64 {
    of["micro_batch"].as_u64().unwrap()
}

/// What of a table does not depend on what is wanted.
fn figures(table: &Value) -> Value {
    let rows = table["rows"].as_array().unwrap().iter();
    let rows = rows.map(|row| (row["batch_units"].clone(), row["within_budget"].clone()));
    json!([
        rows.collect::<Vec<_>>(),
        table["budget"],
        table["buckets"],
        table["decides"]
    ])
}

#[test]
fn a_target_and_an_objective_change_the_recommendation_and_not_what_is_safe() {
    const ASKED: &str = "gpt2 --on rtx4090 --amp bf16 --seq-len 64:5200,128:2600,1024:60";
    let plain = fit(ASKED);
    for wish in ["--target 16", "--objective throughput"] {
        let wished = fit(&format!("{ASKED} {wish}"));

        assert_eq!(
            figures(&wished["lengths"]),
            figures(&plain["lengths"]),
            "{wish}"
        );
        let decides = plain["lengths"]["decides"].to_string();
        let alone = fit(&format!(
            "gpt2 --on rtx4090 --amp bf16 --seq-len {decides} {wish}"
        ));
        for name in ["micro_batch", "accumulation_steps", "peak_reserved_bytes"] {
            let (found, expected) = (&wished["recommendation"], &alone["recommendation"]);
            assert_eq!(found[name], expected[name], "{wish} {name}");
        }
    }
    assert!(plain["lengths"]["budget"].as_u64() > Some(10_000));
}

/// VGG16 in 4720 MiB, all of whose layers were recorded: larger images may leave headroom where smaller ones do not.
const HOLES: &str = "vgg16 --on h200 --memory-limit 4720MiB --amp fp16 --optimizer sgd";

#[test]
fn what_is_recommended_leaves_headroom_at_every_length() {
    let at_most = |size: &str, batch: u64| {
        let alone = fit(&format!("{HOLES} --image-size {size} --target {batch}"));
        self::batch(&alone["recommendation"])
    };
    let result = fit(&format!("{HOLES} --image-size 112,128"));

    let best = &result["recommendation"];
    let found = batch(best);
    assert!(found >= 100, "{best}");
    for size in ["112", "128"] {
        assert_eq!(at_most(size, found), found, "{size}");
    }
    assert!(best["samples_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(result["variants"][0]["recommendation"], *best);
}

#[test]
fn a_bucket_is_safe_at_each_of_its_lengths() {
    let result = fit(&format!("{HOLES} --image-size 112,128,192,224 --buckets 3"));

    let bucket = &result["lengths"]["buckets"][0];
    assert_eq!(bucket["lengths"], json!([112, 128]));
    let found = batch(bucket);
    assert!(found >= 100, "{bucket}");
    for size in ["112", "128"] {
        let alone = fit(&format!("{HOLES} --image-size {size} --target {found}"));
        assert_eq!(batch(&alone["recommendation"]), found, "{size}");
    }
}

#[test]
fn a_target_is_made_by_a_plan_that_is_safe_at_every_length() {
    let result = fit(&format!("{HOLES} --image-size 112,128 --target 158"));

    let best = &result["recommendation"];
    assert_eq!(
        [&best["micro_batch"], &best["accumulation_steps"]],
        [&json!(158), &json!(1)],
        "{best}"
    );
}

#[test]
fn variants_are_ranked_by_what_lasts_of_each() {
    const ASKED: &str = "gpt2 --on h200 --memory-limit 16GiB --seq-len 64,512,1024 --soak=steps=20";
    let all = ["amp_bf16", "fp32"];

    let result = fit(&format!("{ASKED} --precision {}", all.join(",")));

    let variants = result["variants"].as_array().unwrap();
    assert_eq!(variants.len(), 2);
    for variant in variants {
        let precision = variant["training"]["precision"].as_str().unwrap();
        let alone = fit(&format!("{ASKED} --precision {precision}"));
        let found = &variant["recommendation"];
        for name in ["micro_batch", "peak_reserved_bytes", "samples_per_second"] {
            assert_eq!(
                found[name], alone["recommendation"][name],
                "{precision} {name}"
            );
        }
        assert!(found["samples_per_second"].as_f64().unwrap() > 0.0);
        assert!(variant["pareto"].is_boolean(), "{variant}");
    }
    let batches: Vec<u64> = variants
        .iter()
        .map(|variant| batch(&variant["recommendation"]))
        .collect();
    assert!(batches.windows(2).all(|pair| pair[0] >= pair[1]));
    assert_eq!(result["recommendation"], variants[0]["recommendation"]);
    assert_eq!(
        result["soak"]["safe"]["batch"],
        variants[0]["recommendation"]["micro_batch"]
    );
    assert_eq!(result["lengths"]["training"], variants[0]["training"]);
}

#[test]
fn beyond_eight_variants_it_is_said_which_were_not_soaked() {
    let result = fit(
        "gpt2 --on h200 --memory-limit 8GiB --seq-len 64,128 --soak=steps=5 --precision amp_bf16,bf16,fp32 --optimizer \
         sgd,adam,adamw",
    );

    let variants = result["variants"].as_array().unwrap();
    assert_eq!(variants.len(), 9);
    let last = &variants[8];
    assert_eq!(last["rank"], 9);
    assert_eq!(last["pareto"], Value::Null);
    let notes = last["recommendation"]["notes"].to_string();
    assert!(notes.contains("not soaked"), "{notes}");
    let notes = result["recommendation"]["notes"].to_string();
    assert!(
        notes.contains("the best 8 of 9 variants were soaked"),
        "{notes}"
    );
}

#[test]
fn where_nothing_lasts_the_step_that_does_not_is_named() {
    const ASKED: &str =
        "gpt2 --on rtx4090 --amp bf16 --seq-len 64,128 --soak=steps=5,validation_batch=100000";

    let result = fit(ASKED);
    let text = stdout(&help_of(ASKED));

    let best = &result["recommendation"];
    assert_eq!(batch(best), 0);
    let limited = best["limited_by"].as_str().unwrap();
    assert!(
        limited.starts_with("validation with a batch of 100000 at length "),
        "{limited}"
    );
    assert_eq!(best["why"]["limit"]["kind"], "device");
    assert_eq!(best["why"]["limit"]["batch"], 100_000);
    assert_eq!(result["soak"]["fails"]["kind"], "validation");
    assert_eq!(result["soak"]["fails"]["step"], 6);
    assert!(!best["notes"].to_string().contains("safe at all"), "{best}");
    assert!(
        text.contains("\nNothing lasts, because of validation with a batch of 100000 at length "),
        "{text}"
    );
}

#[test]
fn where_the_host_is_too_small_that_is_named() {
    const ASKED: &str = "gpt2 --on 2xh200 --seq-len 64,256 --amp bf16 --parallel fsdp2 --cpu-offload --host-memory 1GiB \
                         --memory-limit 20GiB";

    let result = fit(ASKED);
    let text = stdout(&help_of(ASKED));

    let best = &result["recommendation"];
    assert_eq!(batch(best), 0);
    assert_eq!(best["why"]["limit"]["kind"], "host");
    let notes = best["notes"].to_string();
    assert!(!notes.contains("of seq_len 256 nothing fits"), "{notes}");
    assert!(
        text.contains("\nNothing fits: the host's memory is too small for what is offloaded.\n"),
        "{text}"
    );
}

#[test]
fn tables_have_a_line_for_all_lengths_with_what_is_recommended() {
    const ASKED: &str = "gpt2 --on h200 --memory-limit 16GiB --amp bf16 --seq-len 64,1024";
    for (soak, name) in [("", "all"), (" --soak=steps=20", "all, soaked")] {
        let result = fit(&format!("{ASKED}{soak}"));
        let text = stdout(&help_of(&format!("{ASKED}{soak} --format markdown")));

        let line = text.lines().last().unwrap();
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(cells[2], name, "{text}");
        assert_eq!(
            cells[4],
            batch(&result["recommendation"]).to_string(),
            "{text}"
        );
    }
}

#[test]
fn the_table_of_all_cards_has_what_lasts() {
    let place = Sandbox::new();
    let words = "fit gpt2 --memory-limit 6GiB --amp bf16 --seq-len 64,512 --soak=steps=5";
    let mut command = place.batchfit();
    let answered = command.args(words.split(' ')).output().unwrap();

    let text = stdout(&answered);
    let lines = text.lines().filter(|line| line.contains(" all, soaked "));
    assert_eq!(lines.count(), 9, "{text}");
}
