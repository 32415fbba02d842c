//! Steps of small models on two GPUs: their programs agree with recorded ones in every event.

use std::collections::HashSet;

use batchfit::compile::compile;
use batchfit::model::{
    CommHook, Ddp, FullyShard, MixedPrecision, Norm, Optimizer, OptimizerImpl, Parallel, Precision,
    Variant, exported,
};
use batchfit::program::Capability;
use batchfit::shape::DType;
use serde_json::Value;

use super::steps::{difference, graphs, in_any_order, unpacked};
use super::{H200, requests};

fn flag(value: &Value, name: &str) -> bool {
    value[name].as_bool().unwrap_or_default()
}

/// What the recording's own words for a wrapper ask for.
fn parallel(header: &Value) -> Parallel {
    let given = &header["parallel"];
    if given.is_null() {
        return Parallel::None;
    }
    if given["kind"] == "fsdp2" {
        return Parallel::Fsdp2(fully_shard(header, given));
    }
    let cap = given["bucket_cap_mb"].as_u64();
    let options = Ddp {
        world_size: header["world"].as_u64().unwrap(),
        gradient_as_bucket_view: flag(given, "gradient_as_bucket_view"),
        static_graph: flag(given, "static_graph"),
        find_unused_parameters: flag(given, "find_unused_parameters"),
        broadcast_buffers: given["broadcast_buffers"].as_bool().unwrap_or(true),
        bucket_cap_mb: cap.map(|cap| u32::try_from(cap).unwrap()),
        sync_every_micro_step: !flag(given, "no_sync"),
        comm_hook: given["hook"].as_str().map(|hook| match hook {
            "fp16" => CommHook::Fp16,
            "bf16" => CommHook::Bf16,
            other => panic!("no hook is called {other}"),
        }),
    };
    if flag(given, "zero1") {
        Parallel::Zero1(options)
    } else {
        Parallel::Ddp(options)
    }
}

fn fully_shard(header: &Value, given: &Value) -> FullyShard {
    let units = given["units"].as_array().unwrap().iter();
    let units = units.map(|unit| unit.as_str().unwrap().to_owned());
    let dtype = |of: &Value, name: &str| {
        of[name].as_str().map(|name| match name {
            "bf16" => DType::BFloat16,
            "fp32" => DType::Float32,
            other => panic!("no type is called {other}"),
        })
    };
    FullyShard {
        world_size: header["world"].as_u64().unwrap(),
        units: Some(units.collect()),
        reshard_after_forward: given["reshard"].as_bool().unwrap_or(true),
        mixed_precision: MixedPrecision {
            param_dtype: dtype(&given["mp"], "param_dtype"),
            reduce_dtype: dtype(&given["mp"], "reduce_dtype"),
            output_dtype: dtype(&given["mp_root"], "output_dtype"),
        },
        cpu_offload: flag(given, "offload"),
        sync_every_micro_step: !flag(given, "no_sync"),
    }
}

pub(super) fn variant(header: &Value) -> Variant {
    let precision = header["precision"].as_str().unwrap();
    let is_named = |known: &Precision| known.name() == precision;
    let (optimizer, optimizer_impl) = match header["optimizer"].as_str().unwrap() {
        "sgd" => (Optimizer::Sgd, OptimizerImpl::Foreach),
        "sgd_momentum" => (Optimizer::SgdMomentum, OptimizerImpl::Foreach),
        "adam" => (Optimizer::Adam, OptimizerImpl::Foreach),
        "adamw" => (Optimizer::Adamw, OptimizerImpl::Foreach),
        "adamw:fused" => (Optimizer::Adamw, OptimizerImpl::Fused),
        other => panic!("no optimizer is called {other}"),
    };
    Variant {
        precision: Precision::ALL.into_iter().find(is_named).unwrap(),
        optimizer,
        optimizer_impl,
        accumulation: u32::try_from(header["accum"].as_u64().unwrap()).unwrap(),
        clip_grad_norm: header["parallel"]["clip"].as_f64().map(Norm::from),
        parallel: parallel(header),
        ..Variant::default()
    }
}

/// Frees of this many bytes are left out: when they happen is a race.
fn without_frees(requests: Vec<String>, bytes: &HashSet<String>) -> Vec<String> {
    let is_late = |request: &String| {
        request
            .strip_prefix('-')
            .is_some_and(|size| bytes.contains(size))
    };
    requests
        .into_iter()
        .filter(|request| !is_late(request))
        .collect()
}

/// The card that a sequence is of: an H200 where the header says nothing else.
fn card(header: &Value) -> Capability {
    let Some(card) = header["card"].as_array() else {
        return H200;
    };
    let [major, minor, multiprocessors] = [0, 1, 2].map(|index| card[index].as_u64().unwrap());
    let number = |number| u32::try_from(number).unwrap();
    Capability {
        compute: (number(major), number(minor)),
        multiprocessors,
        threads_per_multiprocessor: 2048,
    }
}

/// Compares all recordings of a folder, which are so many.
fn compare(folder: &str, count: usize) {
    let graphs = graphs(folder);
    let recorded = unpacked(&format!("{folder}sequences.txt"));
    let mut different = Vec::new();
    let mut compared = 0;
    for case in recorded.split("# ").filter(|case| !case.is_empty()) {
        let mut lines = case.lines();
        let header: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        let name = header["case"].as_str().unwrap();
        let text = graphs[header["model"].as_str().unwrap()].to_string();
        let graph = exported::parse(text.as_bytes()).unwrap().graph;
        let variant = variant(&header);
        let program = compile(&graph, &variant, card(&header)).unwrap();

        let ours = requests(&program, header["batch"].as_u64().unwrap());
        let sizes: HashSet<String> = ours.iter().map(|request| request[1..].to_owned()).collect();
        // The plans of convolutions want memory that a program alone does not know.
        let is_ours =
            |request: &&str| program.convolutions.is_empty() || sizes.contains(&request[1..]);
        let theirs: Vec<String> = lines.filter(is_ours).map(ToOwned::to_owned).collect();
        let late = program
            .tensors
            .iter()
            .filter(|tensor| tensor.label.contains("DistributedDataParallel"));
        let late = late.filter_map(|tensor| program.sizes[tensor.size.0 as usize].at(1));
        let late: HashSet<String> = late
            .filter(|bytes| bytes.0 > 4096)
            .map(|bytes| bytes.0.to_string())
            .collect();
        let (mut ours, mut theirs) = (without_frees(ours, &late), without_frees(theirs, &late));
        if variant.precision.autocast().is_some() {
            (ours, theirs) = (in_any_order(ours), in_any_order(theirs));
        }

        compared += 1;
        different.extend(difference(name, &ours, &theirs));
    }

    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(compared == count, "{compared}");
}

#[test]
fn steps_on_two_gpus_allocate_and_free_what_pytorch_does() {
    compare("parallel/", 36);
}

/// What no machine of several GPUs recorded: frozen, unused, nested and repeated units, and up to 64 ranks.
#[test]
fn sharded_steps_allocate_and_free_what_pytorch_does() {
    compare("sharded/", 19);
}
