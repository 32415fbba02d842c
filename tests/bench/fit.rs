//! How fast an answer is: compile, one simulated probe, whole fits.
//!
//! `cargo bench --bench fit`. What it is held to, on two cores: llama 1B compiles in under 20 ms and one of
//! its steps is simulated in under 3 ms; a fit takes under 100 ms, one of 24 variants under a second.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark stops at what it does not expect"
)]

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use batchfit::alloc::{CachingAllocator, Settings, SimulatedMemory};
use batchfit::device::sim::{Card, SimulatedLauncher};
use batchfit::jobs::{Engine, FitEngine, Isolation, Work};
use batchfit::limits::Cancel;
use batchfit::model::{Request, RequestDocument, Workload};
use batchfit::probe::{Detail, Evidence, Probe, Resources, STEPS};
use batchfit::worker::Programs;
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};

fn exported(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/exported");
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(folder.join(name)).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    serde_json::from_str(&text).unwrap()
}

fn request(model: &Value, training: &Value, limit: &str) -> Request {
    let text = json!({
        "model": model, "training": training, "device": "sim:h200", "memory_limit": limit,
    });
    let document = RequestDocument::from_json(text.to_string().as_bytes()).unwrap();
    Request::parse(document).unwrap()
}

fn llama() -> Request {
    let model = json!({"exported": exported("llama1b-bf16-table.json.gz")});
    let training = json!({"precision": "bf16", "optimizer": "adamw", "optimizer_impl": "fused"});
    request(&model, &training, "40GiB")
}

fn steps(criterion: &mut Criterion) {
    let request = llama();
    let capability = Card::find("h200").unwrap().capability;
    let graph = request.graph().unwrap();
    criterion.bench_function("llama1b: read the graph", |bencher| {
        // A request reads its graph once.
        bencher.iter_batched(
            llama,
            |request| request.graph().unwrap(),
            criterion::BatchSize::LargeInput,
        );
    });
    // 100,000 nodes: the most that a request may have.
    let mut large = request.lower().unwrap().clone();
    let Workload::Graph(repeated) = &mut large.workload else {
        unreachable!("a preset is a graph");
    };
    let repeated = Arc::make_mut(repeated);
    let nodes = graph.nodes.iter().cycle().take(100_000);
    repeated.nodes = nodes.cloned().collect();
    let values = graph.values.iter().cycle().skip(graph.values.len());
    repeated.values.extend(values.take(100_000).cloned());
    criterion.bench_function("fingerprint of 100,000 nodes", |bencher| {
        bencher.iter(|| request.fingerprint(&large, None));
    });
    criterion.bench_function("llama1b: compile", |bencher| {
        bencher.iter_batched(
            || Programs::new(graph.clone(), capability),
            |mut programs| {
                programs
                    .of(&request.variants[0], &Cancel::NEVER)
                    .map(|_| ())
                    .unwrap();
            },
            criterion::BatchSize::LargeInput,
        );
    });

    let mut programs = Programs::new(graph, capability);
    let program = programs.of(&request.variants[0], &Cancel::NEVER).unwrap();
    let mut group = criterion.benchmark_group("llama1b: simulate");
    for steps in [1, STEPS] {
        group.bench_function(format!("{steps} steps"), |bencher| {
            bencher.iter(|| {
                let memory = SimulatedMemory::new(batchfit::units::Bytes::gib(40));
                let mut allocator = CachingAllocator::new(memory, Settings::default(), None);
                let probe = Probe {
                    program,
                    batch: 3,
                    steps,
                    detail: Detail::Verdict,
                };
                probe.run(&mut Resources {
                    allocator: &mut allocator,
                    launcher: &mut SimulatedLauncher::default(),
                    evidence: Evidence::Simulated,
                })
            });
        });
    }
}

fn fits(criterion: &mut Criterion) {
    let engine = FitEngine::new("unused".into());
    let mut group = criterion.benchmark_group("fit");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(5));
    let resnet50 = json!({"preset": "resnet50"});
    let amp = json!({"precision": "amp_fp16", "optimizer": "sgd_momentum"});
    let every = json!({
        "precision": ["fp32", "amp_fp16", "amp_bf16", "bf16"],
        "optimizer": ["sgd_momentum", "adam", "adamw"],
        "checkpointing": ["none", "per_block"],
    });
    let gpt2 = json!({"exported": exported("gpt2-table.json.gz")});
    let adamw = json!({"precision": "amp_bf16", "optimizer": "adamw"});
    for (name, request) in [
        ("llama1b at 40 GiB", llama()),
        ("gpt2 at 16 GiB", request(&gpt2, &adamw, "16GiB")),
        ("resnet50 at 24 GiB", request(&resnet50, &amp, "24GiB")),
        (
            "24 variants of resnet50",
            request(&resnet50, &every, "24GiB"),
        ),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                engine
                    .fit(&request, Isolation::Shared, &Work::UNWATCHED)
                    .unwrap()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, steps, fits);
criterion_main!(benches);
