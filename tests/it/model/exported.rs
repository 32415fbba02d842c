//! The corpus of exported graphs is a test of shape inference for every operator: reading one compares
//! each inferred type with the one that PyTorch recorded.

mod archives;

use std::fmt::Write;

use batchfit::graph::{CHECKPOINTED, Content, Graph, Lifetimes, ParameterKind, ValueId};
use batchfit::model::exported;
use batchfit::shape::DType;
use serde_json::{Value, json};

use super::golden;

fn read(name: &str) -> Graph {
    match exported::parse(&golden(name)) {
        Ok(exported) => {
            assert_eq!(exported.notes, Vec::<String>::new(), "{name}");
            exported.graph
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn every_graph_of_the_corpus_is_read() {
    let mut summary = String::new();
    for name in [
        "bert-seq512-table",
        "cifarnet",
        "gpt2",
        "gpt2-table",
        "gpt2-tiny-table",
        "llama-tiny-table",
        "llama1b-bf16-table",
        "mlp",
        "mlp-bf16",
        "mobilenetv2",
        "resnet18",
        "resnet50",
        "resnet50-fp16",
        "resnet152",
        "vgg16",
    ] {
        let graph = read(name);
        let batch: Vec<String> = graph
            .inputs
            .iter()
            .map(|input| {
                let value = graph.value(input.value);
                format!(
                    "{} {} {:?} {:?}",
                    value.name, value.dtype, value.shape, input.content
                )
            })
            .collect();
        let prediction = graph.value(graph.prediction);
        writeln!(
            summary,

            "{name}: {} nodes, {} modules, {} parameters, {} elements, root {}, batch {}, prediction {} {:?}, \
             loss {}",
            graph.nodes.len(),
            graph.modules.len(),
            graph.parameters.len(),
            graph.parameter_count(),
            graph.modules[0].class,
            batch.join(" and "),
            prediction.name,
            prediction.shape,
            graph.value(graph.loss).name,
        )
        .unwrap();
    }
    insta::assert_snapshot!(summary);
}

/// A serialized graph of these nodes: `(target, named arguments, results, module stack)`.
struct Sketch {
    inputs: Vec<Value>,
    specs: Vec<Value>,
    nodes: Vec<Value>,
    tensors: serde_json::Map<String, Value>,
    sizes: serde_json::Map<String, Value>,
}

/// The stacks of the wrapper's own code, and of the model's.
const WRAPPER: &str = "L__self__,,__main__.Loss";
const MODEL: &str = "L__self__,,__main__.Loss;L__self__model,model,demo.Model";

#[test]
fn a_graph_says_up_to_which_batch_it_holds() {
    let largest = |constraints: Value| {
        let mut graph = super::golden_json("resnet18");
        graph["range_constraints"] = constraints;
        exported::parse_value(&graph).unwrap().graph.max_batch
    };

    assert_eq!(
        largest(json!({ "s17": { "min_val": 1, "max_val": 63 } })),
        Some(63)
    );
    assert_eq!(
        largest(json!({ "s17": { "min_val": 1, "max_val": 1 << 20 } })),
        None
    );
    assert_eq!(
        largest(json!({ "s17": { "min_val": 2, "max_val": null } })),
        None
    );
    assert_eq!(
        largest(json!({ "u0": { "min_val": 0, "max_val": 63 } })),
        None
    );
}

fn tensor(name: &str) -> Value {
    json!({ "as_tensor": { "name": name } })
}

/// A float32 or int64 type; -1 is the batch.
fn typed(dtype: u32, sizes: &[i64]) -> Value {
    let sizes: Vec<Value> = sizes
        .iter()
        .map(|size| match size {
            -1 => json!({ "as_expr": { "expr_str": "Symbol('s0', integer=True)", "hint": null } }),
            size => json!({ "as_int": size }),
        })
        .collect();
    json!({ "dtype": dtype, "sizes": sizes, "requires_grad": true })
}

const FLOAT: u32 = 7;
const LONG: u32 = 5;

impl Sketch {
    fn new() -> Sketch {
        Sketch {
            inputs: Vec::new(),
            specs: Vec::new(),
            nodes: Vec::new(),
            tensors: serde_json::Map::new(),
            sizes: serde_json::Map::new(),
        }
    }

    fn parameter(mut self, name: &str, path: &str, sizes: &[i64]) -> Sketch {
        self.inputs.push(tensor(name));
        self.specs
            .push(json!({ "parameter": { "arg": { "name": name }, "parameter_name": path } }));
        self.tensors.insert(name.into(), typed(FLOAT, sizes));
        self
    }

    fn batch(mut self, name: &str, dtype: u32, sizes: &[i64]) -> Sketch {
        self.inputs.push(tensor(name));
        self.specs
            .push(json!({ "user_input": { "arg": tensor(name) } }));
        self.tensors.insert(name.into(), typed(dtype, sizes));
        self
    }

    fn node(mut self, target: &str, args: &Value, result: (&str, Value), stack: &str) -> Sketch {
        let inputs: Vec<Value> = args
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, arg)| json!({ "name": name, "arg": arg, "kind": 1 }))
            .collect();
        self.nodes.push(json!({
            "target": format!("torch.ops.{target}"), "inputs": inputs, "outputs": [tensor(result.0)],
            "metadata": { "nn_module_stack": stack }
        }));
        self.tensors.insert(result.0.into(), result.1);
        self
    }

    fn graph(self, outputs: &[&str]) -> Value {
        json!({
            "inputs": self.inputs,
            "outputs": outputs.iter().map(|name| tensor(name)).collect::<Vec<_>>(),
            "nodes": self.nodes, "tensor_values": self.tensors, "sym_int_values": self.sizes
        })
    }

    fn read(self) -> exported::Exported {
        let specs = self.specs.clone();
        let document = json!({
            "graph_module": { "graph": self.graph(&["loss"]), "signature": { "input_specs": specs } }
        });
        exported::parse_value(&document).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A language model of one embedding and one head, with these two weights; `head` is read by the head.
fn language_model(sketch: Sketch, embedding: &str, head: &str) -> Sketch {
    sketch
        .node(
            "aten.embedding.default",
            &json!({ "weight": tensor(embedding), "indices": tensor("y") }),
            ("embedding", typed(FLOAT, &[-1, 4, 8])),
            MODEL,
        )
        .node(
            "aten.linear.default",
            &json!({ "input": tensor("embedding"), "weight": tensor(head) }),
            ("linear", typed(FLOAT, &[-1, 4, 16])),
            MODEL,
        )
        .node(
            "aten.transpose.int",
            &json!({ "self": tensor("linear"), "dim0": { "as_int": 1 }, "dim1": { "as_int": -1 } }),
            ("transpose", typed(FLOAT, &[-1, 16, 4])),
            WRAPPER,
        )
        .node(
            "aten.cross_entropy_loss.default",
            &json!({ "self": tensor("transpose"), "target": tensor("y") }),
            ("loss", typed(FLOAT, &[])),
            WRAPPER,
        )
}

fn paths(exported: &exported::Exported) -> Vec<&str> {
    let parameters = exported.graph.parameters.iter();
    parameters
        .map(|parameter| parameter.path.as_str())
        .collect()
}

#[test]
fn an_unread_copy_of_a_tied_parameter_is_that_parameter_and_said_so() {
    let sketch = Sketch::new()
        .parameter("p_table", "model.table.weight", &[16, 8])
        .parameter("p_norm", "model.norm.weight", &[8])
        .parameter("p_head", "model.head.weight", &[16, 8])
        .batch("y", LONG, &[-1, 4]);

    let exported = language_model(sketch, "p_head", "p_head").read();

    assert_eq!(paths(&exported), ["table.weight", "norm.weight"]);
    assert_eq!(
        exported.notes,
        [
            "table.weight is taken to be the same tensor as head.weight: nothing reads it, and both have \
             the same shape"
        ]
    );
}

#[test]
fn an_unread_parameter_unlike_any_tied_one_stays() {
    let sketch = Sketch::new()
        .parameter("p_table", "model.table.weight", &[16, 8])
        .parameter("p_head", "model.head.weight", &[16, 8])
        .parameter("p_spare", "model.spare.weight", &[16, 8])
        .batch("y", LONG, &[-1, 4]);

    let exported = language_model(sketch, "p_table", "p_head").read();

    assert_eq!(
        paths(&exported),
        ["table.weight", "head.weight", "spare.weight"]
    );
    assert!(exported.notes.is_empty());
}

#[test]
fn a_batch_tensor_that_only_lends_its_size_is_its_twin() {
    let sketch = Sketch::new()
        .parameter("p_table", "model.table.weight", &[16, 8])
        .batch("x", LONG, &[-1, 4])
        .batch("y", LONG, &[-1, 4]);

    let exported = language_model(sketch, "p_table", "p_table").read();

    let names: Vec<&str> = exported
        .graph
        .inputs
        .iter()
        .map(|input| exported.graph.value(input.value).name.as_str())
        .collect();
    assert_eq!(names, ["y"]);
    assert_eq!(exported.graph.inputs[0].content, Content::Below(16));
}

#[test]
fn the_prediction_is_what_the_model_made_before_the_loss_reshaped_it() {
    let sketch = Sketch::new()
        .parameter("p_table", "model.table.weight", &[16, 8])
        .batch("y", LONG, &[-1, 4]);

    let graph = language_model(sketch, "p_table", "p_table").read().graph;

    assert_eq!(graph.value(graph.prediction).name, "linear");
    assert_eq!(graph.modules[0].class, "demo.Model");
}

#[test]
fn a_loss_that_its_code_checkpoints_stays_outside_of_the_model_and_is_said_so() {
    let sketch = Sketch::new()
        .parameter("p_table", "model.table.weight", &[16, 8])
        .batch("y", LONG, &[-1, 4]);
    let mut sketch = language_model(sketch, "p_table", "p_table");
    for node in &mut sketch.nodes[2..] {
        let stack = format!("{WRAPPER};checkpoint0,model.checkpoint0,{CHECKPOINTED}");
        node["metadata"]["nn_module_stack"] = json!(stack);
    }

    let exported = sketch.read();

    let graph = &exported.graph;
    assert_eq!(graph.value(graph.prediction).name, "linear");
    assert_eq!(graph.modules[0].class, "demo.Model");
    assert_eq!(graph.module(graph.nodes[3].module).class, CHECKPOINTED);
    assert_eq!(
        exported.notes,
        [
            "the model's own code checkpoints 1 part (torch.utils.checkpoint), and so does this answer"
        ]
    );
}

#[test]
fn a_region_without_gradients_is_run_in_place() {
    let region = Sketch::new()
        .batch("inner", FLOAT, &[-1, 16])
        .node(
            "aten.tanh.default",
            &json!({ "self": tensor("inner") }),
            ("tanh", typed(FLOAT, &[-1, 16])),
            MODEL,
        )
        .graph(&["tanh"]);
    let mut sketch = Sketch::new()
        .batch("x", FLOAT, &[-1, 16])
        .batch("y", LONG, &[-1]);
    sketch.nodes.push(json!({
        "target": "torch.ops.higher_order.wrap_with_set_grad_enabled",
        "inputs": [
            { "name": "", "arg": { "as_bool": false } },
            { "name": "", "arg": { "as_graph": { "name": "submod", "graph": region } } },
            { "name": "", "arg": tensor("x") }
        ],
        "outputs": [tensor("outer")], "metadata": { "nn_module_stack": MODEL }
    }));
    let graph = sketch
        .node(
            "aten.cross_entropy_loss.default",
            &json!({ "self": tensor("outer"), "target": tensor("y") }),
            ("loss", typed(FLOAT, &[])),
            WRAPPER,
        )
        .read()
        .graph;

    let enabled: Vec<(&str, bool)> = graph
        .nodes
        .iter()
        .map(|node| (node.op.name(), node.grad_enabled))
        .collect();
    assert_eq!(enabled, [("tanh", false), ("cross_entropy", true)]);
    assert_eq!(graph.nodes[0].inputs, [graph.inputs[0].value]);
}

#[test]
fn half_precision_exports_keep_their_dtype() {
    let graph = read("resnet50-fp16");

    let of = |path: &str| {
        let parameter = graph
            .parameters
            .iter()
            .find(|parameter| parameter.path == path)
            .unwrap();
        (graph.value(parameter.value).dtype, parameter.kind)
    };
    assert_eq!(of("conv1.weight"), (DType::Float16, ParameterKind::Trained));
    assert_eq!(
        of("bn1.running_mean"),
        (DType::Float16, ParameterKind::Buffer)
    );
    assert_eq!(
        of("bn1.num_batches_tracked"),
        (DType::Int64, ParameterKind::Buffer)
    );
}

#[test]
fn later_calls_of_a_module_are_calls_of_their_own() {
    let graph = read("resnet18");

    let calls = graph
        .modules
        .iter()
        .filter(|module| module.path == "layer1.0.relu")
        .count();
    assert_eq!(calls, 2);
}

#[test]
fn a_model_that_computes_its_own_loss_keeps_its_paths() {
    let sketch = Sketch::new()
        .parameter("p_table", "model.table.weight", &[16, 8])
        .parameter("p_head", "lm_head.weight", &[16, 8])
        .batch("y", LONG, &[-1, 4]);

    let exported = language_model(sketch, "p_table", "p_head").read();

    assert_eq!(paths(&exported), ["model.table.weight", "lm_head.weight"]);
    let modules: Vec<&str> = exported
        .graph
        .modules
        .iter()
        .map(|module| module.path.as_str())
        .collect();
    assert_eq!(modules, ["", "model"]);
}
