mod parallel;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::graph::{Content, Graph, ParameterKind, Releases};
use crate::model::{
    Checkpointing, CommHook, Ddp, FullyShard, HeadroomCalibration, MixedPrecision, ModelFiles,
    Optimizer, OptimizerImpl, Parallel, Precision, RequestError,
};
use crate::ops::{Norm, Op};
use crate::search::headroom::{Doubts, Halved};
use crate::shape::DType;
use crate::units::Bytes;
use batchfit_models::members::{Kind, Object, TRAINING};

fn parse(document: Value) -> Request {
    Request::parse(RequestDocument::from(document)).unwrap()
}

/// A request about the graph in this file.
fn of_file(document: Value, file: &[u8]) -> Request {
    let files = ModelFiles::Graph(file.to_vec());
    Request::parse(RequestDocument::from(document).with_files(files)).unwrap()
}

#[test]
fn what_is_left_out_has_the_documented_default() {
    let request = parse(json!({ "model": { "preset": "resnet18" } }));

    assert_eq!(request.variants, [Variant::default()]);
    assert_eq!(request.variants[0].optimizer, Optimizer::Adamw);
    assert_eq!(request.device, DeviceChoice::Auto);
    assert_eq!(request.memory_limit, None);
    assert_eq!(request.target_batch, None);
    assert_eq!(request.world_size, 1);
    assert_eq!(request.allocator, "");
    assert_eq!(request.search, SearchMode::Auto);
    assert_eq!(request.compare, Compare::WithinOptimizer);
    assert_eq!(request.objective, Objective::LargestBatch);
}

#[test]
fn all_values_that_are_wrong_are_said_at_once() {
    let parallel = json!({ "strategy": "fdsp2", "cpu_offload": true });
    let document = json!({ "model": { "preset": "resnet18", "num_classes": "ten" }, "device": "sim:rxt4090", "world_size": 2,
        "training": { "precision": "fp99", "parallel": parallel } });
    let refused = Request::parse(RequestDocument::from(document)).unwrap_err();
    let places = [
        "num_classes",
        "/training/precision",
        "parallel/strategy",
        "/device",
    ];
    let said = refused.to_string();
    assert!(places.iter().all(|place| said.contains(place)), "{said}");
    assert_eq!(refused.also.len(), 3, "{said}");
}

#[test]
fn null_is_as_good_as_absent() {
    let request = parse(json!({
        "model": { "preset": "resnet18" }, "training": null, "device": null, "target_batch": null
    }));

    assert_eq!(request.variants.len(), 1);
}

#[test]
fn every_field_is_read() {
    let request = parse(json!({
        "model": { "preset": "resnet18" },
        "training": { "precision": "amp_bf16", "optimizer": "sgd_momentum", "optimizer_impl": "for_loop",
                      "checkpointing": { "modules": ["layer1.*"] }, "accumulation": 4.0 },
        "device": "cuda:1", "memory_limit": "12GiB", "target_batch": 1024.0, "world_size": 2,
        "allocator": "expandable_segments:True", "search": "probes", "compare": "across_optimizers",
        "objective": "throughput"
    }));

    assert_eq!(
        request.variants,
        [Variant {
            precision: Precision::AmpBf16,
            optimizer: Optimizer::SgdMomentum,
            optimizer_impl: OptimizerImpl::ForLoop,
            checkpointing: Checkpointing::Modules(vec!["layer1.*".into()]),
            accumulation: 4,
            parallel: Parallel::Ddp(Ddp {
                world_size: 2,
                ..Ddp::default()
            }),
            ..Variant::default()
        }]
    );
    assert_eq!(request.device, DeviceChoice::Cuda(1));
    assert_eq!(
        request.memory_limit,
        Some(MemoryLimit::Bytes(Bytes::gib(12)))
    );
    assert_eq!(request.target_batch, Some(1024));
    assert_eq!(request.world_size, 2);
    assert_eq!(request.allocator, "expandable_segments:True");
    assert_eq!(request.search, SearchMode::Probes);
    assert_eq!(request.compare, Compare::AcrossOptimizers);
    assert_eq!(request.objective, Objective::Throughput);
}

#[test]
fn lists_expand_to_every_combination_once() {
    let request = parse(json!({
        "model": { "preset": "resnet18" },
        "training": { "precision": ["fp32", "amp_fp16", "fp32"], "optimizer": ["sgd", "adam"],
                      "checkpointing": ["none", "per_block"] }
    }));

    let shown: Vec<String> = request.variants.iter().map(Variant::to_string).collect();
    assert_eq!(shown.len(), 8);
    assert_eq!(shown[0], "fp32 sgd foreach");
    assert_eq!(shown[7], "amp_fp16 adam foreach checkpointed per block");
}

#[test]
fn a_document_is_kept_as_it_was_written() {
    let text = r#"{"search":"auto","model":{"preset":"resnet18"},"target_batch":1024.0}"#;
    let document = RequestDocument::from_json(text.as_bytes()).unwrap();

    let request = Request::parse(document).unwrap();

    assert_eq!(serde_json::to_string(&request.document).unwrap(), text);
}

#[test]
fn flags_replace_fields_of_the_document() {
    let mut document =
        RequestDocument::from(json!({ "model": { "preset": "resnet18" }, "device": "x" }));

    document.set("device", "sim:h200");

    let request = Request::parse(document).unwrap();
    assert_eq!(request.device, DeviceChoice::Sim("h200".into()));
}

#[test]
fn a_model_file_takes_the_place_of_whatever_model_is_there() {
    let file = include_bytes!("../../../../../tests/golden/exported/cifarnet.json.gz");
    for document in [
        json!({}),
        json!({ "model": { "preset": "no such" } }),
        json!({ "model": 7 }),
    ] {
        let request = of_file(document, file);

        assert_eq!(request.graph().unwrap().parameter_count(), 165_642);
        let document = serde_json::to_value(&request.document).unwrap();
        let named = document["model"]["exported"].as_str().unwrap();
        assert!(named.starts_with("sha256:") && named.len() == 71, "{named}");
    }
}

#[test]
fn a_half_precision_graph_runs_in_its_dtype_and_under_autocast() {
    let half = include_bytes!("../../../../../tests/golden/exported/mlp-bf16.json.gz");
    let lower = |precision: &str| {
        let document = json!({ "training": { "precision": precision } });
        let request = of_file(document, half);
        request
            .lower()
            .cloned()
            .map_err(|invalid| invalid.to_string())
    };

    assert!(lower("bf16").is_ok());
    assert!(lower("amp_bf16").is_ok());
    let unscaled = lower("amp_fp16").unwrap_err();
    assert!(
        unscaled.contains("GradScaler does not take bfloat16"),
        "{unscaled}"
    );
    assert_eq!(
        lower("fp32").unwrap_err(),
        "at /training/precision: fp32 needs float32 weights, but the model has bfloat16 ones; ask \
         for bf16, or load or export it in float32"
    );
}

#[test]
fn float16_gradients_are_unscaled_by_fused_optimizers_alone() {
    let half = include_bytes!("../../../../../tests/golden/exported/resnet50-fp16.json.gz");
    let lower = |training: Value| {
        let document = json!({ "training": training });
        let request = of_file(document, half);
        request
            .lower()
            .cloned()
            .map_err(|invalid| invalid.to_string())
    };

    let refused = lower(json!({ "precision": "amp_fp16" })).unwrap_err();

    assert!(
        refused.contains("GradScaler refuses to unscale float16"),
        "{refused}"
    );
    assert!(lower(json!({ "precision": "amp_fp16", "optimizer_impl": "fused" })).is_ok());
    assert!(lower(json!({ "precision": "amp_fp16", "mode": "inference" })).is_ok());
    assert!(lower(json!({ "precision": "amp_bf16" })).is_ok());
}

#[test]
fn half_precision_of_a_float32_graph_with_casts_is_answered_with_a_note() {
    let file = include_bytes!("../../../../../tests/golden/exported/gpt2.json.gz");
    let notes = |precision: &str| {
        let document = json!({ "training": { "precision": precision } });
        let request = of_file(document, file);
        request.lower().unwrap().notes.clone()
    };

    assert_eq!(notes("amp_bf16"), Vec::<String>::new());
    assert_eq!(notes("bf16").len(), 1);
}

#[test]
fn a_fingerprint_is_of_the_question_and_not_of_its_wording() {
    let fingerprint = |request: &Request| request.fingerprint(request.lower().unwrap(), None);
    let preset = parse(json!({ "model": { "preset": "resnet18" } }));
    let worded = parse(json!({
        "world_size": 1, "training": { "precision": ["fp32"] }, "device": "auto",
        "model": { "num_classes": 1000, "preset": "resnet18" }
    }));
    let file = include_bytes!("../../../../../tests/golden/exported/resnet18.json.gz");
    let text = batchfit_models::exported::unpack(file).unwrap();
    let read = |file: &[u8]| of_file(json!({}), file);
    let other = parse(json!({ "model": { "preset": "resnet18" }, "memory_limit": "8GiB" }));

    assert_eq!(fingerprint(&preset), fingerprint(&worded));
    assert_eq!(fingerprint(&read(file)), fingerprint(&read(&text)));
    assert_ne!(fingerprint(&preset), fingerprint(&other));
}

#[test]
fn a_config_that_names_no_class_is_refused_for_that_whatever_its_task() {
    for hf in [json!({}), json!({ "architectures": [] })] {
        let document = json!({ "model": { "hf": hf, "task": "causal_lm" } });
        let error = Request::parse(RequestDocument::from(document)).unwrap_err();
        assert_eq!(error.pointer, "/model/hf/architectures", "{error:?}");
    }
}

fn calibration(share: u32, times: usize) -> HeadroomCalibration {
    let mut halved = Halved::default();
    (0..times).for_each(|_| halved.halve(&Doubts::default()));
    HeadroomCalibration {
        strategy: "none".to_owned(),
        share: Share(share),
        halved,
        ..HeadroomCalibration::default()
    }
}

#[test]
fn headroom_of_the_request_comes_before_calibration() {
    let calibration = || vec![calibration(30_000, 0)];
    let of = |headroom: Value| {
        parse(json!({ "model": { "preset": "resnet18" }, "headroom": headroom }))
            .with_calibration(calibration())
    };

    assert_eq!(of(json!(0.015)).headroom, Some(Share(15_000)));
    assert_eq!(of(json!(0.015)).calibration(), []);
    assert_eq!(of(json!(0)).headroom, Some(Share(0)));
    assert_eq!(of(Value::Null).calibration(), calibration());
}

#[test]
fn whatever_can_change_an_answer_changes_the_fingerprint() {
    let request = parse(json!({ "model": { "preset": "resnet18" }, "device": "sim:h200" }));
    let lowered = request.lower().unwrap().clone();
    let mut seen = vec![request.fingerprint(&lowered, None)];
    let mut graph = |change: &dyn Fn(&mut Graph)| {
        let mut other = lowered.clone();
        change(graph_of(&mut other));
        seen.push(request.fingerprint(&other, None));
    };

    // When Python lets go of values, and which classes modules are of.
    graph(&|other| other.releases = Some(Releases::default()));
    graph(&|other| {
        let released = Releases {
            after: [(0, vec![other.nodes[0].outputs[0]])].into(),
            ..Releases::default()
        };
        other.releases = Some(released);
    });
    graph(&|other| other.modules[3].class = "Other".to_owned());
    graph(&|other| other.modules[3].path = "other".to_owned());
    graph(&|other| other.nodes[2].autocast_enabled = false);
    graph(&|other| other.nodes[2].grad_enabled = false);
    graph(&|other| other.parameters[0].kind = ParameterKind::Frozen);
    graph(&|other| other.values[0].dtype = DType::Float64);
    graph(&|other| other.inputs[0].content = Content::Below(7));
    graph(&|other| {
        other.nodes[1].op = Op::Norm(Norm::Batch {
            training: true,
            momentum: 0.1,
            eps: 1e-5 + f64::EPSILON,
        });
    });
    let mut assumed = lowered.clone();
    assumed.assumptions.push("assumed".to_owned());
    seen.push(request.fingerprint(&assumed, None));
    let changes: [&dyn Fn(&mut Request); 15] = [
        &|other| other.unknown_ops = UnknownOps::AssumeElementwise,
        &|other| other.chosen_percent = Some(25),
        &|other| other.allocator = "expandable_segments:True".to_owned(),
        &|other| other.search = SearchMode::Probes,
        &|other| other.compare = Compare::AcrossOptimizers,
        &|other| other.objective = Objective::Throughput,
        &|other| other.world_size = 2,
        &|other| other.target_batch = Some(64),
        &|other| other.memory_limit = Some(MemoryLimit::Fraction(0.5)),
        &|other| other.headroom = Some(Share(30_000)),
        &|other| other.calibration = vec![calibration(30_000, 0)],
        &|other| other.calibration = vec![calibration(30_000, 1)],
        &|other| {
            other.calibration = vec![calibration(30_000, 1)];
            other.calibration[0].unconfirmed = Share(40_000);
        },
        &|other| other.device = DeviceChoice::Cuda(0),
        &|other| other.variants[0].accumulation = 2,
    ];
    for change in changes {
        let mut other = request.clone();
        change(&mut other);
        seen.push(other.fingerprint(&lowered, None));
    }
    seen.push(request.fingerprint(&lowered, Some("NVIDIA H200, driver 580.95")));
    seen.push(request.fingerprint(&lowered, Some("NVIDIA H200, driver 590.12")));
    seen.push(request.fingerprint_by("other rules", (&lowered, &lowered.digest()), None));

    let told_again = |outcomes| {
        let mut calibration = calibration(30_000, 1);
        calibration.outcomes = outcomes;
        let request = request.clone().with_calibration(vec![calibration]);
        request.fingerprint(&lowered, None)
    };
    assert_eq!(told_again(1), told_again(2));

    let different: BTreeSet<&String> = seen.iter().collect();
    assert_eq!(different.len(), seen.len(), "{seen:#?}");
}

#[test]
fn a_graph_with_its_lifetime_table_is_another_question_than_without() {
    let file = include_bytes!("../../../../../tests/golden/exported/gpt2-table.json.gz");
    let request = of_file(json!({}), file);
    let with = request.lower().unwrap();
    assert!(with.workload.graph().unwrap().releases.is_some());
    let mut without = with.clone();
    graph_of(&mut without).releases = None;

    assert_ne!(
        request.fingerprint(with, None),
        request.fingerprint(&without, None)
    );
}

/// A row that nothing reads would make a member that is accepted and means nothing.
#[test]
fn each_row_is_read() {
    fn check(object: &Object, pointer: &str, wrap: &dyn Fn(Value) -> Value) {
        for member in object
            .members
            .iter()
            .filter(|member| member.name != "model")
        {
            let pointer = format!("{pointer}/{}", member.name);
            let strategy = member.strategy.unwrap_or("ddp");
            let inside = |value| match object.schema {
                "Parallel" => {
                    wrap(json!({ "strategy": strategy, "world_size": 2, member.name: value }))
                }
                _ => wrap(json!({ member.name: value })),
            };
            if let Kind::Object(object) = member.kind {
                check(object, &pointer, &inside);
            }
            let mut request = inside(json!([{}]));
            request["model"] = json!({ "preset": "gpt2", "seq_len": 8 });
            let refused = parsed(&request).unwrap_err();
            assert!(
                refused.pointer.starts_with(&pointer),
                "{pointer}: {refused}"
            );
        }
    }
    check(&REQUEST, "", &|request| request);
}

/// A row without a field of its name in a variant would mean nothing either.
#[test]
fn each_row_of_one_value_is_in_the_variant() {
    for row in TRAINING.members {
        if let Kind::Words(_) | Kind::Object(_) = row.kind {
            continue;
        }
        let example: Value = serde_json::from_str(row.example.expect(row.name)).unwrap();
        let training = json!({ row.name: example });
        let request = parse(json!({ "model": { "preset": "resnet18" }, "training": training }));

        assert_eq!(json!(request.variants[0])[row.name], example, "{training}");
    }
}

fn graph_of(lowered: &mut Lowered) -> &mut Graph {
    match &mut lowered.workload {
        Workload::Graph(graph) => Arc::make_mut(graph),
        Workload::Recorded(_) => unreachable!("nothing was recorded"),
    }
}

fn parsed(document: &Value) -> Result<Request, RequestError> {
    let document = RequestDocument::from_json(document.to_string().as_bytes())?;
    Request::parse(document)
}

#[test]
fn changes_of_a_model_share_its_graph() {
    let request = parse(json!({ "model": { "preset": "gpt2", "seq_len": 64 } }));
    let changed = |chunks: u64, training: Value| {
        let patch = json!({ "model": { "loss_chunks": chunks }, "training": training });
        request.changed(&patch).unwrap()
    };
    let known = [changed(8, json!({}))];
    let graph = known[0].graph().unwrap();
    let alike = changed(8, json!({ "checkpointing": "per_block" }));

    assert!(alike.shares_one_of(&known));
    assert!(Arc::ptr_eq(&alike.graph().unwrap(), &graph));
    assert!(!changed(8, json!({ "precision": "bf16" })).shares_one_of(&known));
    assert!(!changed(4, json!({})).shares_one_of(&known));
}
