//! How long steps take, and answers that are to be fast.

use serde_json::{Value, json};

use super::{Sandbox, document, stdout};
use crate::sample::sample;

fn request_with(more: &Value) -> Value {
    let mut request = json!({
        "model": {"preset": "resnet18"}, "training": {"precision": "amp_bf16", "optimizer": "sgd_momentum"},
        "device": "sim:h200", "memory_limit": "16GiB"
    });
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

fn fitted(place: &Sandbox, more: &Value) -> Value {
    document(&place.ask("fit", &request_with(more), &["--json"]))["result"].clone()
}

/// Milliseconds of a step, as `batchfit program --times` says it.
fn listed(place: &Sandbox, more: &Value, arguments: &[&str]) -> f64 {
    let arguments = [arguments, &["--times"]].concat();
    let text = stdout(&place.ask("program", &request_with(more), &arguments));
    let after = text.split_once(" takes ").unwrap().1;
    after.split_once(" ms").unwrap().0.parse().unwrap()
}

fn number(of: &Value) -> f64 {
    of.as_f64().unwrap()
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.001
}

#[test]
fn a_fit_says_how_long_a_step_takes_as_the_listing_does() {
    let place = Sandbox::new();
    for (device, from) in [("sim:h200", "calibrated"), ("sim:t4", "estimated")] {
        let on = json!({"device": device, "memory_limit": "8GiB"});

        let best = fitted(&place, &on)["recommendation"].clone();

        let batch = best["micro_batch"].to_string();
        let listed = listed(&place, &on, &["--batch", &batch]);
        assert!(is_near(number(&best["step_ms"]), listed), "{best}");
        assert_eq!(best["step_ms"], best["optimizer_step_ms"]);
        assert_eq!(best["speed_from"], from);
        let rate = 1000.0 * number(&best["micro_batch"]) / number(&best["step_ms"]);
        assert!(is_near(number(&best["samples_per_second"]), rate), "{best}");
    }
}

#[test]
fn an_optimizer_step_takes_as_long_as_all_its_micro_steps_and_one_update() {
    let place = Sandbox::new();
    let target = json!({"target_batch": 8192, "memory_limit": "6GiB"});

    let best = fitted(&place, &target)["recommendation"].clone();

    let steps = best["accumulation_steps"].as_u64().unwrap();
    // More than a probe runs, so that the rest is worked out.
    assert!(steps > 4, "{best}");
    let (batch, steps) = (best["micro_batch"].to_string(), steps.to_string());
    let arguments = ["--batch", &batch, "--accumulation", &steps];
    let listed = listed(&place, &json!({"memory_limit": "6GiB"}), &arguments);
    assert!(
        is_near(number(&best["optimizer_step_ms"]), listed),
        "{listed} {best}"
    );
}

#[test]
fn throughput_is_nearly_as_fast_with_a_smaller_batch() {
    let place = Sandbox::new();
    let throughput = json!({"objective": "throughput"});

    let largest = fitted(&place, &json!({}))["recommendation"].clone();
    let fast = fitted(&place, &throughput)["recommendation"].clone();

    let batch = |found: &Value| found["micro_batch"].as_u64().unwrap();
    assert!(batch(&fast) < batch(&largest), "{fast}");
    assert!(
        number(&fast["samples_per_second"]) >= 0.95 * number(&largest["samples_per_second"]),
        "{fast}"
    );
    assert_eq!(fast["max_batch"], largest["max_batch"]);
    // One sample fewer is too slow.
    let below = (batch(&fast) - 1).to_string();
    let below = listed(&place, &json!({}), &["--batch", &below]);
    let rate = 1000.0 * (number(&fast["micro_batch"]) - 1.0) / below;
    assert!(rate < number(&fast["samples_per_second"]), "{fast}");

    let more = json!({"objective": "throughput", "target_batch": 4096});
    let made = fitted(&place, &more)["recommendation"].clone();
    assert_eq!(made["shortfall"], 0);
    assert!(batch(&made) < batch(&largest));
}

#[test]
fn variants_are_ranked_by_speed_and_those_that_none_beats_are_marked() {
    let place = Sandbox::new();
    let many = json!({
        "training": {"precision": ["fp32", "amp_bf16"], "optimizer": "sgd_momentum", "checkpointing": ["none", "per_block"]}
    });

    let result = fitted(&place, &many);

    let variants = result["variants"].as_array().unwrap();
    let points: Vec<(u64, f64)> = variants
        .iter()
        .map(|variant| {
            let found = &variant["recommendation"];
            let batch = found["micro_batch"].as_u64().unwrap();
            (batch, number(&found["samples_per_second"]))
        })
        .collect();
    assert!(points.is_sorted_by(|a, b| a.1 >= b.1), "{points:?}");
    for (variant, point) in variants.iter().zip(&points) {
        let is_beaten = points
            .iter()
            .any(|other| other != point && other.0 >= point.0 && other.1 >= point.1);
        assert_eq!(variant["pareto"], !is_beaten, "{points:?}");
    }
    let text = stdout(&place.ask("fit", &request_with(&many), &[]));
    assert!(text.contains("samples/s"), "{text}");
    assert!(text.contains("unbeaten"), "{text}");
}

#[test]
fn several_gpus_have_no_time_and_the_answer_says_why() {
    let place = Sandbox::new();

    let best = fitted(&place, &json!({"world_size": 2}))["recommendation"].clone();

    assert_eq!(best["step_ms"], Value::Null);
    assert_eq!(best["speed_from"], Value::Null);
    let notes = best["notes"].as_array().unwrap();
    let why = "how long a step takes is not known: what GPUs send each other is not timed in a simulation";
    assert!(notes.iter().any(|note| note == why), "{notes:?}");
}

#[test]
fn an_objective_that_there_is_none_of_is_refused() {
    let place = Sandbox::new();

    let refused = place.ask("fit", &request_with(&json!({"objective": "thruput"})), &[]);

    assert_eq!(refused.status.code(), Some(2));
    let told = super::stderr(&refused);
    assert!(told.contains("throughput"), "{told}");
}

#[test]
fn a_probe_says_it_too() {
    let place = Sandbox::new();

    let probed = document(&place.ask(
        "probe",
        &request_with(&json!({})),
        &["--batch", "64", "--json"],
    ));

    let listed = listed(&place, &json!({}), &["--batch", "64"]);
    assert!(is_near(number(&probed["optimizer_step_ms"]), listed));
    assert_eq!(probed["speed_from"], "calibrated");
    let text = stdout(&place.ask("probe", &request_with(&json!({})), &["--batch", "64"]));
    assert!(text.contains("time of a step"), "{text}");
    // What does not fit takes no time.
    let more = ["--batch", "60000", "--json"];
    let refused = document(&place.ask("probe", &request_with(&json!({})), &more));
    assert_eq!(refused["optimizer_step_ms"], Value::Null);
}

/// The program of a simulation has no launches, and is timed by what they would have asked.
#[test]
fn all_that_is_launched_is_timed() {
    let place = Sandbox::new();
    let names = [
        "family-attention",
        "family-lookup",
        "family-pointwise",
        "gpt2-table",
        "mixtral-tiny",
        "t5-tiny",
        "unet",
    ];
    for name in sample(3, names) {
        let file = format!(
            "{}/tests/golden/exported/{name}.json.gz",
            env!("CARGO_MANIFEST_DIR")
        );
        let request = json!({"model": {"preset": "resnet18"}, "device": "sim:h200"});
        let with = ["--model", &file, "--batch", "4"];

        let probed = document(&place.ask("probe", &request, &[&with[..], &["--json"]].concat()));

        let text = stdout(&place.ask("program", &request, &[&with[..], &["--times"]].concat()));
        let after = text.split_once(" takes ").unwrap().1;
        let listed: f64 = after.split_once(" ms").unwrap().0.parse().unwrap();
        assert!(
            is_near(number(&probed["optimizer_step_ms"]), listed),
            "{name}"
        );
    }
}
