//! The answer to a fit: the `result` of `GET /v1/fits/{id}` and of `fit --json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{LengthTable, SoakResult};
use crate::model::PYTORCH;
use crate::probe::{
    CategoryBytes, Evidence, Peak, PeakMemory, ProbeReport, RankReport, Shortage, SpeedFrom,
    Verdict, is_nothing,
};
use crate::search::Plan;
use crate::search::headroom::Doubt;

/// What to train with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Recommendation {
    /// Whether there is a batch to train with; false where `micro_batch` is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fits: Option<bool>,
    /// Samples per micro-step on one GPU; 0 when nothing fits.
    pub micro_batch: u64,
    /// Micro-steps per optimizer step.
    pub accumulation_steps: u64,
    /// Samples per optimizer step over all ranks: `micro_batch * accumulation_steps * world_size`.
    pub global_batch: u64,
    /// What `global_batch` lacks of `target_batch`; 0 without a target.
    pub shortfall: u64,
    /// The largest batch whose steps finish at all.
    pub max_batch: u64,
    /// The largest batch that runs steadily: after the second step, the allocator never has to free its cache and retry. What is
    /// recommended is no larger.
    #[serde(default)]
    pub max_batch_steady: u64,
    /// The largest batch whose steps never force the allocator to retry.
    pub max_batch_without_retries: u64,
    /// Most bytes allocated in a step of the recommended micro-batch.
    pub peak_allocated_bytes: u64,
    /// Most bytes reserved in a step of the recommended micro-batch.
    pub peak_reserved_bytes: u64,
    /// What the allocator may reserve.
    pub limit_bytes: u64,
    /// `limit_bytes` less `peak_reserved_bytes`.
    pub headroom_bytes: u64,
    /// What of the limit had to stay free, and who says so.
    pub headroom: Headroom,
    /// What keeps the batch from being larger, by name.
    pub limited_by: String,
    /// What the peak is made of, when it is, and which limit binds; missing in answers of versions that did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    /// Where the numbers come from.
    pub evidence: Evidence,
    /// Milliseconds per micro-step, with its share of what the optimizer takes; null where nothing fits or it is not known: of
    /// recordings, and of several simulated GPUs.
    pub step_ms: Option<f64>,
    /// Milliseconds per optimizer step: `accumulation_steps` micro-steps and an update. Null where `step_ms` is.
    #[serde(default)]
    pub optimizer_step_ms: Option<f64>,
    /// Samples per second on one GPU; null where `step_ms` is.
    pub samples_per_second: Option<f64>,
    /// Where these times are from; null where there are none.
    #[serde(default)]
    pub speed_from: Option<SpeedFrom>,
    /// When nothing fits: how many bytes more a batch of one would need.
    pub missing_bytes: Option<u64>,
    /// What each process keeps in the host's memory for as long as it trains; missing where nothing is offloaded.
    #[serde(default, skip_serializing_if = "is_nothing")]
    #[schema(required = false)]
    pub host_bytes: u64,
    /// How the target itself is made, where that takes so much longer that fewer samples are recommended; missing where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub exactly: Option<Exactly>,
    /// The batch to record next, for an answer that is nearer to what was recorded; null where it is near enough, or
    /// nothing was recorded.
    #[serde(default)]
    pub next_batch: Option<u64>,
    /// What is to be known of several ranks; missing where one process trains.
    #[serde(flatten)]
    #[schema(value_type = AcrossRanks)]
    pub parallel: Option<AcrossRanks>,
    /// What the reader should know of the rules used: transferred, estimated, assumed.
    pub notes: Vec<String>,
}

/// Ways to make a target that the recommended micro-batch does not divide.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Exactly {
    /// The largest micro-batch that fits and divides the target.
    pub micro_batch: u64,
    /// How many of it make the target.
    pub accumulation_steps: u64,
    /// How many times as long a sample takes with these, where that is known.
    pub times_slower: Option<f64>,
    /// What a last, smaller micro-batch after the recommended ones would have, on each GPU, to make the target.
    pub last_micro_batch: u64,
    /// The micro-batch of the nearest total above the target that takes few steps, and how many.
    pub above_micro_batch: u64,
    /// How many of it make that total.
    pub above_steps: u64,
}

impl Recommendation {
    /// Recommends nothing.
    pub(super) fn nothing(&mut self) {
        self.fits = Some(false);
        self.micro_batch = 0;
        self.accumulation_steps = 0;
        self.global_batch = 0;
        self.shortfall = 0;
        self.headroom_bytes = 0;
        self.exactly = None;
        self.without_speed();
    }

    /// The batch that it recommends.
    pub(super) fn plan(&self) -> Plan {
        Plan {
            micro_batch: self.micro_batch,
            accumulation_steps: self.accumulation_steps,
            global_batch: self.global_batch,
            shortfall: self.shortfall,
        }
    }

    /// Takes back how long a step takes.
    pub(super) fn without_speed(&mut self) {
        self.step_ms = None;
        self.optimizer_step_ms = None;
        self.samples_per_second = None;
        self.speed_from = None;
    }
}

/// Which limit binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The limit that the request names.
    MemoryLimit,
    /// What the device has for PyTorch's allocator.
    Device,
    /// What other processes hold on the device: without them, the next batch would fit.
    OtherProcesses,
    /// Tensors would fit, but what the allocator keeps of freed ones lies in pieces that do not serve.
    Fragmentation,
    /// A larger batch runs, and leaves less free than the prediction may be too low by.
    Headroom,
    /// A larger batch runs, and is hardly faster.
    Objective,
    /// A larger batch runs, and the samples that were asked for need none.
    TargetBatch,
    /// The host's memory that the request names: what is offloaded does not fit into it.
    Host,
    /// Larger batches are not tried: the graph holds for no larger one, or no training would use one.
    LargestTried,
}

/// What keeps a batch from being larger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limit {
    /// Which limit.
    pub kind: LimitKind,
    /// The batch that shows it; null where none does.
    pub batch: Option<u64>,
    /// The same in words, with its figures.
    pub explanation: String,
    /// What was free when that batch was refused; null where it was not.
    pub shortage: Option<Shortage>,
}

impl Limit {
    /// One for which nothing was refused.
    pub(super) fn new(kind: LimitKind, batch: Option<u64>, explanation: String) -> Limit {
        Limit {
            kind,
            batch,
            explanation,
            shortage: None,
        }
    }
}

/// Why a batch is not larger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// What is allocated at the peak of the recommended micro-batch, by purpose, largest first; its sum is the peak. Where nothing fits,
    /// of one sample on a card that has enough.
    pub at_peak: Vec<CategoryBytes>,
    /// When that is, and which modules hold it; null where that is not known.
    pub peak: Option<Peak>,
    /// The limit that binds.
    pub limit: Limit,
}

/// What is to be known of an answer for several ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AcrossRanks {
    /// Ranks that train together.
    #[schema(required = false)]
    pub world_size: u64,
    /// Those that differ, at the recommended micro-batch, those that hold most first.
    #[schema(required = false)]
    pub ranks: Vec<RankReport>,
    /// The rank that needs most: the recommendation's figures are its.
    #[schema(required = false)]
    pub binding_rank: u32,
    /// The peaks where DDP's first buckets are gone before those that replace them are made, which depends on timing; the
    /// recommendation takes them to overlap. Null where there is no such race.
    #[schema(required = false)]
    pub without_overlap: Option<PeakMemory>,
    /// Bytes that each rank sends to others in an optimizer step, as a ring of all ranks moves them: of `n` ranks, `2(n-1)/n` of
    /// what is all-reduced, `(n-1)/n` of what is gathered or reduced and scattered, all of what is broadcast.
    #[schema(required = false)]
    pub communicated_bytes: Option<u64>,
}

/// One combination of precision, optimizer and checkpointing, with its own answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VariantResult {
    /// 1 is the best. Variants of one optimizer follow each other, unless `compare` is `across_optimizers`.
    pub rank: u32,
    /// What it costs besides memory, such as `recomputes 24 blocks`; null where that is nothing.
    pub cost: Option<String>,
    /// The share of the forward pass's operations that run a second time, from 0 to 1.
    pub recomputes: f64,
    /// Whether none of the variants that it is compared with has both a larger micro-batch and more samples a second, over all
    /// GPUs; null where it does not fit or speeds cannot be compared.
    #[serde(default)]
    pub pareto: Option<bool>,
    /// The variant, as in a request's `training`.
    #[schema(value_type = Object)]
    pub training: crate::model::Variant,
    /// Its recommendation.
    pub recommendation: Recommendation,
}

/// A probe in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProbeSummary {
    /// Index into `variants`: one less than its variant's rank.
    pub variant: u32,
    /// Micro-steps that it ran for each optimizer step: at most four, since more take no more memory.
    pub accumulation: u32,
    /// The whole report, without its timeline.
    #[serde(flatten)]
    pub report: ProbeReport,
    /// Milliseconds the probe took, loading included.
    pub wall_ms: f64,
}

/// What the answer was found with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Environment {
    /// The device, as resolved: `cuda:0`, `sim:h200`.
    pub device: String,
    /// The card's name.
    pub gpu: String,
    /// Driver version; null on a simulated device.
    pub driver: Option<String>,
    /// CUDA version; null on a simulated device.
    pub cuda: Option<String>,
    /// cuDNN version whose workspaces were used.
    pub cudnn: Option<String>,
    /// Version of batchfit.
    pub batchfit: String,
    /// The PyTorch whose behaviour is predicted.
    pub pytorch: String,
}

impl Environment {
    /// Of this program, on a device that has no driver.
    pub fn new(device: impl Into<String>, gpu: impl Into<String>) -> Environment {
        Environment {
            device: device.into(),
            gpu: gpu.into(),
            driver: None,
            cuda: None,
            cudnn: None,
            batchfit: env!("CARGO_PKG_VERSION").to_owned(),
            pytorch: PYTORCH.to_owned(),
        }
    }
}

/// A probe on a GPU, whatever came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuRun {
    /// Samples per micro-step.
    pub batch: u64,
    /// Micro-steps per optimizer step.
    pub accumulation: u32,
    /// How it ended.
    pub verdict: Verdict,
    /// Milliseconds it took, loading included.
    pub wall_ms: f64,
}

/// What was done on a GPU to find the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuWork {
    /// Probes that ran.
    pub probes: u32,
    /// How many of them ran out of memory: in a process of batchfit's own, which goes on.
    pub out_of_memory: u32,
    /// Processes started for them; more than one when one was lost.
    pub workers: u32,
    /// Milliseconds from the start of the last such process until the GPU was open and its kernels compiled.
    pub worker_start_ms: f64,
    /// Milliseconds spent waiting while other batchfit processes used the GPU.
    pub waited_ms: f64,
    /// Every probe, in the order in which they ran.
    pub runs: Vec<GpuRun>,
}

/// What a suggestion changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SuggestionKind {
    /// The settings of PyTorch's allocator.
    Allocator,
    /// How the optimizer is implemented, or another optimizer.
    Optimizer,
    /// The precision.
    Precision,
    /// Which activations are computed again.
    Checkpointing,
    /// How a language model's loss is computed.
    Loss,
    /// How many tokens a sample has.
    Tokens,
    /// How many GPUs train together.
    Gpus,
    /// What is kept in the host's memory.
    Offload,
    /// Adapters that are trained instead of the weights.
    Adapter,
    /// Several of the others at once, where none of them alone makes a batch fit.
    Combination,
}

/// A change of the request, answered as if the changed request had been asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Suggestion {
    /// What it changes.
    pub kind: SuggestionKind,
    /// The change in words.
    pub change: String,
    /// The change of the request, as a JSON merge patch (RFC 7396).
    #[schema(value_type = Object)]
    pub patch: serde_json::Value,
    /// Whether as many samples are trained at once as were wanted.
    pub reaches: bool,
    /// Samples that all GPUs take at once, less those of the request as it is.
    pub gained: i64,
    /// Samples per micro-step on one GPU; 0 when nothing fits.
    pub micro_batch: u64,
    /// Micro-steps per optimizer step.
    pub accumulation_steps: u64,
    /// Samples per optimizer step over all GPUs.
    pub global_batch: u64,
    /// The largest batch whose steps never force the allocator to retry.
    pub max_batch_without_retries: u64,
    /// Most bytes reserved in a step of the micro-batch; 0 where nothing fits.
    pub peak_reserved_bytes: u64,
    /// GPUs that train together.
    pub world_size: u64,
    /// What it costs besides.
    pub cost: String,
    /// Samples per second on one GPU; null where it is not known: for several simulated GPUs.
    pub samples_per_second: Option<f64>,
    /// Where that is from; null where it is.
    pub speed_from: Option<SpeedFrom>,
}

/// A finished fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FitResult {
    /// The best variant's recommendation.
    pub recommendation: Recommendation,
    /// All variants, best first.
    pub variants: Vec<VariantResult>,
    /// Real probes, and the simulated ones at the answer and above it.
    pub probes: Vec<ProbeSummary>,
    /// What was done on a GPU; null when none was used.
    pub gpu_work: Option<GpuWork>,
    /// What was assumed of the model, a sentence each; the answer is as good as these are. Empty where nothing was.
    pub assumptions: Vec<String>,
    /// The largest safe batch at each length, where the request names several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<LengthTable>,
    /// What many steps in one process came to, where the request asks for a soak: the recommendation is what is safe after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak: Option<SoakResult>,
    /// What it was found with.
    pub environment: Environment,
    /// Samples that all GPUs are wanted to take at once, which `suggestions` reach or not. Missing where none were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggested_for: Option<u64>,
    /// Changes of the request with their answers: first those that reach what was wanted, the cheapest before the others, then the others,
    /// those that gain most before those that gain nothing or lose. Empty where none were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub suggestions: Vec<Suggestion>,
}

impl FitResult {
    /// Reads one from its JSON, as a function that is compiled once: what a derived implementation reads, whoever calls it compiles.
    pub fn from_json(text: &str) -> serde_json::Result<Box<FitResult>> {
        serde_json::from_str(text)
    }

    /// The answer of these variants, best first, with nothing else.
    pub fn of(variants: Vec<VariantResult>, environment: Environment) -> FitResult {
        FitResult {
            recommendation: variants[0].recommendation.clone(),
            variants,
            probes: Vec::new(),
            gpu_work: None,
            assumptions: Vec::new(),
            lengths: None,
            soak: None,
            environment,
            suggested_for: None,
            suggestions: Vec::new(),
        }
    }

    /// How many processes the recommended batch is for, where `heuristics` were asked about: a strategy may be recommended that
    /// takes one.
    pub fn ranks(&self, asked: u64) -> u64 {
        let best = &self.recommendation;
        let of_a_rank = best.micro_batch.saturating_mul(best.accumulation_steps);
        best.global_batch.checked_div(of_a_rank).unwrap_or(asked)
    }
}

/// What stands between the claim of a note on headroom and its reasons.
pub const MARGIN: &str = " as a safety margin:";

/// What of the limit had to stay free.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Headroom {
    /// As a part of the limit, from 0 to 1.
    pub fraction: f64,
    /// Who says so.
    pub from: HeadroomFrom,
    /// How many outcomes of earlier answers it follows from; 0 where it follows from none.
    pub outcomes: u64,
    /// What the answer keeps free by itself for each of its doubts, as parts of the limit. Their sum is the headroom where nothing else
    /// says what it is.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, f64>)]
    pub doubts: BTreeMap<Doubt, f64>,
}

batchfit_step::listed! {
    /// Who says what has to stay free.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum HeadroomFrom {
        /// What predictions like this one were measured to be too low by.
        #[default]
        Default = "default",
        /// Outcomes of earlier answers for this model and card.
        Learnt = "learnt",
        /// Outcomes of other models on this card.
        Others = "others",
        /// The request.
        Asked = "asked",
    }
}
