//! Changes that can be written down without trying anything.

use serde_json::{Value, json};

use crate::fitting::Result;
use crate::model::{Optimizer, OptimizerImpl, Parallel, Precision, Request, Workload};
use crate::probe::Verdict;
use crate::shape::DType;
use crate::validate::Purpose;
use crate::{EngineError, FitResult, SuggestionKind};

use super::Aim;
use crate::fitting::answer::{Devices, answer};
use crate::fitting::engine::{Fallback, FitEngine, FitSpec, is_to_be_recorded, lowered};
use crate::fitting::probing::runner::Observer;
use crate::fitting::probing::simulator::Simulator;

/// A change that may help.
pub(super) struct Candidate {
    pub(super) kind: SuggestionKind,
    pub(super) change: String,
    pub(super) patch: Value,
    /// What it costs besides time.
    pub(super) cost: String,
    /// What it costs next to others, the least first: nothing, then arithmetic, then accuracy, then data, then cards.
    pub(super) price: u32,
}

impl Candidate {
    pub(super) fn new(
        kind: SuggestionKind,
        price: u32,
        change: impl Into<String>,
        patch: Value,
        cost: impl Into<String>,
    ) -> Candidate {
        Candidate {
            kind,
            change: change.into(),
            patch,
            cost: cost.into(),
            price,
        }
    }
}

/// What weights in half precision cost next to the others.
pub(super) const HALF_WEIGHTS: u32 = 20;

/// What a loss in chunks costs next to the others: a part of what checkpointing computes again.
pub(super) const CHUNKING: u32 = 25;

/// What checkpointing costs next to the others.
pub(super) const RECOMPUTING: u32 = 30;

/// What moments that bitsandbytes pages cost next to the others.
pub(super) const PAGING: u32 = 43;

/// What an adapter costs next to the others: another training.
pub(super) const ADAPTING: u32 = 55;

/// What shards on twice as many GPUs cost next to the others; two more for each doubling.
pub(super) const SHARDING: u32 = 61;

/// What shards in the host's memory cost next to the others.
pub(super) const OFFLOADING: u32 = 70;

/// The card that is suggested where one has too little, and what it costs next to the others.
const LARGER: &str = "h200";
pub(super) const LARGER_CARD: u32 = 80;

/// The rank of an adapter that is suggested: what PEFT's own examples take.
const ADAPTER_RANK: u64 = 16;

/// What is said of an adapter's base in fp16.
const FP16_BASE: &str = " over fp16 weights";

/// Chunks of a loss that are suggested: torchtune's default, and four times as many.
const CHUNKS: [u64; 2] = [8, 32];

/// How many times as many GPUs are suggested.
const GPUS: [u64; 3] = [2, 4, 8];

/// Every change but those of checkpointing.
pub(super) fn all(aim: &Aim<'_>, observer: &Observer<'_>) -> Result<Vec<Candidate>> {
    let mut all = allocator(aim);
    all.extend(optimizers(aim));
    all.extend(precisions(aim));
    all.extend(losses(aim));
    all.extend(adapter(aim));
    all.extend(tokens(aim, observer)?);
    all.extend(several(aim));
    all.extend(larger(aim));
    Ok(all)
}

/// Settings of the allocator, one at a time beside those that are there.
fn allocator(aim: &Aim<'_>) -> Vec<Candidate> {
    const SETTINGS: [(&str, &str); 4] = [
        ("expandable_segments", "True"),
        ("max_split_size_mb", "128"),
        ("garbage_collection_threshold", "0.8"),
        ("roundup_power2_divisions", "4"),
    ];
    let now = aim.request.allocator.as_str();
    let candidate = |text: String, change: String| {
        let patch = json!({ "allocator": text });
        Candidate::new(SuggestionKind::Allocator, 0, change, patch, "nothing")
    };
    let mut all = Vec::new();
    for (key, value) in SETTINGS.iter().filter(|(key, _)| !now.contains(key)) {
        let one = format!("{key}:{value}");
        let text = if now.is_empty() {
            one.clone()
        } else {
            format!("{now},{one}")
        };
        all.push(candidate(text, format!("allocator {one}")));
    }
    if !now.is_empty() {
        let change = "allocator without settings".to_owned();
        all.push(candidate(String::new(), change));
    }
    all
}

/// Adam without its temporaries, and what keeps less than Adam does.
fn optimizers(aim: &Aim<'_>) -> Vec<Candidate> {
    let variant = aim.variant;
    let own = variant.optimizer;
    let candidate = |kind, price, optimizer: Optimizer, cost: &str| {
        let name = optimizer.name();
        let patch = json!({ "training": { "optimizer": name, "optimizer_impl": null } });
        Candidate::new(kind, price, format!("optimizer {name}"), patch, cost)
    };
    let kind = SuggestionKind::Optimizer;
    let mut all = Vec::new();
    let fused = OptimizerImpl::Fused;
    if own.implementations().contains(&fused) && variant.optimizer_impl != fused {
        let change = format!("{} with fused=True", own.name());
        let patch = json!({ "training": { "optimizer_impl": fused.name() } });
        all.push(Candidate::new(kind, 1, change, patch, "nothing"));
    }
    if matches!(own, Optimizer::Adam | Optimizer::Adamw) {
        let eight = "moments in eight bits";
        let sums = "moments from sums over rows and columns";
        all.push(candidate(kind, 40, Optimizer::Adamw8bit, eight));
        all.push(candidate(kind, 41, Optimizer::Adamw8bitTorchao, eight));
        all.push(candidate(kind, 42, Optimizer::Adafactor, sums));
    }
    if [Optimizer::Adam, Optimizer::Adamw, Optimizer::Adamw8bit].contains(&own) {
        let (paged, cost) = (
            Optimizer::PagedAdamw8bit,
            "moments in eight bits, paged to the host",
        );
        all.push(candidate(SuggestionKind::Offload, PAGING, paged, cost));
    }
    all
}

/// Half precision, where float32 is not needed.
fn precisions(aim: &Aim<'_>) -> Vec<Candidate> {
    let candidate = |precision: Precision, cost: &str, price| {
        let name = precision.name();
        let patch = json!({ "training": { "precision": name } });
        let change = format!("precision {name}");
        Candidate::new(SuggestionKind::Precision, price, change, patch, cost)
    };
    let fp16 = |price| {
        let cost = "arithmetic in fp16, with loss scaling";
        candidate(Precision::AmpFp16, cost, price)
    };
    let bf16 = || {
        let mut half = candidate(Precision::Bf16, "weights in bf16", HALF_WEIGHTS);
        if aim.request.param_dtype().is_some() {
            half.patch["model"] = json!({ "param_dtype": "bf16" });
        }
        half
    };
    match (aim.variant.precision, aim.has_bf16()) {
        (Precision::Fp32, true) => {
            let amp = candidate(Precision::AmpBf16, "arithmetic in bf16", 10);
            vec![amp, fp16(11), bf16()]
        }
        (Precision::AmpFp16 | Precision::AmpBf16, true) => vec![bf16()],
        (Precision::Fp32 | Precision::AmpBf16, false) => {
            let mut half = fp16(HALF_WEIGHTS);
            if aim.request.is_adapted() == Some(true) {
                half.change += FP16_BASE;
                half.patch["model"] = json!({ "param_dtype": "fp16" });
            }
            vec![half]
        }
        (Precision::AmpFp16, false) | (Precision::Bf16 | Precision::Fp16, _) => Vec::new(),
    }
}

/// The logits of a part of the tokens at a time, of models whose loss batchfit builds itself: others are refused when they are read.
fn losses(aim: &Aim<'_>) -> Vec<Candidate> {
    if !is_built(aim) {
        return Vec::new();
    }
    let candidate = |(place, chunks): (u32, u64)| {
        let change = format!("loss in {chunks} chunks of the tokens");
        let patch = json!({ "model": { "loss_chunks": chunks } });
        let cost = "the head's products twice; a few lines of code";
        Candidate::new(SuggestionKind::Loss, CHUNKING + place, change, patch, cost)
    };
    (0..).zip(CHUNKS).map(candidate).collect()
}

/// Whether the model is built from a name or a config, with what else a request says of it.
fn is_built(aim: &Aim<'_>) -> bool {
    ["preset", "hf"].contains(&aim.request.model_kind())
}

/// PEFT's adapters on all linear layers, of a model of transformers that has none. Where weights cannot be in bf16 they are in fp16, as
/// only adapters have gradients for a `GradScaler`.
fn adapter(aim: &Aim<'_>) -> Option<Candidate> {
    let mut patch =
        json!({ "model": { "lora": { "r": ADAPTER_RANK, "target_modules": "all-linear" } } });
    let is_in_fp16 = !aim.has_bf16() && !aim.variant.precision.parameters().is_half();
    if is_in_fp16 {
        patch["model"]["param_dtype"] = "fp16".into();
        patch["training"] = json!({ "precision": Precision::AmpFp16.name() });
    }
    let over = if is_in_fp16 { FP16_BASE } else { "" };
    let change = format!("LoRA of rank {ADAPTER_RANK} on all linear layers{over}");
    let cost = "adapters are trained, not the weights";
    let kind = SuggestionKind::Adapter;
    (aim.request.is_adapted() == Some(false))
        .then(|| Candidate::new(kind, ADAPTING, change, patch, cost))
}

/// Samples of half and of a quarter of the tokens, of a model that is built for a number of them.
fn tokens(aim: &Aim<'_>, observer: &Observer<'_>) -> Result<Vec<Candidate>> {
    // Several lengths are what samples have.
    if !is_built(aim) || aim.request.lengths.is_some() {
        return Ok(Vec::new());
    }
    let lowered = lowered(aim.request, observer.cancel())?;
    let Workload::Graph(graph) = &lowered.workload else {
        return Ok(Vec::new());
    };
    let length = graph.inputs.iter().find_map(|input| {
        let value = graph.value(input.value);
        match (value.dtype, &value.shape[..]) {
            (DType::Int64, [_, length]) => length.as_fixed(),
            _ => None,
        }
    });
    let shorter = length.map(|length| [length / 2, length / 4]);
    let shorter = shorter.into_iter().flatten().filter(|length| *length > 0);
    let candidate = |length: u64| {
        let change = format!("samples of {length} tokens");
        let patch = json!({ "model": { "seq_len": length } });
        Candidate::new(SuggestionKind::Tokens, 50, change, patch, "shorter samples")
    };
    Ok(shorter.map(candidate).collect())
}

/// Shards on as many GPUs or more, with the optimizer's state or all in them; and shards in the host's memory.
fn several(aim: &Aim<'_>) -> Vec<Candidate> {
    // A soak is of one process.
    if aim.request.soak.is_some() {
        return Vec::new();
    }
    let parallel = &aim.variant.parallel;
    let (ranks, is_alone) = (parallel.world_size(), parallel.is_none());
    let is_sharded = matches!(parallel, Parallel::Fsdp2(_));
    let is_offloaded = matches!(parallel, Parallel::Fsdp2(sharded) if sharded.cpu_offload);
    let mut all = Vec::new();
    let mut add = |kind, price, change: String, parallel: Value, cost: &str| {
        let patch = json!({ "world_size": null, "training": { "parallel": parallel } });
        all.push(Candidate::new(kind, price, change, patch, cost));
    };
    let on_gpus = SuggestionKind::Gpus;
    if !is_alone && !is_sharded {
        let sharded = json!({ "strategy": "fsdp2", "world_size": ranks });
        let change = format!("FSDP2 on the {ranks} GPUs");
        add(on_gpus, 59, change, sharded, "communication");
    }
    for (place, times) in (0..).zip(GPUS) {
        let gpus = ranks.saturating_mul(times);
        let cost = format!("{gpus} GPUs, and communication");
        if is_alone {
            let zero = json!({ "strategy": "zero1", "world_size": gpus });
            let change = format!("ZeRO-1 on {gpus} GPUs");
            add(on_gpus, SHARDING - 1 + 2 * place, change, zero, &cost);
        }
        let sharded = json!({ "strategy": "fsdp2", "world_size": gpus });
        let change = format!("FSDP2 on {gpus} GPUs");
        add(on_gpus, SHARDING + 2 * place, change, sharded, &cost);
    }
    let offloaded = [(ranks, is_offloaded), (2, !is_alone)];
    for (gpus, _) in offloaded.into_iter().filter(|(_, has_it)| !has_it) {
        let shards = json!({ "strategy": "fsdp2", "world_size": gpus, "cpu_offload": true });
        let (gpus, others) = match gpus {
            1 => ("one GPU".to_owned(), String::new()),
            gpus => (
                format!("{gpus} GPUs"),
                format!("{gpus} GPUs, communication, and "),
            ),
        };
        let change = format!("FSDP2 on {gpus} with cpu_offload");
        let cost = format!("{others}a step on the host");
        add(SuggestionKind::Offload, OFFLOADING, change, shards, &cost);
    }
    all
}

/// A larger card, and eight of it, where nothing fits one.
fn larger(aim: &Aim<'_>) -> Vec<Candidate> {
    if !aim.variant.parallel.is_none() || aim.at_once > 0 || aim.card.name == LARGER {
        return Vec::new();
    }
    let device = format!("sim:{LARGER}");
    let sharded = json!({ "parallel": { "strategy": "fsdp2", "world_size": 8 } });
    let eight = json!({ "device": &device, "world_size": null, "training": sharded });
    let one = json!({ "device": &device });
    let kind = SuggestionKind::Gpus;
    let cost = "8 other GPUs, and communication";
    vec![
        Candidate::new(kind, LARGER_CARD, "an H200 instead", one, "another card"),
        Candidate::new(
            kind,
            LARGER_CARD + 1,
            "FSDP2 on 8 H200s instead",
            eight,
            cost,
        ),
    ]
}

/// A request about a simulated card that has one variant, looked at a sample at a time.
pub(super) struct One<'a> {
    engine: &'a FitEngine,
    request: &'a Request,
    spec: FitSpec<'a>,
    simulator: Simulator,
}

impl One<'_> {
    /// How one sample runs, and whether it leaves headroom.
    pub(super) fn sample(&mut self) -> Result<(Verdict, bool)> {
        let One {
            spec, simulator, ..
        } = self;
        let variant = &spec.request.variants[0];
        let limit = spec.budget.limit(&variant.parallel);
        simulator.safety(&spec.request, variant, 1, limit)
    }

    /// The answer, where the request is right.
    pub(super) fn answer(mut self, observer: &Observer<'_>) -> Result<FitResult> {
        let cancel = observer.cancel();
        self.engine.resolve(self.request, Purpose::Fit, cancel)?;
        let devices = Devices {
            simulated: &mut self.simulator,
            real: None,
        };
        answer(&self.spec, devices, observer)
    }
}

impl FitEngine {
    /// Opens such a request; `None` where it is another one, or is wrong.
    pub(super) fn one<'a>(
        &'a self,
        request: &'a Request,
        observer: &'a Observer<'a>,
    ) -> Result<Option<One<'a>>> {
        let is_alone = request.lengths.is_none() && request.soak.is_none();
        if !is_alone || request.variants.len() > 1 {
            return Ok(None);
        }
        let is_recorded = is_to_be_recorded(request, observer.cancel());
        let opened = is_recorded.and_then(|is_recorded| {
            let open = || self.open(request, self.deadlines, Fallback::Fail, observer);
            (!is_recorded).then(open).transpose()
        });
        match opened {
            Ok(opened) => Ok(opened.map(|(spec, simulator, _)| One {
                engine: self,
                request,
                spec,
                simulator,
            })),
            Err(EngineError::Cancelled) => Err(EngineError::Cancelled),
            Err(_) => Ok(None),
        }
    }
}
