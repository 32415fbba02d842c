//! What a request may contain, for the OpenAPI document.
//!
//! Nothing here is read from JSON: [`super::Request::parse`] does that, with better messages than derived
//! code gives. A test compares the fields of both.

#![expect(dead_code, reason = "these types are only described, never made")]

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// What a fit or a probe is asked with.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(title = "Request")]
pub(super) struct RequestSchema {
    model: ModelSchema,
    lengths: Option<LengthsSchema>,
    training: Option<TrainingSchema>,
    /// `auto` (default: a GPU that is free), `cuda:N` or `sim:NAME`; a kind of card such as `h100-80g` for any host with an agent that
    /// has one (simulated where there is none, which the answer's notes say), or `HOST/cuda:N` for one card of it; or a list of
    /// simulated cards where the ranks of a job have different ones: the one that leaves PyTorch the least memory decides.
    #[schema(value_type = Option<Value>, example = "sim:h200")]
    device: Option<Value>,
    /// What the allocator may reserve: bytes, a size such as `12GiB`, or a fraction such as `0.8`.
    #[schema(value_type = Option<Value>, example = "12GiB")]
    memory_limit: Option<Value>,
    /// What of the limit is left free, from 0 to 0.5, whatever was learnt of earlier answers. Without it: what the prediction may be
    /// too low by, or what outcomes have taught (`POST /v1/recommendations/{id}/outcomes`).
    #[schema(minimum = 0, maximum = 0.5, example = 0.01)]
    headroom: Option<f64>,
    /// What the host has for what is offloaded to it (`cpu_offload`, `paged_adamw_8bit`), by all ranks together: bytes, or a size such
    /// as `256GiB`. Without it: enough.
    #[schema(value_type = Option<Value>, example = "256GiB")]
    host_memory: Option<Value>,
    /// Samples for each optimizer step, over all ranks.
    #[schema(minimum = 1)]
    target_batch: Option<u64>,
    /// Ranks that train together; 1 by default.
    #[schema(minimum = 1)]
    world_size: Option<u64>,
    /// The text of a `PYTORCH_CUDA_ALLOC_CONF`.
    #[schema(example = "expandable_segments:True")]
    allocator: Option<String>,
    /// `auto` (default: simulation brackets, probes confirm), `probes`, or `recorded`: PyTorch runs the exported graph for a few
    /// steps at small batches, on a server with a recorder, and what it asks for predicts the rest. With `auto` that is done
    /// where a graph has operators that are not known.
    #[schema(value_type = Option<String>, example = "auto", pattern = "^(auto|probes|recorded)$")]
    search: Option<String>,
    /// Which variants are ranked against each other: `within_optimizer` (default: the recommendation is the best of the
    /// optimizer that is listed first) or `across_optimizers`.
    #[schema(
        example = "within_optimizer",
        pattern = "^(within_optimizer|across_optimizers)$"
    )]
    compare: Option<String>,
    /// Which batch is looked for: `largest_batch` (default), or `throughput`: the smallest micro-batch with 95 % of the best speed.
    #[schema(example = "largest_batch", pattern = "^(largest_batch|throughput)$")]
    objective: Option<String>,
    /// What becomes of operators of an exported graph that batchfit does not know: `refuse` (default), or
    /// `assume_elementwise`: each is assumed to keep its inputs for the backward pass and to allocate its results, and
    /// the answer lists them under `assumptions`.
    #[schema(example = "refuse", pattern = "^(refuse|assume_elementwise)$")]
    unknown_ops: Option<String>,
    /// Where sizes in an exported graph depend on the values of the batch (boolean masks, tokens of experts): how many
    /// percent of the most that they may choose is assumed. Without it all, or even parts; the answer lists them under
    /// `assumptions`.
    #[schema(minimum = 0, maximum = 100, example = 25)]
    chosen_percent: Option<u64>,
    soak: Option<SoakSchema>,
    generation: Option<GenerationSchema>,
    /// Who is served first: `interactive` (somebody waits: the default with `Prefer: wait`) or `batch` (the default otherwise).
    /// A `batch` fit that has waited for a minute is served like the others.
    #[schema(example = "batch")]
    priority: Option<String>,
    /// For how many seconds it may be worked on, at most a day; then it fails as `timed-out`. Waiting for its turn does not count.
    #[schema(minimum = 1, maximum = 86_400, example = 60)]
    timeout_seconds: Option<u64>,
    /// Whether changes of the request are answered as well, on simulated devices: `true` for those with which the target takes one
    /// micro-step or, without one, twice the micro-batch fits, or the micro-batch that is wanted. They are the answer's `suggestions`.
    #[schema(value_type = Option<Value>, example = false)]
    suggest: Option<Value>,
}

/// The lengths that samples have, where they differ: one of `seq_len` and `image_size`, in the place of the model's own. The answer is
/// then the batch that is safe at all of them, and `lengths` of the result has a row for each.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Lengths)]
pub(super) struct LengthsSchema {
    /// A list such as `[128, 512]`, ranges such as `"32-512:8"` (every eighth), or a histogram, `"64:100,128:50"` or
    /// `{"64": 100, "128": 50}`: lengths with how many samples have them. At most 512 lengths.
    #[schema(value_type = Option<Value>, example = "64:100,128:50,512:3")]
    seq_len: Option<Value>,
    /// The same for images: `224`, or `"224x320"` for height and width.
    #[schema(value_type = Option<Value>, example = json!([160, 224, "224x320"]))]
    image_size: Option<Value>,
    /// To a multiple of what lengths are padded; 1 by default.
    #[schema(minimum = 1, example = 8)]
    multiple_of: Option<u64>,
    /// Into how many buckets lengths are put at most; by default 4.
    #[schema(minimum = 1, maximum = 64, example = 4)]
    buckets: Option<u64>,
}

/// A training whose steps are run one after the other, by simulation, with the batch that was found. The answer is then the batch
/// that goes through all of them without a retry and leaves headroom. Steps draw one of `lengths`, each as likely as samples
/// have it. For one process on a simulated card.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Soak)]
pub(super) struct SoakSchema {
    /// Optimizer steps; 1000 by default. With those of validation at most 100,000.
    #[schema(minimum = 1, maximum = 100_000, example = 1000)]
    steps: Option<u64>,
    /// Optimizer steps of an epoch; without it, all steps are one.
    #[schema(minimum = 1, maximum = 100_000, example = 250)]
    epoch: Option<u64>,
    /// Samples in the last batch of each epoch, where they are fewer.
    #[schema(minimum = 1, example = 5)]
    last_batch: Option<u64>,
    /// Samples of a batch when validating after each epoch.
    #[schema(minimum = 1, example = 64)]
    validation_batch: Option<u64>,
    /// Batches of each validation; 20 by default.
    #[schema(minimum = 1, maximum = 100_000, example = 20)]
    validation_steps: Option<u64>,
    /// Prompts that are completed at a time after each epoch, by transformers' `generate()` with a cache of keys and values.
    #[schema(minimum = 1, example = 8)]
    generation_batch: Option<u64>,
    /// Tokens of a prompt; 128 by default.
    #[schema(minimum = 1, example = 128)]
    generation_prompt: Option<u64>,
    /// Tokens that are generated; 64 by default.
    #[schema(minimum = 1, maximum = 256, example = 64)]
    generation_tokens: Option<u64>,
    /// How often after each epoch; once by default.
    #[schema(minimum = 1, maximum = 100_000, example = 1)]
    generation_times: Option<u64>,
    /// How keys and values are kept: `dynamic` (default), which grows by each token (`DynamicCache`), or `static`, with room for all
    /// of them (`StaticCache`, without `torch.compile`).
    #[schema(example = "static", pattern = "^(dynamic|static)$")]
    generation_cache: Option<String>,
    /// Whether tokens are drawn; the likeliest are taken by default.
    #[schema(example = true)]
    generation_sample: Option<bool>,
    /// What logits are divided by before a token is drawn; 1 by default.
    #[schema(minimum = 0.000_001, maximum = 1_000_000, example = 0.7)]
    generation_temperature: Option<f64>,
    /// Among how many of the likeliest tokens one is drawn, 0 for all; 50 by default.
    #[schema(minimum = 0, maximum = 16_777_216, example = 50)]
    generation_top_k: Option<u64>,
    /// Among how few tokens one is drawn that are so likely together, 1 for all; 1 by default.
    #[schema(minimum = 0, maximum = 1, example = 0.9)]
    generation_top_p: Option<f64>,
    /// Draws lengths in another order.
    #[schema(minimum = 0, example = 0)]
    seed: Option<u64>,
}

/// Text that is generated by transformers' `generate()`, a sample for each prompt: the answer is how many fit. With
/// `"mode": "inference"` on a simulated card.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Generation)]
pub(super) struct GenerationSchema {
    /// Tokens of a prompt; 128 by default.
    #[schema(minimum = 1, maximum = 16_777_216, example = 512)]
    prompt: Option<u64>,
    /// Tokens that are generated; 64 by default.
    #[schema(minimum = 1, maximum = 256, example = 128)]
    tokens: Option<u64>,
    /// How keys and values are kept: `dynamic` (default), which grows by each token (`DynamicCache`), or `static`, with room for all
    /// of them (`StaticCache`, without `torch.compile`).
    #[schema(example = "static", pattern = "^(dynamic|static)$")]
    cache: Option<String>,
    /// Whether tokens are drawn; the likeliest are taken by default.
    #[schema(example = true)]
    sample: Option<bool>,
    /// What logits are divided by before a token is drawn; 1 by default.
    #[schema(minimum = 0.000_001, maximum = 1_000_000, example = 0.7)]
    temperature: Option<f64>,
    /// Among how many of the likeliest tokens one is drawn, 0 for all; 50 by default.
    #[schema(minimum = 0, maximum = 16_777_216, example = 50)]
    top_k: Option<u64>,
    /// Among how few tokens one is drawn that are so likely together, 1 for all; 1 by default.
    #[schema(minimum = 0, maximum = 1, example = 0.9)]
    top_p: Option<f64>,
}

/// A model, described in exactly one way.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Model)]
#[expect(clippy::large_enum_variant, reason = "for its schema alone")]
pub(super) enum ModelSchema {
    /// A well-known model by name, with overrides: see `GET /v1/presets`.
    #[schema(title = "Preset")]
    Preset {
        #[schema(example = "resnet50")]
        preset: String,
        /// Height and width of the images: one number, or `[height, width]`.
        image_size: Option<Value>,
        #[schema(minimum = 1)]
        num_classes: Option<u64>,
        #[schema(minimum = 1)]
        in_channels: Option<u64>,
        /// Tokens of a sample; models of the Hugging Face hub also take the other members of `HuggingFace`.
        #[schema(minimum = 1)]
        seq_len: Option<u64>,
    },
    /// A list of layers.
    #[schema(title = "Layers")]
    Layers {
        /// Layers by PyTorch's names, such as
        /// `{"type": "conv2d", "name": "conv1", "out_channels": 64, "kernel_size": 3}`.
        layers: Vec<Value>,
        /// One sample, such as `{"shape": [3, 32, 32]}`; `"dtype": "int64"` for token ids.
        input: Value,
        /// `cross_entropy`.
        loss: Option<String>,
    },
    /// What `torch.export` serializes for the model with its loss.
    #[schema(title = "Exported")]
    Exported {
        /// The graph itself, an object; or the digest of one that was uploaded, such as
        /// `sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08`: see `PUT /v1/graphs/{digest}`.
        exported: ExportedSchema,
        /// Tokens of a sample, where the graph leaves open besides the batch how long samples are.
        #[schema(minimum = 1)]
        seq_len: Option<u64>,
    },
    /// A Hugging Face config, and what it leaves open.
    #[schema(title = "HuggingFace")]
    HuggingFace {
        /// The contents of its `config.json`; the class is the first of `architectures`.
        #[schema(value_type = Object)]
        hf: Value,
        /// Tokens of a sample, or samples or frames of sound.
        #[schema(minimum = 1)]
        seq_len: Option<u64>,
        /// Tokens of an answer, for models with an encoder and a decoder.
        #[schema(minimum = 1)]
        target_len: Option<u64>,
        /// Causal language models: into how many chunks the tokens of the loss are divided, each under a checkpoint, so that the
        /// logits of all tokens are never there at once.
        #[schema(minimum = 1, maximum = 256)]
        loss_chunks: Option<u64>,
        /// Height and width of images, where they are not the config's: one number, or `[height, width]`.
        image_size: Option<Value>,
        /// What parameters are loaded in: `fp32`, `bf16` or `fp16`; by default what the precision trains in, and under autocast the type of
        /// the config, as `from_pretrained` of transformers 5 does.
        #[schema(pattern = "^(fp32|bf16|fp16)$")]
        param_dtype: Option<String>,
        /// Low-rank adapters of PEFT, for causal language models: `r`, `lora_alpha`, `lora_dropout`, `use_rslora`, and
        /// `target_modules`, a list of names or `all-linear`; PEFT's defaults for what is missing.
        #[schema(value_type = Option<Object>, example = json!({"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}))]
        lora: Option<Value>,
        /// Parameters, or modules with all that is in them, that are not trained: `*` stands for anything but a dot,
        /// `**` for anything.
        frozen: Option<Vec<String>>,
        /// Whether texts are padded to the longest of their batch, so that attention has a mask.
        padded: Option<bool>,
        /// Which head a model of text has, of those that its family has; by default the class's own.
        #[schema(
            pattern = "^(causal_lm|masked_lm|sequence_classification|token_classification|question_answering)$"
        )]
        task: Option<String>,
        /// How many classes a classifier tells apart, where it is not the config's.
        #[schema(minimum = 1)]
        num_labels: Option<u64>,
    },
    /// Recordings of PyTorch's allocator at several batches, in the place of a model; they decide precision, optimizer and
    /// checkpointing.
    #[schema(title = "Recorded")]
    Recorded {
        /// 1 to 32 recordings: each as the digest of an upload, or all of them as text.
        recorded: Vec<String>,
        /// The batch of each recording, where it does not say it itself: memory snapshots.
        batches: Option<Vec<u64>>,
    },
}

/// A graph, or the digest of one.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ExportedGraph)]
pub(super) enum ExportedSchema {
    /// The JSON that `torch.export` serializes.
    #[schema(title = "Graph", value_type = Object)]
    Graph(Value),
    /// The digest of an upload: `sha256:` and 64 hexadecimal digits.
    #[schema(title = "Digest")]
    Digest(String),
}

/// How the model is trained. Precision, optimizer and checkpointing may be lists: every combination is
/// then a variant.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(title = "Training", as = Training)]
pub(super) struct TrainingSchema {
    /// `fp32` (default), `amp_fp16`, `amp_bf16`, `bf16` or `fp16`.
    #[schema(value_type = Option<Value>, example = "amp_bf16")]
    precision: Option<Value>,
    /// `sgd`, `sgd_momentum`, `adam` or `adamw` (default); `adamw_8bit` and `paged_adamw_8bit` of bitsandbytes,
    /// `adamw_bnb_8bit` as transformers' Trainer makes it, `adamw_8bit_torchao`; `adafactor` (`torch.optim`'s) or `adafactor_transformers`.
    #[schema(value_type = Option<Value>, example = "adamw")]
    optimizer: Option<Value>,
    /// `foreach` (default), `fused` or `for_loop`, for those optimizers that have it; `adafactor` is `for_loop` unless told otherwise.
    #[schema(example = "foreach", pattern = "^(foreach|fused|for_loop)$")]
    optimizer_impl: Option<String>,
    /// `none` (default), `per_block` or `{"modules": [globs]}`.
    #[schema(value_type = Option<Value>, example = "none")]
    checkpointing: Option<Value>,
    /// Micro-steps for each optimizer step; 1 by default.
    #[schema(minimum = 1, maximum = 65536)]
    accumulation: Option<u64>,
    /// `train` (default) or `inference`.
    #[schema(example = "train", pattern = "^(train|inference)$")]
    mode: Option<String>,
    /// The norm to which gradients are clipped before each step of the optimizer (`torch.nn.utils.clip_grad_norm_`).
    #[schema(exclusive_minimum = 0, example = 1.0)]
    clip_grad_norm: Option<f64>,
    parallel: Option<ParallelSchema>,
}

/// How several GPUs train together, one process each. Without it, more than one rank is DDP's.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Parallel)]
pub(super) struct ParallelSchema {
    /// `none` (one GPU; default), `ddp` (`DistributedDataParallel`), `zero1` (DDP with `ZeroRedundancyOptimizer`), `fsdp2`
    /// (`fully_shard`), or a list: then each makes a variant.
    #[schema(value_type = Option<Value>, example = "ddp")]
    strategy: Option<Value>,
    /// Ranks that train together; the same as the request's own `world_size`.
    #[schema(minimum = 1)]
    world_size: Option<u64>,
    /// Whether gradients are views of DDP's buckets; false by default.
    gradient_as_bucket_view: Option<bool>,
    /// Whether the graph is promised to be the same in every step; false by default.
    static_graph: Option<bool>,
    /// Whether parameters may get no gradient; by default as transformers' Trainer has it for models of that library under `ddp`
    /// (true, unless they checkpoint themselves), and false for others.
    find_unused_parameters: Option<bool>,
    /// Whether buffers are sent before each forward pass; true by default.
    broadcast_buffers: Option<bool>,
    /// How large buckets are, in MiB; by default 25, and 1 for the first.
    #[schema(minimum = 1)]
    bucket_cap_mb: Option<u64>,
    /// Whether every micro-step reduces gradients; by default the last of a step alone does (`no_sync`).
    sync_every_micro_step: Option<bool>,
    /// What gradients are compressed to before they are reduced: `fp16` or `bf16`.
    #[schema(example = "fp16", pattern = "^(fp16|bf16)$")]
    comm_hook: Option<String>,
    /// FSDP2: globs of the modules that are sharded each for itself, before the model as a whole; by default its repeated blocks.
    #[schema(example = json!(["model.layers.*"]))]
    units: Option<Vec<String>>,
    /// FSDP2: whether a unit lets go of its parameters after its forward pass; true by default. A list makes variants.
    #[schema(value_type = Option<Value>, example = true)]
    reshard_after_forward: Option<Value>,
    /// FSDP2: `MixedPrecisionPolicy`.
    mixed_precision: Option<MixedPrecisionSchema>,
    /// FSDP2: whether shards, their gradients and the optimizer's state are in the host's memory (`CPUOffloadPolicy`); false by default.
    cpu_offload: Option<bool>,
}

/// `MixedPrecisionPolicy` of `fully_shard`: each `fp32`, `bf16` or `fp16`. `training.precision` is then the type that parameters are
/// stored in.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MixedPrecision)]
#[expect(clippy::struct_field_names, reason = "they are PyTorch's")]
pub(super) struct MixedPrecisionSchema {
    /// What parameters are gathered in, and inputs of units are cast to.
    #[schema(example = "bf16", pattern = "^(fp32|bf16|fp16)$")]
    param_dtype: Option<String>,
    /// What gradients are reduced in.
    #[schema(example = "fp32", pattern = "^(fp32|bf16|fp16)$")]
    reduce_dtype: Option<String>,
    /// What the model's results are cast to.
    #[schema(example = "fp32", pattern = "^(fp32|bf16|fp16)$")]
    output_dtype: Option<String>,
}
