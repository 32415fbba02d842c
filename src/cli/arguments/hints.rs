//! Flags of other tools, and what to write here instead. What stands in backticks works as it is: a test types it.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::model::preset;

/// Commands that ask a question.
const ASKING: [&str; 4] = ["fit", "probe", "soak", "program"];

/// What is typed, and what to do.
const HINTS: [(&[&str], &str); 17] = [
    (
        &["bf16", "amp-bf16", "use-bf16"],
        "write `--amp bf16` for autocast, or `--precision bf16` for weights in bfloat16",
    ),
    (
        &["fp16", "half", "use-fp16"],
        "write `--amp fp16` for autocast, or `--precision fp16` for weights in float16",
    ),
    (
        &["fp32", "tf32"],
        "float32 is what is asked about without a flag",
    ),
    (
        &["dtype", "torch-dtype"],
        "write `--precision bf16` for what weights are in, or `--amp bf16` for autocast",
    ),
    (
        &[
            "gradient-checkpointing",
            "activation-checkpointing",
            "checkpointing",
            "use-gradient-checkpointing",
        ],
        "write `--checkpoint per_block`",
    ),
    (
        &[
            "batch-size",
            "micro-batch",
            "micro-batch-size",
            "per-device-train-batch-size",
            "train-batch-size",
        ],
        "fit looks for the batch; `batchfit probe resnet18 --on t4 --batch 64` asks about one, and `--target 1024` is that of an optimizer step",
    ),
    (
        &[
            "gradient-accumulation-steps",
            "accumulate-grad-batches",
            "grad-accum",
        ],
        "write `--accumulation 8`, or `--target 1024` for the samples of an optimizer step",
    ),
    (
        &[
            "max-length",
            "max-seq-length",
            "max-seq-len",
            "model-max-length",
            "sequence-length",
            "seq-length",
            "context-length",
            "block-size",
            "cutoff-len",
        ],
        "write `--seq-len 1024`",
    ),
    (
        &["lora", "lora-r", "lora-rank", "use-peft", "peft"],
        "write `--with 'lora={\"r\": 16}'`, and PEFT's other words beside r",
    ),
    (
        &[
            "qlora",
            "load-in-4bit",
            "load-in-8bit",
            "use-4bit",
            "quantization",
        ],
        "no flag quantizes the base: measure QLoRA on the GPU, by `batchfit.tune` in the training script or with --recorded; LoRA over a base of \
      16 bits is `--precision bf16 --with 'lora={\"r\": 16}'`",
    ),
    (
        &["deepspeed", "zero", "zero-stage", "fsdp", "zero3", "zero2"],
        "write `--on 8xh100 --parallel fsdp2` for PyTorch's own sharding; DeepSpeed's is not simulated",
    ),
    (
        &["gpu", "card", "gpu-type", "gpu-name"],
        "write `--on rtx4090`; `batchfit cards` lists the cards",
    ),
    (
        &[
            "num-gpus",
            "gpus",
            "n-gpus",
            "num-processes",
            "nproc-per-node",
            "devices",
        ],
        "write `--on 8xh100`, or --world-size beside a device",
    ),
    (
        &["vram", "memory", "gpu-memory", "mem", "max-memory"],
        "write `--on rtx4090 --memory-limit 12GiB`",
    ),
    (&["optim"], "write `--optimizer adamw`"),
    (
        &[
            "max-grad-norm",
            "gradient-clip-val",
            "clip-grad",
            "grad-clip",
        ],
        "write `--clip-grad-norm 1`",
    ),
    (
        &[
            "compile",
            "torch-compile",
            "ema",
            "flash-attention",
            "attn-implementation",
            "liger-kernel",
            "use-liger-kernel",
        ],
        "that is not simulated by a flag: record the training (--recorded) or measure it by `batchfit.tune` in the script",
    ),
];

/// The same error with what to write instead, where that is known.
pub(super) fn hinted(error: clap::Error, typed: &[String]) -> clap::Error {
    let command = typed.get(1).map(String::as_str).unwrap_or_default();
    match say(&error, command, typed) {
        Some(problem) => clap::Error::raw(error.kind(), problem + "\n"),
        None => error,
    }
}

fn say(error: &clap::Error, command: &str, typed: &[String]) -> Option<String> {
    let is_given = |flag: &str| {
        let with_value = format!("{flag}=");
        typed
            .iter()
            .any(|it| it == flag || it.starts_with(&with_value))
    };
    match error.kind() {
        ErrorKind::UnknownArgument if ASKING.contains(&command) => {
            let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            let name = flag.split('=').next()?.trim_start_matches('-');
            let name = name.to_lowercase().replace('_', "-");
            let (_, hint) = HINTS.iter().find(|(names, _)| names.contains(&&*name))?;
            Some(format!("there is no {flag}; {hint}"))
        }
        ErrorKind::MissingRequiredArgument if command == "fit" && !is_given("--module") => {
            let flag = ["--loss", "--batch"]
                .into_iter()
                .find(|flag| is_given(flag))?;
            let instead = match flag {
                "--batch" => {
                    "whether a batch fits is asked by `batchfit probe resnet18 --on t4 --batch 64`"
                }
                _ => {
                    "a model by name has its own loss; of another one (DPO, GRPO, a reward, a distillation) export your module, whose forward \
                     returns the loss: batchfit export MODULE:BUILD --batch TENSORS --loss model -o model.json.gz"
                }
            };
            Some(format!(
                "{flag} goes with --module, a module of yours; {instead}"
            ))
        }
        ErrorKind::InvalidSubcommand => {
            let preset = preset(command)?.name;
            Some(format!(
                "{command:?} is no command; write `batchfit fit {preset}`"
            ))
        }
        _ => None,
    }
}
