//! Values: precisions, optimizers and the like.

use serde_json::Value;

/// What a word of somebody else is in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum Word {
    /// This word.
    Is(&'static str),
    /// None, however much it looks like one.
    NotSupported,
}

use Word::{Is, NotSupported};

/// The words for one kind of value.
type Words = &'static [(&'static [&'static str], Word)];

/// Lightning's `16-mixed`, Hugging Face's `fp16`, PyTorch's `torch.float16`.
const PRECISIONS: Words = &[
    (
        &[
            "float32",
            "float",
            "full",
            "single",
            "32",
            "32_true",
            "fp32_true",
            "torch_float32",
            "no",
            "none",
            "false",
        ],
        Is("fp32"),
    ),
    (
        &[
            "16_mixed",
            "fp16_mixed",
            "amp",
            "mixed",
            "mixed_precision",
            "mixed_fp16",
            "mixed_float16",
            "autocast",
            "amp_float16",
            "fp16_amp",
            "true",
        ],
        Is("amp_fp16"),
    ),
    (
        &[
            "bf16_mixed",
            "mixed_bf16",
            "mixed_bfloat16",
            "amp_bfloat16",
            "bf16_amp",
        ],
        Is("amp_bf16"),
    ),
    (
        &[
            "float16",
            "half",
            "16",
            "16_true",
            "fp16_true",
            "torch_float16",
        ],
        Is("fp16"),
    ),
    (&["bfloat16", "bf16_true", "torch_bfloat16"], Is("bf16")),
    (
        &[
            "fp8", "int8", "int4", "nf4", "4bit", "8bit", "tf32", "fp64", "float64", "double",
        ],
        NotSupported,
    ),
];

/// Hugging Face's `optim`, and PyTorch's classes.
const OPTIMIZERS: Words = &[
    (
        &[
            "adam_w",
            "adamw_torch",
            "adamw_torch_fused",
            "adamw_hf",
            "torch_optim_adam_w",
            "torch_optim_adamw",
        ],
        Is("adamw"),
    ),
    (&["adam_torch", "torch_optim_adam"], Is("adam")),
    (&["sgd_torch", "torch_optim_sgd", "vanilla_sgd"], Is("sgd")),
    (
        &[
            "momentum",
            "nesterov",
            "sgdm",
            "sgd_nesterov",
            "momentum_sgd",
            "sgd_with_momentum",
        ],
        Is("sgd_momentum"),
    ),
    (
        &[
            "adamw8bit",
            "adam_w8bit",
            "bnb_optim_adam_w8bit",
            "bnb_optim_adamw8bit",
            "bitsandbytes_optim_adam_w8bit",
            "bitsandbytes_optim_adamw8bit",
        ],
        Is("adamw_8bit"),
    ),
    (
        &[
            "paged_adamw8bit",
            "paged_adam_w8bit",
            "paged_adamw_bnb_8bit",
            "bnb_optim_paged_adam_w8bit",
            "bitsandbytes_optim_paged_adam_w8bit",
        ],
        Is("paged_adamw_8bit"),
    ),
    (
        &[
            "adamw_torch_8bit",
            "torchao_adamw_8bit",
            "torchao_optim_adam_w8bit",
        ],
        Is("adamw_8bit_torchao"),
    ),
    (&["torch_optim_adafactor"], Is("adafactor")),
    (
        &[
            "paged_adamw_32bit",
            "paged_adamw",
            "adamw_apex_fused",
            "adamw_anyprecision",
            "adam_8bit",
            "adam8bit",
            "adagrad",
            "adadelta",
            "adamax",
            "nadam",
            "radam",
            "rmsprop",
            "rmsprop_torch",
            "lion",
            "lion_8bit",
            "lamb",
            "lars",
            "lbfgs",
            "muon",
            "shampoo",
            "soap",
        ],
        NotSupported,
    ),
];

const IMPLEMENTATIONS: Words = &[
    (&["fused_true", "true", "torch_fused"], Is("fused")),
    (&["default", "auto", "multi_tensor"], Is("foreach")),
    (
        &["single_tensor", "loop", "forloop", "false"],
        Is("for_loop"),
    ),
];

const CHECKPOINTINGS: Words = &[
    (
        &[
            "true",
            "full",
            "all",
            "on",
            "yes",
            "block",
            "blocks",
            "per_layer",
            "every_block",
            "gradient_checkpointing",
        ],
        Is("per_block"),
    ),
    (&["false", "off", "no", "disabled"], Is("none")),
];

const MODES: Words = &[
    (&["training", "fit"], Is("train")),
    (
        &[
            "eval",
            "evaluation",
            "evaluate",
            "test",
            "predict",
            "no_grad",
            "infer",
        ],
        Is("inference"),
    ),
];

const SEARCHES: Words = &[
    (&["simulated", "simulation", "default"], Is("auto")),
    (&["real", "gpu", "probed"], Is("probes")),
];

/// The words for a kind of value, and in which field those are.
const KINDS: [(&str, &str, Words); 6] = [
    ("precision", "precision", PRECISIONS),
    ("optimizer", "optimizer", OPTIMIZERS),
    (
        "optimizer implementation",
        "optimizer_impl",
        IMPLEMENTATIONS,
    ),
    ("checkpointing", "checkpointing", CHECKPOINTINGS),
    ("mode", "mode", MODES),
    ("search", "search", SEARCHES),
];

/// The word of a request for a normal spelling of somebody else's.
pub(super) fn of(what: &str, normal: &str) -> Option<Word> {
    let (_, _, words) = KINDS.iter().find(|(kind, ..)| *kind == what)?;
    let found = words.iter().find(|(others, _)| others.contains(&normal));
    found.map(|(_, word)| *word)
}

/// The value of a field in the words of a request, where it is in somebody else's.
pub(super) fn meant(field: &str, value: Option<&Value>) -> Option<Value> {
    let value = value?;
    let kind = KINDS.iter().find(|(_, known, _)| *known == field);
    let written = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match kind.and_then(|(what, ..)| of(what, &super::normal(&written))) {
        Some(Is(word)) => Some(Value::from(word)),
        Some(NotSupported) => None,
        None => Some(value.clone()),
    }
}

#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static [&'static str], Word)> {
    KINDS.into_iter().flat_map(|(what, _, words)| {
        words
            .iter()
            .map(move |(others, word)| (what, *others, *word))
    })
}
