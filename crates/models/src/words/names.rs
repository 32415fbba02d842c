//! Names of fields.

/// An object of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Top,
    Training,
    Model,
}

use Place::{Model, Top, Training};

impl Place {
    pub(super) const ALL: [Place; 3] = [Top, Training, Model];

    /// The object at a JSON pointer.
    pub(super) fn at(pointer: &str) -> Option<Place> {
        match pointer {
            "" => Some(Top),
            "/training" => Some(Training),
            "/model" => Some(Model),
            _ => None,
        }
    }

    /// What may be in it; of a model, what makes sense in several ways of describing one.
    pub(super) fn fields(self) -> impl Iterator<Item = &'static str> {
        match self {
            Top => REQUEST_FIELDS,
            Training => TRAINING_FIELDS,
            Model => MODEL_FIELDS,
        }
        .iter()
        .copied()
    }

    /// Where a field belongs that was found elsewhere.
    pub(super) fn wrapping(self, field: &str) -> String {
        match self {
            Top => format!("it belongs at the top of the request: {{{field}, ...}}"),
            Training => format!("it belongs in `training`: {{\"training\": {{{field}}}}}"),
            Model => format!("it belongs in `model`: {{\"model\": {{{field}, ...}}}}"),
        }
    }
}

/// The fields of a request.
pub const REQUEST_FIELDS: &[&str] = &[
    "model",
    "lengths",
    "training",
    "device",
    "memory_limit",
    "headroom",
    "host_memory",
    "target_batch",
    "world_size",
    "allocator",
    "search",
    "compare",
    "objective",
    "unknown_ops",
    "chosen_percent",
    "generation",
    "soak",
    "priority",
    "timeout_seconds",
    "suggest",
];

/// The fields of `training`.
pub const TRAINING_FIELDS: &[&str] = &[
    "precision",
    "optimizer",
    "optimizer_impl",
    "checkpointing",
    "accumulation",
    "mode",
    "clip_grad_norm",
    "parallel",
];

const MODEL_FIELDS: &[&str] = &[
    "preset",
    "layers",
    "exported",
    "hf",
    "seq_len",
    "target_len",
    "loss_chunks",
    "param_dtype",
    "lora",
    "frozen",
    "image_size",
    "padded",
    "task",
    "num_classes",
    "in_channels",
];

/// What a word of somebody else says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Synonym {
    /// The same as this field.
    Field(Place, &'static str),
    /// A switch: one field where it is on, another where it is off.
    Switch(Place, &'static str, &'static str),
    /// Nothing that a request says.
    Advice(&'static str),
}

use Synonym::{Advice, Field, Switch};

const MICRO_BATCH: Synonym = Advice(
    "batchfit finds the micro-batch; leave it out, and give the samples of an optimizer step as `target_batch`",
);
const NO_MEMORY: Synonym = Advice("it changes no memory, so leave it out");
const NOT_YET: Synonym = Advice("batchfit does not simulate it");

/// Every word once; in small letters, with underscores.
pub(super) const NAMES: &[(&[&str], Synonym)] = &[
    // Hugging Face's `gradient_checkpointing`, Lightning's strategies, JAX's remat.
    (
        &[
            "gradient_checkpointing",
            "activation_checkpointing",
            "grad_checkpointing",
            "use_checkpoint",
            "checkpoint",
            "checkpoints",
            "remat",
            "recompute",
        ],
        Field(Training, "checkpointing"),
    ),
    (
        &[
            "gradient_accumulation_steps",
            "gradient_accumulation",
            "accumulate_grad_batches",
            "accumulation_steps",
            "grad_accumulation",
            "grad_accum",
            "grad_accum_steps",
        ],
        Field(Training, "accumulation"),
    ),
    (
        &["optim", "opt", "optimizer_name", "optimizer_type"],
        Field(Training, "optimizer"),
    ),
    (
        &[
            "max_grad_norm",
            "gradient_clip_val",
            "gradient_clipping",
            "clip_grad",
            "clip_norm",
            "grad_clip",
        ],
        Field(Training, "clip_grad_norm"),
    ),
    (
        &[
            "strategy",
            "distributed",
            "ddp",
            "fsdp",
            "deepspeed",
            "zero_stage",
        ],
        Field(Training, "parallel"),
    ),
    (
        &["mixed_precision", "dtype", "torch_dtype", "autocast_dtype"],
        Field(Training, "precision"),
    ),
    (
        &["amp", "autocast", "use_amp", "fp16", "half"],
        Switch(
            Training,
            "\"precision\": \"amp_fp16\"",
            "\"precision\": \"fp32\"",
        ),
    ),
    (
        &["bf16", "bfloat16"],
        Switch(
            Training,
            "\"precision\": \"amp_bf16\"",
            "\"precision\": \"fp32\"",
        ),
    ),
    (
        &["fused"],
        Switch(
            Training,
            "\"optimizer_impl\": \"fused\"",
            "\"optimizer_impl\": \"foreach\"",
        ),
    ),
    (
        &["foreach"],
        Switch(
            Training,
            "\"optimizer_impl\": \"foreach\"",
            "\"optimizer_impl\": \"for_loop\"",
        ),
    ),
    (
        &["eval", "inference", "no_grad"],
        Switch(Training, "\"mode\": \"inference\"", "\"mode\": \"train\""),
    ),
    (
        &["momentum"],
        Switch(
            Training,
            "\"optimizer\": \"sgd_momentum\"",
            "\"optimizer\": \"sgd\"",
        ),
    ),
    (
        &[
            "batch_size",
            "batch",
            "target",
            "global_batch",
            "global_batch_size",
            "total_batch_size",
            "effective_batch_size",
            "target_batch_size",
            "train_batch_size",
        ],
        Field(Top, "target_batch"),
    ),
    (
        &[
            "per_device_train_batch_size",
            "per_device_batch_size",
            "per_gpu_batch_size",
            "train_micro_batch_size_per_gpu",
            "micro_batch",
            "micro_batch_size",
            "max_batch",
            "max_batch_size",
        ],
        MICRO_BATCH,
    ),
    (
        &[
            "gpu",
            "card",
            "gpu_name",
            "gpu_type",
            "device_name",
            "accelerator",
            "on",
        ],
        Field(Top, "device"),
    ),
    (
        &[
            "memory",
            "mem",
            "vram",
            "gpu_memory",
            "max_memory",
            "memory_size",
            "memory_fraction",
            "per_process_memory_fraction",
        ],
        Field(Top, "memory_limit"),
    ),
    (
        &[
            "gpus",
            "num_gpus",
            "n_gpus",
            "ngpus",
            "num_devices",
            "nproc_per_node",
            "num_processes",
            "ranks",
        ],
        Field(Top, "world_size"),
    ),
    (
        &[
            "pytorch_cuda_alloc_conf",
            "pytorch_alloc_conf",
            "alloc_conf",
            "allocator_settings",
        ],
        Field(Top, "allocator"),
    ),
    (
        &[
            "name",
            "model_name",
            "arch",
            "architecture",
            "model_name_or_path",
            "pretrained_model_name_or_path",
        ],
        Field(Model, "preset"),
    ),
    (&["config", "hf_config", "huggingface"], Field(Model, "hf")),
    (
        &["graph", "exported_program", "exported_graph"],
        Field(Model, "exported"),
    ),
    (
        &[
            "seq_length",
            "seqlen",
            "sequence_length",
            "max_length",
            "max_seq_len",
            "max_seq_length",
            "context_length",
            "block_size",
        ],
        Field(Model, "seq_len"),
    ),
    (
        &["img_size", "input_size", "resolution", "crop_size"],
        Field(Model, "image_size"),
    ),
    (
        &["classes", "n_classes", "num_labels"],
        Field(Model, "num_classes"),
    ),
    (
        &["channels", "in_chans", "input_channels", "num_channels"],
        Field(Model, "in_channels"),
    ),
    (
        &[
            "lr",
            "learning_rate",
            "weight_decay",
            "betas",
            "eps",
            "epochs",
            "num_train_epochs",
            "max_epochs",
            "max_steps",
            "warmup_steps",
            "warmup_ratio",
            "lr_scheduler_type",
            "seed",
            "num_workers",
            "dataloader_num_workers",
            "label_smoothing_factor",
        ],
        NO_MEMORY,
    ),
    (&["tensor_parallel_size", "pipeline_parallel_size"], NOT_YET),
];
