//! Every kind of bad input is refused with its place, its value and what would be right.

use std::fmt::Write;

use batchfit::model::{ModelFiles, Request, RequestDocument};
use serde_json::{Value, json};

use super::{golden, golden_json, request};

/// The request with one field of its top level replaced.
fn with(field: &str, value: Value) -> Value {
    let mut request = json!({ "model": { "preset": "resnet18" } });
    request[field] = value;
    request
}

fn training(value: Value) -> Value {
    with("training", value)
}

/// A model of these layers on 3 x 32 x 32 images.
fn layers(list: &Value) -> Value {
    with(
        "model",
        json!({ "input": { "shape": [3, 32, 32] }, "layers": list }),
    )
}

/// What is said about each request, one line each.
fn problems(requests: Vec<Value>) -> String {
    let mut text = String::new();
    for document in requests {
        let refused = request(document.clone()).and_then(|request| request.graph());
        match refused {
            Err(invalid) => writeln!(text, "{document}\n    {invalid}").unwrap(),
            Ok(_) => panic!("{document} is accepted"),
        }
    }
    text
}

#[test]
fn malformed_json_is_refused_with_line_and_column() {
    let mut text = String::new();
    for json in [
        "",
        "{",
        "{\n  \"model\": }",
        "{} {}",
        "\u{0}",
        "{\"model\": {\"preset\": \"a\"},}",
    ] {
        let invalid = RequestDocument::from_json(json.as_bytes()).unwrap_err();
        writeln!(text, "{json:?}\n    {invalid}").unwrap();
    }

    insta::assert_snapshot!(text);
}

#[test]
fn unknown_words_are_answered_with_the_nearest() {
    let text = problems(vec![
        json!([]),
        json!({}),
        with("modle", json!(1)),
        with("traning", json!({})),
        training(json!({ "precison": "fp32" })),
        training(json!({ "precision": "fp61" })),
        training(json!({ "precision": ["fp32", "bf17"] })),
        training(json!({ "optimizer": "adamww" })),
        training(json!({ "optimizer": 3 })),
        training(json!({ "optimizer_impl": "for-loop" })),
        training(json!({ "checkpointing": "per-block" })),
        training(json!({ "checkpointing": { "module": ["layer1"] } })),
        training(json!({ "mode": "test" })),
        with("search", json!("probe")),
        with("device", json!("hx200")),
        with("device", json!("sim:h9")),
        with("device", json!("sim:zx81")),
        with("device", json!("gpu")),
        with("device", json!("cuda:-1")),
        with("device", json!("cuda:99999")),
        with("model", json!({})),
        with("model", json!("resnet51")),
        with("model", json!({ "prest": "resnet50" })),
        with("model", json!({ "preset": "resnet51" })),
        with("model", json!({ "preset": "resnet50", "num_clases": 10 })),
        with("model", json!({ "preset": "resnet50", "layers": [] })),
    ]);

    insta::assert_snapshot!(text);
}

#[test]
fn sizes_out_of_range_are_refused_with_their_bounds() {
    let text = problems(vec![
        with("target_batch", json!(0)),
        with("target_batch", json!(-256)),
        with("target_batch", json!(1.5)),
        with("target_batch", json!("1024")),
        with("world_size", json!(0)),
        with("memory_limit", json!("12 gigs")),
        with("memory_limit", json!("12G")),
        with("memory_limit", json!("0GiB")),
        with("memory_limit", json!("1.2")),
        with("memory_limit", json!(0)),
        with("memory_limit", json!(-1)),
        with("memory_limit", json!([1])),
        training(json!({ "accumulation": 0 })),
        training(json!({ "accumulation": 1_048_576 })),
        training(json!({
            "precision": ["fp32", "amp_fp16", "amp_bf16", "bf16", "fp16"],
            "optimizer": ["sgd", "sgd_momentum", "adam", "adamw"],
            "checkpointing": (0..8).map(|n| json!({ "modules": [format!("layer{n}")] })).collect::<Vec<_>>(),
        })),
        training(json!({ "precision": [] })),
        training(json!({ "checkpointing": { "modules": [] } })),
        with("model", json!({ "preset": "resnet18", "image_size": 0 })),
        with(
            "model",
            json!({ "preset": "resnet18", "image_size": [1, 2, 3] }),
        ),
        with(
            "model",
            json!({ "preset": "resnet18", "num_classes": 1e300 }),
        ),
        with(
            "model",
            json!({ "preset": "resnet18", "image_size": 2_147_483_648_u64 }),
        ),
        with("allocator", json!(true)),
    ]);

    insta::assert_snapshot!(text);
}

#[test]
fn what_contradicts_itself_is_refused() {
    let text = problems(vec![
        training(json!({ "mode": "inference", "optimizer": "adam" })),
        training(json!({ "mode": "inference", "accumulation": 4 })),
        training(json!({ "mode": "inference", "checkpointing": "per_block" })),
    ]);

    insta::assert_snapshot!(text);
}

#[test]
fn layers_that_do_not_fit_are_refused_at_the_layer() {
    let text = problems(vec![
        layers(&json!([])),
        layers(&json!({})),
        layers(&json!([{ "name": "a" }])),
        layers(&json!([{ "type": "conv2", "out_channels": 8, "kernel_size": 3 }])),
        layers(&json!([{ "type": "conv2d", "kernel_size": 3 }])),
        layers(&json!([{ "type": "conv2d", "out_channels": 8, "kernel_size": 3, "strides": 2 }])),
        layers(&json!([{ "type": "conv2d", "out_channels": 0, "kernel_size": 3 }])),
        layers(&json!([{ "type": "conv2d", "out_channels": 8, "kernel_size": [3, 0] }])),
        layers(&json!([{ "type": "conv2d", "out_channels": 8, "kernel_size": 64 }])),
        layers(&json!([{ "type": "conv2d", "out_channels": 8, "kernel_size": 3, "groups": 2 }])),
        layers(
            &json!([{ "type": "conv2d", "out_channels": 8, "kernel_size": 3, "in_channels": 4 }]),
        ),
        layers(
            &json!([{ "type": "flatten" }, { "type": "conv2d", "out_channels": 8, "kernel_size": 3 }]),
        ),
        layers(&json!([{ "type": "flatten" }, { "type": "batch_norm2d" }])),
        layers(
            &json!([{ "type": "flatten" }, { "type": "linear", "out_features": 10, "in_features": 10 }]),
        ),
        layers(
            &json!([{ "type": "flatten" }, { "type": "linear", "out_features": 2_147_483_648_u64 },
                      { "type": "linear", "out_features": 2_147_483_648_u64 }]),
        ),
        layers(&json!([{ "type": "relu", "name": "" }])),
        layers(&json!([{ "type": "relu", "name": "a/b" }])),
        layers(&json!([{ "type": "relu", "name": "a" }, { "type": "relu", "name": "a" }])),
        layers(
            &json!([{ "type": "relu", "name": "act" }, { "type": "add", "inputs": ["acct", "input"] }]),
        ),
        layers(&json!([{ "type": "add", "inputs": ["input"] }])),
        layers(&json!([{ "type": "add" }])),
        layers(
            &json!([{ "type": "max_pool2d", "kernel_size": 2 }, { "type": "add", "inputs": ["0", "input"] }]),
        ),
        layers(&json!([{ "type": "gelu", "approximate": "tan" }])),
        layers(&json!([{ "type": "dropout", "p": 1.5 }])),
        layers(&json!([{ "type": "flatten", "start_dim": 4 }])),
        layers(&json!([{ "type": "layer_norm", "normalized_shape": [16] }])),
        layers(&json!([{ "type": "embedding", "num_embeddings": 10, "embedding_dim": 4 }])),
        layers(
            &json!([{ "type": "flatten" }, { "type": "linear", "out_features": 10 },
                      { "type": "layer_norm", "normalized_shape": [] }]),
        ),
        with("model", json!({ "layers": [{ "type": "relu" }] })),
        with(
            "model",
            json!({ "input": { "shape": [] }, "layers": [{ "type": "relu" }] }),
        ),
        with(
            "model",
            json!({ "input": { "shape": [3, -1] }, "layers": [{ "type": "relu" }] }),
        ),
        with(
            "model",
            json!({ "input": { "shape": [3], "dtype": "float64" }, "layers": [{ "type": "relu" }] }),
        ),
        with(
            "model",
            json!({ "input": { "shape": [3] }, "layers": [{ "type": "relu" }], "loss": "mse" }),
        ),
        with(
            "model",
            json!({ "input": { "shape": [8], "dtype": "int64" }, "layers": [{ "type": "relu" }] }),
        ),
        with(
            "model",
            json!({ "input": { "shape": [1, 1, 1, 1, 8] }, "layers": [{ "type": "relu" }] }),
        ),
    ]);

    insta::assert_snapshot!(text);
}

#[test]
fn what_is_not_supported_yet_says_what_to_do_instead() {
    let text = problems(vec![
        with(
            "model",
            json!({ "hf": { "architectures": ["BertModel"] }, "seq_len": 512 }),
        ),
        with("model", json!({ "exported": "sha256:0123" })),
        with("model", json!({ "exported": "model.json" })),
    ]);

    insta::assert_snapshot!(text);
}

#[test]
fn all_unknown_operators_are_named_at_once_or_assumed() {
    let mut graph = golden_json("cifarnet");
    for (node, name) in [
        (1, "my_ops.fused.default"),
        (4, "my_ops.fused.default"),
        (2, "aten.foo.default"),
    ] {
        let pointer = format!("/graph_module/graph/nodes/{node}/target");
        *graph.pointer_mut(&pointer).unwrap() = json!(format!("torch.ops.{name}"));
    }
    let refused = with("model", json!({ "exported": graph }));
    let mut assumed = refused.clone();
    assumed["unknown_ops"] = json!("assume_elementwise");

    let refused = request(refused).and_then(|request| request.graph());
    insta::assert_snapshot!(refused.unwrap_err());
    let request = request(assumed).unwrap();
    let lowered = request.lower().unwrap();
    assert!(
        lowered
            .assumptions
            .iter()
            .any(|note| note.ends_with("my_ops.fused.default (2), aten.foo.default (1)")),
        "{:?}",
        lowered.assumptions
    );
}

#[test]
fn what_is_known_not_to_be_elementwise_is_never_assumed() {
    let mut graph = golden_json("cifarnet");
    for (node, name) in [
        (0, "aten.conv_tbc.default"),
        (1, "aten.celu.default"),
        (2, "aten.linalg_svd.default"),
    ] {
        let pointer = format!("/graph_module/graph/nodes/{node}/target");
        *graph.pointer_mut(&pointer).unwrap() = json!(format!("torch.ops.{name}"));
    }
    let mut assumed = with("model", json!({ "exported": graph }));
    assumed["unknown_ops"] = json!("assume_elementwise");

    let refused = request(assumed).and_then(|request| request.graph());

    let text = refused.unwrap_err().to_string();
    assert!(text.contains("aten.conv_tbc.default"), "{text}");
    assert!(
        text.contains("never taken to be elementwise: a convolution"),
        "{text}"
    );
    assert!(text.contains("aten.linalg_svd.default"), "{text}");
    assert!(
        !text.contains("celu") && !text.contains("unknown_ops"),
        "{text}"
    );
}

#[test]
fn a_network_that_packs_its_sequences_is_told_what_to_do() {
    let mut graph = golden_json("cifarnet");
    let target = graph.pointer_mut("/graph_module/graph/nodes/1/target");
    *target.unwrap() = json!("torch.ops.aten.lstm.data");

    let refused =
        request(with("model", json!({ "exported": graph }))).and_then(|request| request.graph());

    let text = refused.unwrap_err().to_string();
    assert!(text.contains("`batchfit run --on CARD"), "{text}");
    assert!(text.contains("padded tensors"), "{text}");
}

#[test]
fn a_graph_that_is_not_as_pytorch_writes_it_is_refused_at_the_place() {
    let changed = |pointer: &str, value: Value| {
        let mut graph = golden_json("cifarnet");
        *graph.pointer_mut(pointer).unwrap() = value;
        with("model", json!({ "exported": graph }))
    };
    let nodes = "/graph_module/graph/nodes";
    let values = "/graph_module/graph/tensor_values";
    let mut text = String::new();
    for (pointer, value) in [
        (String::from("/graph_module"), json!(null)),
        (
            format!("{nodes}/0/target"),
            json!("torch.ops.aten.conv_tbc.default"),
        ),
        (
            format!("{nodes}/1/target"),
            json!("torch.ops.my_ops.fused.default"),
        ),
        (format!("{nodes}/0/target"), json!(7)),
        (
            format!("{nodes}/0/inputs/0/arg"),
            json!({ "as_tensor": { "name": "nothing" } }),
        ),
        (
            format!("{nodes}/0/inputs/3/arg"),
            json!({ "as_ints": [1, -1] }),
        ),
        (format!("{nodes}/0/inputs/3/arg"), json!({ "as_ints": "1" })),
        (format!("{nodes}/0/outputs"), json!([])),
        (format!("{values}/conv2d/sizes/1"), json!({ "as_int": 65 })),
        (format!("{values}/conv2d/dtype"), json!(6)),
        (format!("{values}/x/dtype"), json!(9)),
        (format!("{values}/x/sizes/1"), json!({ "as_int": -3 })),
        (format!("{values}/x/sizes/1"), json!({ "as_int": i64::MAX })),
        (
            format!("{values}/x/sizes/2"),
            json!({ "as_expr": { "expr_str": "Symbol('s1')" } }),
        ),
        (
            format!("{values}/x/sizes/0"),
            json!({ "as_expr": { "expr_str": "Max(Symbol('s1'))" } }),
        ),
        (
            format!("{nodes}/5/outputs"),
            json!([{ "as_tensor": { "name": "other" } }]),
        ),
        (
            "/graph_module/graph/outputs".into(),
            json!([{ "as_tensor": { "name": "linear" } }]),
        ),
        ("/graph_module/graph/outputs".into(), json!([])),
    ] {
        let invalid = request(changed(&pointer, value.clone()))
            .and_then(|request| request.graph())
            .expect_err(&pointer);
        writeln!(text, "{pointer} = {value}\n    {invalid}").unwrap();
    }

    insta::assert_snapshot!(text);
}

#[test]
fn a_model_file_that_cannot_be_read_is_refused() {
    let gzip = golden("cifarnet");
    let files: [(&str, &[u8]); 5] = [
        ("an archive", b"PK\x03\x04"),
        ("a cut file", &gzip[..gzip.len() / 2]),
        ("no JSON", b"torch"),
        ("another object", b"{\"a\": 1}"),
        ("nothing", b""),
    ];
    let mut text = String::new();
    for (what, file) in files {
        let document = RequestDocument::from(json!({ "model": 7 }));
        let invalid = Request::parse(document.with_files(ModelFiles::Graph(file.to_vec())))
            .and_then(|request| request.graph())
            .expect_err(what);
        writeln!(text, "{what}: {invalid}").unwrap();
    }

    insta::assert_snapshot!(text);
}

#[test]
fn a_member_given_twice_is_refused_wherever_it_is() {
    let resnet = r#""model": {"preset": "resnet18"}"#;
    let layers = |layer: &str, input: &str| {
        format!(
            r#""model": {{"layers": [{layer}], "input": {{{input}}}, "loss": "cross_entropy"}}"#
        )
    };
    let (linear, shape) = (
        r#"{"type": "linear", "out_features": 4}"#,
        r#""shape": [3]"#,
    );
    let graph = golden_json("mlp").to_string();
    let (name, kind) = (r#""tensor_values":{"#, r#"{"dtype":7,"sizes":[]}"#);
    let at = graph.find(name).unwrap() + name.len();
    let twice = format!(r#"{}"a":{kind},"a":{kind},{}"#, &graph[..at], &graph[at..]);
    for members in [
        r#""model": {"preset": "resnet18", "preset": "resnet50"}"#.to_owned(),
        format!(r#"{resnet}, "training": {{"precision": "fp32", "precision": "bf16"}}"#),
        format!(
            r#"{resnet}, "training": {{"checkpointing": {{"modules": ["a"], "modules": ["b"]}}}}"#
        ),
        layers(
            r#"{"type": "linear", "out_features": 4, "out_features": 5}"#,
            shape,
        ),
        layers(linear, r#""shape": [3], "shape": [4]"#),
        format!(r#""model": {{"exported": {twice}}}"#),
        format!(r#""model": {{"exported": {graph}, "exported": {graph}}}"#),
    ] {
        let document = RequestDocument::from_json(format!("{{{members}}}").as_bytes());
        let read = document.and_then(Request::parse);
        let refused = read
            .and_then(|request| request.lower().map(drop))
            .unwrap_err();
        assert!(refused.problem.contains("is given twice"), "{refused}");
    }
}
