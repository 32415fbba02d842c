//! Names of fields, beside those that are other words for one member: its row has them.

use crate::members::{MODEL, Member, REQUEST, TRAINING};

/// An object of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestObject {
    Top,
    Training,
    Model,
}

use RequestObject::{Model, Top, Training};

impl RequestObject {
    pub(super) const ALL: [RequestObject; 3] = [Top, Training, Model];

    /// The object at a JSON pointer.
    pub(super) fn at(pointer: &str) -> Option<RequestObject> {
        match pointer {
            "" => Some(Top),
            "/training" => Some(Training),
            "/model" => Some(Model),
            _ => None,
        }
    }

    /// The rows of what may be in it.
    pub(super) fn members(self) -> &'static [Member] {
        match self {
            Top => REQUEST.members,
            Training => TRAINING.members,
            Model => MODEL.members,
        }
    }

    /// The names of what may be in it.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        self.members().iter().map(|member| member.name)
    }

    /// The object and the member that others call so.
    pub(super) fn of_synonym(word: &str) -> Option<(RequestObject, &'static str)> {
        RequestObject::ALL.into_iter().find_map(|place| {
            let calls_it_so = |member: &&Member| member.synonyms().any(|known| known == word);
            let member = place.members().iter().find(calls_it_so)?;
            Some((place, member.name))
        })
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

/// What another library's word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Synonym {
    /// A switch: one field where it is on, another where it is off.
    Switch(RequestObject, &'static str, &'static str),
    /// Nothing that a request says.
    Advice(&'static str),
}

use Synonym::{Advice, Switch};

const MICRO_BATCH: Synonym = Advice(
    "batchfit finds the micro-batch; leave it out, and give the samples of an optimizer step as `target_batch`",
);
const NO_MEMORY: Synonym = Advice("it changes no memory, so leave it out");
const NOT_YET: Synonym = Advice("batchfit does not simulate it");

/// Every word once; in small letters, with underscores, and blanks between them.
pub(super) const NAMES: &[(&str, Synonym)] = &[
    (
        "amp autocast use_amp fp16 half",
        Switch(
            Training,
            "\"precision\": \"amp_fp16\"",
            "\"precision\": \"fp32\"",
        ),
    ),
    (
        "bf16 bfloat16",
        Switch(
            Training,
            "\"precision\": \"amp_bf16\"",
            "\"precision\": \"fp32\"",
        ),
    ),
    (
        "fused",
        Switch(
            Training,
            "\"optimizer_impl\": \"fused\"",
            "\"optimizer_impl\": \"foreach\"",
        ),
    ),
    (
        "foreach",
        Switch(
            Training,
            "\"optimizer_impl\": \"foreach\"",
            "\"optimizer_impl\": \"for_loop\"",
        ),
    ),
    (
        "eval inference no_grad",
        Switch(Training, "\"mode\": \"inference\"", "\"mode\": \"train\""),
    ),
    (
        "momentum",
        Switch(
            Training,
            "\"optimizer\": \"sgd_momentum\"",
            "\"optimizer\": \"sgd\"",
        ),
    ),
    (
        "per_device_train_batch_size per_device_batch_size per_gpu_batch_size train_micro_batch_size_per_gpu micro_batch \
         micro_batch_size max_batch max_batch_size",
        MICRO_BATCH,
    ),
    (
        "lr learning_rate betas eps epochs num_train_epochs max_epochs max_steps warmup_steps warmup_ratio \
         lr_scheduler_type seed num_workers dataloader_num_workers",
        NO_MEMORY,
    ),
    (
        "reference ref_model reference_model reward_model teacher teacher_model discriminator ema",
        Advice(
            "a second network is not simulated; `batchfit run --on CARD -- python train.py` runs your own script with both on a virtual GPU",
        ),
    ),
    (
        "aux_loss aux_classifier aux_logits auxiliary_head",
        Advice(
            "the auxiliary head is left out of models by name; `batchfit fit my.py:build` takes a model of yours with both heads and their loss",
        ),
    ),
    (
        "sync_batchnorm sync_bn sync_batch_norm",
        Advice(
            "batch normalization over all ranks is not simulated; `batchfit run --on CARD --gpus N -- python train.py` runs your own script with it",
        ),
    ),
    (
        "validation_keep_logits keep_logits eval_accumulation_steps",
        Advice(
            "logits that the Trainer keeps on the GPU over a whole validation are not simulated: set its `eval_accumulation_steps`",
        ),
    ),
    ("tensor_parallel_size pipeline_parallel_size", NOT_YET),
];
