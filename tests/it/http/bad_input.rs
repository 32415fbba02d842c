//! Requests that are refused: each with the place, the value and the nearest valid one.

use std::fmt::Write as _;

use super::Service;
use super::scripted::Scripted;

/// What is wrong, and the body.
const FITS: &[(&str, &str)] = &[
    ("empty body", ""),
    ("not JSON", "{\"model\": resnet18}"),
    ("cut off", "{\"model\": {\"preset\":\n \"resnet18\""),
    ("not an object", "[1, 2]"),
    ("no model", r#"{"device": "sim:h200"}"#),
    (
        "two models",
        r#"{"model": {"preset": "resnet18", "layers": []}}"#,
    ),
    (
        "unknown member",
        r#"{"model": {"preset": "resnet18"}, "devise": "sim:h200"}"#,
    ),
    ("unknown preset", r#"{"model": {"preset": "resnet5"}}"#),
    (
        "unknown override",
        r#"{"model": {"preset": "resnet18", "num_clases": 10}}"#,
    ),
    (
        "unknown precision",
        r#"{"model": {"preset": "resnet18"}, "training": {"precision": "fp61"}}"#,
    ),
    (
        "unknown optimizer",
        r#"{"model": {"preset": "resnet18"}, "training": {"optimizer": "adamv"}}"#,
    ),
    (
        "unknown training member",
        r#"{"model": {"preset": "resnet18"}, "training": {"precison": "fp32"}}"#,
    ),
    (
        "no accumulation",
        r#"{"model": {"preset": "resnet18"}, "training": {"accumulation": 0}}"#,
    ),
    (
        "unknown device",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h9"}"#,
    ),
    (
        "device of no kind",
        r#"{"model": {"preset": "resnet18"}, "device": "gpu0"}"#,
    ),
    (
        "zero limit",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": 0}"#,
    ),
    (
        "negative limit",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": -1}"#,
    ),
    (
        "limit in no unit",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "12 parsecs"}"#,
    ),
    (
        "negative target",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "target_batch": -8}"#,
    ),
    (
        "no ranks",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "world_size": 0}"#,
    ),
    (
        "unknown allocator setting",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "allocator": "expandable_segment:True"}"#,
    ),
    (
        "unknown layer",
        r#"{"model": {"layers": [{"type": "conv2", "out_channels": 8, "kernel_size": 3}], "input": {"shape": [3, 32, 32]}}, "device": "sim:h200"}"#,
    ),
    (
        "kernel larger than its input",
        r#"{"model": {"layers": [{"type": "conv2d", "out_channels": 8, "kernel_size": 99}], "input": {"shape": [3, 32, 32]}, "loss": "cross_entropy"}, "device": "sim:h200"}"#,
    ),
];

const PROBES: &[(&str, &str)] = &[
    (
        "no batch",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200"}"#,
    ),
    (
        "batch of zero",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "batch": 0}"#,
    ),
    (
        "negative batch",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "batch": -3}"#,
    ),
    (
        "half a sample",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "batch": 1.5}"#,
    ),
    (
        "huge batch",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "batch": 1e18}"#,
    ),
    (
        "two variants",
        r#"{"model": {"preset": "resnet18"}, "training": {"precision": ["fp32", "bf16"]}, "device": "sim:h200", "batch": 64}"#,
    ),
    (
        "batch in words",
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "batch": "64"}"#,
    ),
];

#[tokio::test]
async fn bad_requests_are_refused_and_nothing_is_stored() {
    let service = Service::start(Scripted::default()).await;
    let mut shown = String::new();

    for (path, table) in [("/v1/fits", FITS), ("/v1/probes", PROBES)] {
        for (wrong, body) in table {
            let answer = service.post(path, *body).await;
            assert_eq!(answer.header("content-type"), "application/problem+json");
            let problem = answer.json();
            // What is no JSON is no request, either.
            let is_json = problem["type"] != "/problems/body-malformed";
            let status = if is_json { 422 } else { 400 };
            assert_eq!(answer.status, status, "{wrong}: {}", answer.text);
            assert!(problem["pointer"].is_string(), "{wrong}: {problem}");
            let [kind, detail, pointer, value, nearest] =
                ["type", "detail", "pointer", "value", "nearest"].map(|name| &problem[name]);
            write!(
                shown,
                "{path}, {wrong}: {body}\n    {kind}\n    {detail}\n    \
                 pointer {pointer}  value {value}  nearest {nearest}\n\n"
            )
            .unwrap();
        }
    }

    insta::assert_snapshot!(shown);
    assert_eq!(
        service.get("/v1/fits").await.json()["items"],
        serde_json::json!([])
    );
}
