//! Custom autograd functions: the step programs of models that call them agree with recorded ones in every
//! event.

use std::collections::BTreeMap;
use std::io::Read;

use batchfit::compile::compile;
use batchfit::model::{Checkpointing, Optimizer, Precision, Variant, exported};
use batchfit::report::{Requested, unmatched};
use batchfit::units::Bytes;
use flate2::read::GzDecoder;
use serde_json::{Value, json};

use super::{H200, requests};

fn unpacked(file: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let path = format!("{root}/tests/golden/functions/{file}.gz");
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    text
}

fn requested(line: &str) -> Requested {
    match line.split_at(1) {
        ("+", size) => Requested::Alloc(Bytes(size.parse().unwrap())),
        (_, size) => Requested::Free(Bytes(size.parse().unwrap())),
    }
}

/// The requests with frees that follow one another in order of size: a hash table of casts is cleared in the
/// order of addresses, and gradients of a linear layer that are added to earlier ones go in either order.
fn normalized(requests: &[String]) -> Vec<String> {
    let both_free = |a: &String, b: &String| a.starts_with('-') && b.starts_with('-');
    let mut all = Vec::new();
    for run in requests.chunk_by(both_free) {
        let mut run = run.to_vec();
        run.sort();
        all.extend(run);
    }
    all
}

/// `NAME PRECISION CHECKPOINTING ACCUMULATION`.
fn variant(words: &[&str]) -> Variant {
    Variant {
        precision: match words[1] {
            "fp32" => Precision::Fp32,
            "amp_fp16" => Precision::AmpFp16,
            "amp_bf16" => Precision::AmpBf16,
            other => panic!("a recording in {other}"),
        },
        checkpointing: match words[2] {
            "none" => Checkpointing::None,
            _ => Checkpointing::PerBlock,
        },
        accumulation: words[3].parse().unwrap(),
        optimizer: Optimizer::Sgd,
        ..Variant::default()
    }
}

/// Bloom's forward pass makes a number on the device each time; an export holds it as a constant.
const BLOOM_UNMATCHED: usize = 7;

#[test]
fn custom_functions_allocate_and_free_what_pytorch_does() {
    let graphs = graphs();
    let mut different = Vec::new();
    let recorded = unpacked("sequences.txt");
    for case in recorded.split("# ").filter(|case| !case.is_empty()) {
        let (title, lines) = case.split_once('\n').unwrap();
        let words: Vec<&str> = title.split(' ').collect();
        let read = exported::parse_value(&graphs[words[0]]).unwrap();
        assert_eq!(read.notes, Vec::<String>::new(), "{title}");
        assert_eq!(read.assumptions, Vec::<String>::new(), "{title}");
        let program = compile(&read.graph, &variant(&words), H200).unwrap();
        let ours = normalized(&requests(&program, 4));
        let theirs: Vec<String> = lines.lines().map(str::to_owned).collect();
        let theirs = normalized(&theirs);
        if words[0] == "bloom" {
            let recorded: Vec<Requested> = lines.lines().map(requested).collect();
            assert_eq!(unmatched(&program, 4, 3, &recorded).len(), BLOOM_UNMATCHED);
        } else if ours != theirs {
            let at = ours
                .iter()
                .zip(&theirs)
                .position(|(ours, theirs)| ours != theirs);
            different.push(format!("{title}: from request {at:?} of {}", theirs.len()));
        }
    }

    assert!(different.is_empty(), "{}", different.join("\n"));
}

pub(crate) fn graphs() -> BTreeMap<String, Value> {
    serde_json::from_str(&unpacked("graphs.json")).unwrap()
}

fn document(name: &str) -> Value {
    graphs()[name].clone()
}

fn refusal(document: &Value) -> String {
    exported::parse_value(document).unwrap_err().to_string()
}

#[test]
fn a_function_that_was_not_traced_is_named() {
    let mut document = document("swish");
    for call in document["batchfit"]["functions"].as_array_mut().unwrap() {
        *call = json!({
            "name": call["name"], "operators": call["operators"], "reason": "it branches on values",
        });
    }

    let read = exported::parse_value(&document).unwrap();

    assert!(read.graph.functions.is_empty());
    assert_eq!(read.graph.untraced_functions.len(), 1);
    assert!(
        read.assumptions[0].contains("Swish (it branches on values)"),
        "{}",
        read.assumptions[0]
    );
}

#[test]
fn a_backward_pass_that_batchfit_does_not_know_is_one_that_was_not_traced() {
    let mut document = document("swish");
    let node = &mut document["batchfit"]["functions"][1]["backward"]["graph"]["nodes"][0];
    node["target"] = json!("torch.ops.aten.sigmoidal.default");

    let read = exported::parse_value(&document).unwrap();

    assert_eq!(read.graph.functions.len(), 2);
    let backward = read.graph.functions.iter();
    let backward: usize = backward.map(|call| call.backward.nodes.len()).sum();
    assert!(backward > 0);
    assert_eq!(
        read.graph.operations(),
        read.graph.nodes.len() + backward,
        "those of backward passes are simulated, too"
    );
    assert_eq!(
        read.graph.untraced_functions[0].reason,
        "its backward pass uses aten.sigmoidal.default, which is not supported"
    );
}

#[test]
fn calls_that_do_not_fit_the_graph_are_refused() {
    let call = "/batchfit/functions/0";
    let cases = [
        ("/operators", json!([3, 1]), "3 to 1"),
        ("/operators", json!([1, 900]), "901 or later"),
        ("/depth", json!(4), "no graph at this depth"),
        (
            "/saved",
            json!(["nothing"]),
            "\"nothing\", which nothing before it makes",
        ),
        ("/differentiable", json!([]), "0 items, not 1"),
        ("/backward/results", json!([]), "0 items, not 1"),
        ("/backward/results", json!(["nothing"]), "made by nothing"),
        ("/backward/operators", json!(7), "for 7 operators"),
        (
            "/backward/gradients",
            json!(["nothing"]),
            "not in tensor_values",
        ),
        (
            "/backward",
            Value::Null,
            "neither a backward pass nor a reason",
        ),
    ];
    for (member, value, problem) in cases {
        let mut document = document("swish");
        *document.pointer_mut(&format!("{call}{member}")).unwrap() = value;

        let refusal = refusal(&document);
        assert!(refusal.contains(problem), "{member}: {refusal}");
        assert!(
            refusal.contains("/batchfit/functions/"),
            "{member}: {refusal}"
        );
    }
}

#[test]
fn what_a_call_saves_may_not_have_been_let_go_of() {
    let mut document = document("swish");
    let releases = &mut document["batchfit"]["releases"];
    let first = releases[0].as_array().unwrap().clone();
    // The call ends with operator 2; its input goes before it.
    assert_eq!(first[0], json!(2));
    releases[0][0] = json!(1);

    assert!(refusal(&document).contains("let go of before its last use"));
}

#[test]
fn a_gradient_has_the_shape_of_what_it_is_of() {
    let mut tried = 0;
    for (name, graph) in graphs() {
        for (call, function) in graph["batchfit"]["functions"]
            .as_array()
            .unwrap()
            .iter()
            .enumerate()
        {
            let backward = &function["backward"];
            let gradients = backward["gradients"].as_array().into_iter().flatten();
            for gradient in gradients.filter_map(Value::as_str) {
                for change in [
                    json!([]),
                    json!([{"as_int": 1}, {"as_int": 2}, {"as_int": 3}]),
                ] {
                    let mut document = graph.clone();
                    let typed = &mut document["batchfit"]["functions"][call]["backward"]["graph"]["tensor_values"]
                        [gradient];
                    if typed["sizes"] == change {
                        continue;
                    }
                    typed["sizes"] = change;
                    let refusal = refusal(&document);
                    assert!(refusal.contains("has the shape"), "{name}: {refusal}");
                    tried += 1;
                }
            }
        }
    }

    assert!(tried > 50, "{tried}");
}
