//! Rows of `training`.

use super::Heading::Training;
use super::{Kind, Member, Object, names};
use batchfit_step::shape::DType;
use batchfit_step::{CommHook, Mode, Optimizer, OptimizerImpl, Precision, Variant};

/// Largest bucket that is read, in MiB: more than any card has.
const LARGEST_BUCKET: u64 = 1 << 20;

/// `training`.
pub static TRAINING: Object = Object {
    what: "training",
    schema: "Training",
    doc: "How the model is trained. Precision, optimizer and checkpointing may be lists: every combination is\nthen a variant.",
    members: &[
        Member::new("precision", Kind::Words(names::<Precision>), "`fp32` (default), `amp_fp16` or `amp_bf16` (autocast), `bf16` or `fp16` (parameters in half precision).")
            .flag(Training, "precision", "TYPE,..", "fp32 (default), amp_fp16, amp_bf16, bf16 or fp16")
            .also("mixed_precision dtype torch_dtype autocast_dtype"),
        Member::new("optimizer", Kind::Words(names::<Optimizer>), "`sgd`, `sgd_momentum`, `adam` or `adamw` (default); `adamw_8bit` and `paged_adamw_8bit` of bitsandbytes,\n`adamw_bnb_8bit` as transformers' Trainer makes it, `adamw_8bit_torchao`; `adafactor` (`torch.optim`'s) or `adafactor_transformers`.")
            .trains().flag(Training, "optimizer", "NAME,..", "adamw (default), adam, sgd, sgd_momentum, adafactor, ..")
            .also("optim opt optimizer_name optimizer_type"),
        Member::word::<OptimizerImpl>("optimizer_impl", "optimizer implementation", "`foreach` (default), `fused` or `for_loop`, for those optimizers that have it; `adafactor` is `for_loop` unless told otherwise.").example("\"foreach\"")
            .trains().flag(Training, "optimizer-impl", "KIND", "foreach (default), fused or for_loop"),
        Member::new("checkpointing", Kind::Words(|| vec!["none", "per_block"]), "`none` (default), `per_block` or `{\"modules\": [\"layer*.*\"]}`: activation checkpointing.")
            .flag(Training, "checkpoint", "KIND,..", "What is recomputed: none (default), per_block or modules:GLOB+..")
            .also("gradient_checkpointing activation_checkpointing grad_checkpointing use_checkpoint checkpoint checkpoints remat recompute"),
        Member::whole("accumulation", 1, Variant::MOST_ACCUMULATION, "Micro-steps for each optimizer step (gradient accumulation); 1 by default.").example("4")
            .trains().flag(Training, "accumulation", "N", "Accumulation steps for each optimizer step; --target finds them")
            .also("gradient_accumulation_steps gradient_accumulation accumulate_grad_batches accumulation_steps grad_accumulation grad_accum grad_accum_steps grad_acc accum accum_steps accum_iter update_freq iters_to_accumulate"),
        Member::word::<Mode>("mode", "mode", "`train` (default) or `inference`.").example("\"train\"")
            .flag(Training, "mode", "MODE", "train (default) or inference"),
        Member::new("clip_grad_norm", Kind::Positive, "Clip gradients to this norm before each step of the optimizer (`torch.nn.utils.clip_grad_norm_`).").example("1.0")
            .trains().flag(Training, "clip-grad-norm", "NORM", "The norm to which gradients are clipped")
            .also("max_grad_norm gradient_clip_val gradient_clipping clip_grad clip_norm grad_clip"),
        Member::new("weight_decay", Kind::Number(0.0, 1e9), "The optimizer's `weight_decay`; by default its own. That of SGD and Adam copies the gradients unless they\nare `fused`.").example("1e-4")
            .trains().flag(Training, "weight-decay", "RATE", "The optimizer's weight_decay: SGD's and Adam's copies gradients").alias("wd").hidden()
            .also("wd weightdecay l2 l2_reg"),
        Member::new("label_smoothing", Kind::Number(0.0, 1.0), "`label_smoothing` of the loss, where it is `cross_entropy`. Models of transformers have it from code of the Trainer, which is\nnot simulated.").example("0.1")
            .trains().flag(Training, "label-smoothing", "SHARE", "cross_entropy's label_smoothing").hidden()
            .also("smoothing label_smooth label_smoothing_factor"),
        Member::new("parallel", Kind::Object(&PARALLEL), "").also("strategy distributed ddp fsdp"),
    ],
};

/// `training.parallel`.
pub static PARALLEL: Object = Object {
    what: "parallel",
    schema: "Parallel",
    doc: "How several GPUs train together, one process each. Without it, more than one rank is DDP's.",
    members: &[
        Member::new("strategy", Kind::Words(|| vec!["none", "ddp", "zero1", "fsdp2"]), "`none` (one GPU; default), `ddp` (`DistributedDataParallel`), `zero1` (DDP with `ZeroRedundancyOptimizer`), `fsdp2`\n(`fully_shard`), or a list: then each makes a variant.")
            .flag(Training, "parallel", "HOW,..", "How GPUs train together: none, ddp (default), zero1 or fsdp2"),
        Member::whole("world_size", 1, super::MOST_RANKS, "Ranks that train together; the same as the request's own `world_size`."),
        Member::new("gradient_as_bucket_view", Kind::Bool, "Whether gradients are views of DDP's buckets; false by default.").of("ddp"),
        Member::new("static_graph", Kind::Bool, "Whether the graph is promised to be the same in every step; false by default.").of("ddp"),
        // An answer names the flag where it matters; help has no line left.
        Member::new("find_unused_parameters", Kind::Bool, "Whether parameters may get no gradient; by default as transformers' Trainer has it for models of that library under `ddp`\n(true, unless they checkpoint themselves), and false for others.").of("ddp")
            .flag(Training, "find-unused-parameters", "BOOL", "DDP: whether parameters may get no gradient").hidden(),
        Member::new("broadcast_buffers", Kind::Bool, "Whether buffers are sent before each forward pass; true by default.").of("ddp"),
        Member::whole("bucket_cap_mb", 1, LARGEST_BUCKET, "How large buckets are, in MiB; by default 25, and 1 for the first.").of("ddp"),
        Member::new("sync_every_micro_step", Kind::Bool, "Whether every micro-step reduces gradients; by default the last of a step alone does (`no_sync`)."),
        Member::word::<CommHook>("comm_hook", "communication hook", "What gradients are compressed to before they are reduced: `fp16` or `bf16`.").example("\"fp16\"").of("ddp"),
        Member::new("units", Kind::Globs, "FSDP2: globs of the modules that are sharded each for itself, before the model as a whole; by default its repeated blocks.").example("[\"model.layers.*\"]").of("fsdp2")
            .flag(Training, "units", "GLOB+..", "FSDP2: modules that get a fully_shard of their own, GLOB+.."),
        Member::new("reshard_after_forward", Kind::Bools, "FSDP2: whether a unit lets go of its parameters after its forward pass; true by default. A list makes variants.").of("fsdp2")
            .flag(Training, "reshard", "BOOL,..", "FSDP2: reshard_after_forward: true, false or both").alias("reshard-after-forward"),
        Member::new("mixed_precision", Kind::Object(&MIXED_PRECISION), "FSDP2: `MixedPrecisionPolicy`.").of("fsdp2")
            .flag(Training, "mixed-precision", "TYPE,..", "FSDP2: types of parameters, reductions and results: bf16,fp32"),
        Member::new("cpu_offload", Kind::Bool, "FSDP2: whether shards, their gradients and the optimizer's state are in the host's memory (`CPUOffloadPolicy`); false by default.").of("fsdp2")
            .flag(Training, "cpu-offload", "", "FSDP2: keep shards and the optimizer's state in host memory"),
    ],
};

/// `training.parallel.mixed_precision`.
pub static MIXED_PRECISION: Object = Object {
    what: "mixed_precision",
    schema: "MixedPrecision",
    doc: "`MixedPrecisionPolicy` of `fully_shard`: each `fp32`, `bf16` or `fp16`. `training.precision` is then the type that parameters are\nstored in.",
    members: &[
        Member::word::<DType>("param_dtype", "type", "What parameters are gathered in, and inputs of units are cast to.").example("\"bf16\""),
        Member::word::<DType>("reduce_dtype", "type", "What gradients are reduced in.").example("\"fp32\""),
        Member::word::<DType>("output_dtype", "type", "What the model's results are cast to.").example("\"fp32\""),
    ],
};
