//! Documents that are small in a file and large in memory, and graphs that are large.

use batchfit::compile::compile;
use batchfit::model::{Checkpointing, Mode, RequestDocument, Variant, exported};
use serde_json::{Value, json};

use super::{golden_json, request};
use crate::compile::H200;

/// What torch.export writes for `relu` applied so often, beside a loss of the input alone when `dead`.
fn chain(relus: usize, dead: bool) -> Value {
    let batched =
        |dtype: u32, sizes: Value| json!({ "dtype": dtype, "sizes": sizes, "requires_grad": true });
    let batch = json!({ "as_expr": { "expr_str": "Symbol('s0')" } });
    let row = batched(7, json!([batch, { "as_int": 8 }]));
    let tensor = |name: &str| json!({ "as_tensor": { "name": name } });
    let argument = |name: &str, value: &str| json!({ "name": name, "arg": tensor(value) });
    let mut values = serde_json::Map::new();
    values.insert(
        "w".into(),
        batched(7, json!([{ "as_int": 8 }, { "as_int": 8 }])),
    );
    values.insert("x".into(), row.clone());
    values.insert("y".into(), batched(5, json!([batch])));
    values.insert("h".into(), row.clone());
    values.insert("loss".into(), batched(7, json!([])));
    let node = |target: &str, inputs: Value, output: &str| {
        json!({ "target": format!("torch.ops.aten.{target}"), "inputs": inputs, "outputs": [tensor(output)],
                "metadata": { "nn_module_stack": "L__self__,,Net" } })
    };
    let mut nodes = vec![node(
        "linear.default",
        json!([argument("input", "x"), argument("weight", "w")]),
        "h",
    )];
    let mut last = "h".to_owned();
    for index in 0..relus {
        let next = format!("relu_{index}");
        nodes.push(node(
            "relu.default",
            json!([argument("self", &last)]),
            &next,
        ));
        values.insert(next.clone(), row.clone());
        last = next;
    }
    let scored = if dead { "h" } else { &last };
    nodes.push(node(
        "cross_entropy_loss.default",
        json!([argument("self", scored), argument("target", "y")]),
        "loss",
    ));
    json!({ "graph_module": {
        "graph": { "inputs": [tensor("w"), tensor("x"), tensor("y")], "outputs": [tensor("loss")],
                   "nodes": nodes, "tensor_values": values, "sym_int_values": {} },
        "signature": { "input_specs": [
            { "parameter": { "arg": { "name": "w" }, "parameter_name": "w" } },
            { "user_input": { "arg": tensor("x") } },
            { "user_input": { "arg": tensor("y") } },
        ] } } })
}

#[test]
fn a_graph_of_more_nodes_than_are_read_is_refused_with_the_limit() {
    let node = r#"{"target":"aten.relu.default","inputs":[],"outputs":[]}"#;
    let nodes = vec![node; 100_001].join(",");
    let text =
        format!(r#"{{"graph_module":{{"graph":{{"inputs":[],"outputs":[],"nodes":[{nodes}]}}}}}}"#);

    let error = exported::parse(text.as_bytes()).unwrap_err();

    assert_eq!(
        error.to_string(),
        "the graph has more than 100000 nodes; at most that many are read"
    );
}

#[test]
fn a_graph_of_many_small_things_is_refused_with_the_limit() {
    let things = r#"{"as_none":0},"#.repeat(2_200_000);
    let text = format!(r#"{{"graph_module":{{"graph":{{"inputs":[{things}{{}}]}}}}}}"#);

    let error = exported::parse(text.as_bytes()).unwrap_err();

    assert_eq!(
        error.to_string(),
        "reading the graph would take more than 64 MiB of memory, which exports of 100000 nodes do not"
    );
}

/// A graph of `relu`, whose second node has this argument, and whose result has these sizes.
fn with_argument(argument: &Value, sizes: &Value) -> String {
    let mut graph = chain(2, false);
    let inner = &mut graph["graph_module"]["graph"];
    let inputs = inner["nodes"][1]["inputs"].as_array_mut().unwrap();
    inputs.push(json!({ "name": "other", "arg": argument }));
    inner["tensor_values"]["relu_0"]["sizes"] = sizes.clone();
    exported::parse_value(&graph).unwrap_err().to_string()
}

#[test]
fn an_argument_of_more_numbers_than_are_read_is_refused_with_the_limit() {
    let row = json!([{ "as_expr": { "expr_str": "Symbol('s0')" } }, { "as_int": 8 }]);
    for argument in [
        json!({ "as_ints": vec![1; 4097] }),
        json!({ "as_sym_ints": vec![json!({ "as_int": 1 }); 4097] }),
    ] {
        let error = with_argument(&argument, &row);
        let expected = "an argument has 4097 numbers; at most 4096 are read";
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_tensor_of_more_dimensions_than_pytorch_has_is_refused_with_the_limit() {
    let error = with_argument(
        &json!({ "as_none": true }),
        &json!(vec![json!({ "as_int": 1 }); 65]),
    );
    let expected = "a tensor has 65 dimensions; at most 64 are read";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_module_of_a_long_class_is_refused_with_the_limit() {
    let mut graph = chain(2, false);
    let stack = &mut graph["graph_module"]["graph"]["nodes"][0]["metadata"]["nn_module_stack"];
    *stack = format!("L__self__,,{}", "N".repeat(513)).into();

    let error = exported::parse_value(&graph).unwrap_err().to_string();

    let expected = "its module's path or class is longer than 512 bytes";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn nodes_of_more_operands_than_are_read_are_refused_with_the_limit() {
    let operands = r#"{"name":"x"},"#.repeat(800_000);
    let node = format!(
        r#"{{"target":"aten.relu.default","inputs":[{{"name":"other","arg":{{"as_tensors":[{operands}{{"name":"x"}}]}}}}],"outputs":[]}}"#
    );
    let text =
        format!(r#"{{"graph_module":{{"graph":{{"inputs":[],"outputs":[],"nodes":[{node}]}}}}}}"#);

    let error = exported::parse(text.as_bytes()).unwrap_err();

    assert_eq!(
        error.to_string(),
        "the nodes of the graph have more than 800000 operands and results together; at most that many are read"
    );
}

#[test]
fn more_layers_than_are_read_are_refused_with_the_limit() {
    let layers = vec![json!({ "type": "relu" }); 25_001];
    let model = json!({ "input": { "shape": [8] }, "layers": layers });

    let invalid = request(json!({ "model": model })).unwrap_err();

    assert_eq!(invalid.pointer, "/model/layers");
    let expected = "25001 layers are more than the 25000 that are read";
    assert!(invalid.problem.contains(expected), "{invalid}");
}

#[test]
fn a_request_of_many_small_things_beside_its_model_is_refused_with_the_limit() {
    let things = "{},".repeat(100_000);
    let text = format!(r#"{{"model":{{"preset":"resnet18"}},"training":[{things}{{}}]}}"#);

    let invalid = RequestDocument::from_json(text.as_bytes()).unwrap_err();

    assert_eq!(
        invalid.to_string(),
        "the members of the request beside its model would take more than 4 MiB of memory"
    );
}

#[test]
fn a_model_of_many_small_things_is_refused_with_the_limit() {
    let things = vec![json!({}); 1_000_000];

    let invalid = request(json!({ "model": { "preset": "resnet18", "x": things } })).unwrap_err();

    assert_eq!(invalid.pointer, "/model");
    assert!(invalid.problem.contains("more than 16 MiB"), "{invalid}");
}

#[test]
fn a_model_is_as_large_as_what_is_kept_of_its_text() {
    let config = |unread: Value| {
        let config =
            json!({ "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "unread": unread });
        let request = request(json!({ "model": { "hf": config, "seq_len": 8 } })).unwrap();
        request.lower().unwrap();
        request.size().unwrap()
    };

    // What is read once is kept for all.
    config(json!(1));
    let without = config(json!(1));
    assert!(without < 1000, "{without}");
    // Its text, and what was read of it.
    let long = config("x".repeat(1 << 20).into());
    assert!(long >= 2048, "{long}");
    let many = config(vec![json!({}); 10_000].into());
    assert!(many >= 700, "{many}");
}

#[test]
fn long_chains_are_compiled_whether_the_loss_needs_them_or_not() {
    for dead in [false, true] {
        let graph = exported::parse_value(&chain(5_000, dead)).unwrap().graph;
        for mode in [Mode::Train, Mode::Inference] {
            let variant = Variant {
                mode,
                ..Variant::default()
            };
            let program = compile(&graph, &variant, H200).unwrap();
            let length = program.unrolled(1).count();
            assert!(length > 4, "dead {dead}, {mode:?}: {length}");
        }
    }
}

#[test]
fn globs_that_could_be_matched_in_many_ways_are_answered_at_once() {
    let globs = |globs: Vec<String>| {
        let training = json!({ "checkpointing": { "modules": globs } });
        request(json!({ "model": { "preset": "resnet18" }, "training": training }))
    };

    assert!(globs(vec!["*a*a*a*a*b".into()]).is_ok());
    let long = globs(vec!["a".into(), "*a".repeat(64)]).unwrap_err();
    assert_eq!(long.pointer, "/training/checkpointing/modules/1");
    let many = globs(vec!["a".into(); 65]).unwrap_err();
    assert_eq!(many.pointer, "/training/checkpointing/modules");

    let graph = request(json!({ "model": { "preset": "resnet18" } }))
        .unwrap()
        .graph()
        .unwrap();
    let variant = Variant {
        checkpointing: Checkpointing::Modules(vec!["*e*e*e*e*e*e*z".into()]),
        ..Variant::default()
    };
    assert!(compile(&graph, &variant, H200).is_err());
}

/// A graph in which three nodes are not understood, each for a reason of its own.
fn troubled() -> Value {
    let mut document = golden_json("cifarnet");
    let nodes = document["graph_module"]["graph"]["nodes"]
        .as_array_mut()
        .unwrap();
    let is = |node: &Value, target: &str| node["target"].as_str().unwrap().contains(target);
    let convolution = nodes.iter_mut().find(|node| is(node, "conv2d")).unwrap();
    convolution["inputs"][0]["arg"] = json!({ "as_int": 3 });
    let activation = nodes.iter_mut().find(|node| is(node, "relu")).unwrap();
    activation["target"] = json!("torch.ops.aten.quantized_lstm.input");
    let linear = nodes.iter_mut().rfind(|node| is(node, "linear")).unwrap();
    linear["inputs"][1]["arg"] = json!({ "as_tensor": { "name": "nothing" } });
    document
}

#[test]
fn all_that_is_wrong_with_a_graph_is_said_at_once() {
    let first = exported::parse_value(&troubled()).unwrap_err().to_string();

    insta::assert_snapshot!(first);
    for _ in 0..8 {
        let again = exported::parse_value(&troubled()).unwrap_err().to_string();
        assert_eq!(again, first);
    }
}

#[test]
fn two_symbolic_sizes_are_told_the_same_way_each_time() {
    let mut document = golden_json("cifarnet");
    let sizes = (0..20).map(|index| {
        let text = format!("Symbol('s{index}')");
        (
            format!("size_{index}"),
            json!({ "as_expr": { "expr_str": text } }),
        )
    });
    document["graph_module"]["graph"]["sym_int_values"] = Value::Object(sizes.collect());

    let error = exported::parse_value(&document).unwrap_err();

    assert_eq!(error.pointer(), "/graph_module/graph/sym_int_values/size_1");
    assert!(error.to_string().contains("s0 and s1"), "{error}");
}

#[test]
fn layers_of_all_groups_are_bounded_together() {
    let model = |groups: u64, inner: u64| {
        json!({ "hf": { "architectures": ["AlbertForMaskedLM"], "num_hidden_layers": 1, "num_hidden_groups": groups,
            "inner_group_num": inner, "embedding_size": 1, "hidden_size": 2, "num_attention_heads": 1,
            "intermediate_size": 1, "vocab_size": 64 }, "seq_len": 1 })
    };

    let asked = |groups, inner| request(json!({ "model": model(groups, inner) })).unwrap();

    let invalid = asked(1024, 1024).lower().unwrap_err();
    assert_eq!(invalid.pointer, "/model/hf/inner_group_num");
    assert!(asked(1, 2).lower().is_ok());
}
