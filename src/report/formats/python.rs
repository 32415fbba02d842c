//! What the snippets for trainers have in common: Python that makes `model` the one that the answer is about.

use std::fmt::Write as _;

use serde_json::Value;

use super::Answer;
use crate::model::{
    Checkpointing, Ddp, Optimizer, OptimizerImpl, Parallel, Precision, Variant, is_of_transformers,
    preset,
};
use crate::units::Bytes;

/// Momentum of the example: its value takes no memory.
pub(super) const MOMENTUM: &str = "momentum=0.9";

/// What FSDP2's units and checkpointed blocks are by default, as `repeated_blocks` of the compiler has it.
const REPEATED_BLOCKS: &str = r#"
def repeated_blocks(model):  # elements of lists that share their class with a sibling and have modules inside
    modules = dict(model.named_modules())
    kind = lambda name: (name.rpartition(".")[0], type(modules[name]))
    numbered = [name for name in modules if name.rpartition(".")[2].isdigit()]
    kinds = [kind(name) for name in numbered]
    blocks = [name for name in numbered if kinds.count(kind(name)) > 1 and any(modules[name].children())]
    return [name for name in blocks if not any(name.startswith(outer + ".") for outer in blocks)]

"#;

/// The first line of a snippet: what makes up the batch, and its memory.
pub(super) fn headline(answer: &Answer) -> String {
    let best = answer.best();
    let counted = |count: u64, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let samples = counted(best.micro_batch, "sample");
    let batch = if answer.is_training() {
        let steps = counted(best.accumulation_steps, "step");
        let gpus = counted(answer.world_size, "GPU");
        let global = best.global_batch;
        format!("{samples} x {steps} x {gpus} = {global} per optimizer step")
    } else {
        format!("{samples} at a time")
    };
    comment(&format!(
        "{} on {}: {batch}, {} of {} reserved",
        answer.model,
        answer.result.environment.gpu,
        Bytes(best.peak_reserved_bytes),
        Bytes(best.limit_bytes),
    ))
}

/// A line that Python does not read, whatever names are in it.
pub(super) fn comment(text: &str) -> String {
    let line = |c: char| if c.is_control() { ' ' } else { c };
    format!("# {}\n", text.chars().map(line).collect::<String>())
}

/// How Python writes a value of JSON.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        other => other.to_string(),
    }
}

/// How Python makes the optimizer of these parameters; `class` and arguments apart for who makes it otherwise.
pub(super) fn optimizer(variant: &Variant, model: &str) -> String {
    let (class, arguments) = class_of(variant);
    format!("{class}({model}.parameters(), {arguments})")
}

pub(super) fn class_of(variant: &Variant) -> (&'static str, String) {
    let (class, own) = match variant.optimizer {
        Optimizer::Sgd => ("torch.optim.SGD", ""),
        Optimizer::SgdMomentum => ("torch.optim.SGD", MOMENTUM),
        Optimizer::Adam => ("torch.optim.Adam", ""),
        Optimizer::Adamw => ("torch.optim.AdamW", ""),
        Optimizer::Adamw8bit => ("bitsandbytes.optim.AdamW8bit", ""),
        Optimizer::PagedAdamw8bit => ("bitsandbytes.optim.PagedAdamW8bit", ""),
        Optimizer::Adamw8bitTorchao => ("torchao.optim.AdamW8bit", ""),
        Optimizer::Adafactor => ("torch.optim.Adafactor", ""),
        Optimizer::AdafactorTransformers => (
            "transformers.optimization.Adafactor",
            "scale_parameter=False, relative_step=False",
        ),
    };
    let implementation = match variant.optimizer_impl {
        usual if usual == variant.optimizer.implementations()[0] => "",
        OptimizerImpl::Foreach => "foreach=True",
        OptimizerImpl::Fused => "fused=True",
        OptimizerImpl::ForLoop => "foreach=False",
    };
    let all = ["lr=LEARNING_RATE", own, implementation];
    let given: Vec<&str> = all.into_iter().filter(|it| !it.is_empty()).collect();
    (class, given.join(", "))
}

/// Whether the model is one of transformers', which checkpoints its own blocks.
pub(super) fn is_of_transformers_lib(answer: &Answer) -> bool {
    let model = &answer.request["model"];
    model.get("hf").is_some() || model["preset"].as_str().is_some_and(is_of_transformers)
}

/// How many tokens or pixels samples have: of several lengths the longest, and of none the preset's own.
fn size(answer: &Answer, name: &str) -> Option<Value> {
    let longest = answer.result.lengths.as_ref().and_then(|table| {
        let rows = table
            .rows
            .iter()
            .filter(|_| answer.request["lengths"].get(name).is_some());
        rows.map(|row| row.length.to_string()).next_back()
    });
    let model = &answer.request["model"];
    let own = || {
        let preset = preset(model["preset"].as_str()?)?;
        let own = preset.overrides.iter().find(|it| it.name == name)?;
        own.default.map(Value::from)
    };
    longest
        .map(|text| {
            text.parse::<u64>()
                .map_or_else(|_| Value::from(text), Value::from)
        })
        .or_else(|| model.get(name).filter(|value| !value.is_null()).cloned())
        .or_else(own)
}

/// What is done before anything is trained: the setting of the allocator, the length of samples, and what becomes of `model`. With `casts`
/// half precision is the trainer's own word, and with `checkpoints` checkpointing of blocks is.
pub(super) fn prepared(answer: &Answer, casts: bool, checkpoints: bool) -> Result<String, String> {
    let (variant, model) = (answer.variant(), &answer.request["model"]);
    let has = |name: &str| model.get(name).filter(|value| !value.is_null());
    if let Some(chunks) = has("loss_chunks") {
        return Err(format!(
            "the answer computes the loss in {chunks} chunks, for which no trainer has a word: write a loop with cross_entropy \
             over hidden_states.chunk({chunks}), or ask without loss_chunks"
        ));
    }
    if !answer.request["generation"].is_null() {
        return Err(
            "the answer is for generate(), which these formats do not call: call model.generate() yourself, or take \
             --format json"
                .to_owned(),
        );
    }
    let mut text = String::new();
    if let Some(settings) = answer.request["allocator"]
        .as_str()
        .filter(|it| !it.is_empty())
    {
        let settings = Value::from(settings);
        let _ = writeln!(
            text,
            "import os\n\nos.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = {settings}  # before torch is imported"
        );
    }
    text += "import torch\n\n";
    if answer.is_training() {
        text += "LEARNING_RATE = 1e-4  # yours: it takes no memory\n";
    }
    for (name, constant, what) in [
        (
            "seq_len",
            "MAX_LENGTH",
            "tokens of the longest sample: tokenizer(..., truncation=True, max_length=MAX_LENGTH)",
        ),
        (
            "target_len",
            "MAX_TARGET_LENGTH",
            "tokens of the longest target",
        ),
        (
            "image_size",
            "IMAGE_SIZE",
            "pixels of each side of an image",
        ),
    ] {
        if let Some(size) = size(answer, name) {
            let _ = writeln!(text, "{constant} = {}  # {what}", literal(&size));
        }
    }
    if variant.recorded {
        return Ok(text + &comment("the rest is as it was recorded"));
    }
    let loaded = match (
        has("param_dtype").and_then(Value::as_str),
        variant.precision,
    ) {
        (Some("bf16"), _) => Some("torch.bfloat16"),
        (Some("fp16"), _) => Some("torch.float16"),
        (None, Precision::Bf16) if casts => Some("torch.bfloat16"),
        (None, Precision::Fp16) if casts => Some("torch.float16"),
        _ => None,
    };
    if let Some(dtype) = loaded {
        let _ = writeln!(text, "model = model.to({dtype})");
    }
    if let Some(frozen) = has("frozen").and_then(Value::as_array) {
        let patterns: Vec<&str> = frozen.iter().filter_map(Value::as_str).collect();
        let _ = writeln!(
            text,
            "import re\n\nfor name, parameter in model.named_parameters():\n    if re.fullmatch({}, name):\n        \
             parameter.requires_grad_(False)",
            pattern(&patterns, "(\\..*)?")
        );
    }
    if let Some(lora) = has("lora").and_then(Value::as_object) {
        let arguments = lora
            .iter()
            .map(|(name, value)| format!("{name}={}", literal(value)));
        let arguments: Vec<String> = arguments
            .chain(["task_type=\"CAUSAL_LM\"".to_owned()])
            .collect();
        text += "from peft import LoraConfig, get_peft_model\n\n";
        text += &call("adapters = LoraConfig", &arguments);
        text += "model = get_peft_model(model, adapters)\n";
    }
    match &variant.checkpointing {
        Checkpointing::None => return Ok(text),
        Checkpointing::PerBlock if checkpoints => return Ok(text),
        Checkpointing::PerBlock => {
            text += REPEATED_BLOCKS;
            text += "blocks = repeated_blocks(model)\n";
        }
        Checkpointing::Modules(globs) => text += &matching("blocks", globs),
    }
    text += "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing\n\n";
    text += "checkpointed = [model.get_submodule(name) for name in blocks]\n";
    text += "apply_activation_checkpointing(model, check_fn=lambda module: any(module is block for block in checkpointed))\n";
    Ok(text)
}

/// Lines that list the modules that match.
fn matching(list: &str, globs: &[String]) -> String {
    let globs: Vec<&str> = globs.iter().map(String::as_str).collect();
    let pattern = pattern(&globs, "");
    format!(
        "import re\n\n{list} = [name for name, _ in model.named_modules() if re.fullmatch({pattern}, name)]\n"
    )
}

/// Globs as a regular expression of Python, and what may follow: `*` is anything but a dot, `**` anything.
fn pattern(globs: &[&str], after: &str) -> String {
    let one = |glob: &&str| {
        let mut out = String::new();
        let mut rest = glob.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '*' if rest.next_if_eq(&'*').is_some() => {
                    while rest.next_if_eq(&'*').is_some() {}
                    out += ".*";
                }
                '*' => out += "[^.]*",
                '?' => out += "[^.]",
                c if c.is_alphanumeric() || c == '_' => out.push(c),
                c => out.extend(['\\', c]),
            }
        }
        out
    };
    let all: Vec<String> = globs.iter().map(one).collect();
    Value::from(format!("({}){after}", all.join("|"))).to_string()
}

/// The lines of plain PyTorch that shard the model, and make its optimizer.
pub(super) fn sharded(variant: &Variant) -> String {
    let made = optimizer(variant, "model");
    match &variant.parallel {
        Parallel::None => format!("model = model.cuda()\noptimizer = {made}\n"),
        Parallel::Ddp(ddp) => format!("{}optimizer = {made}\n", wrapped(ddp)),
        Parallel::Zero1(ddp) => {
            let (class, arguments) = class_of(variant);
            format!(
                "{}from torch.distributed.optim import ZeroRedundancyOptimizer\n\noptimizer = \
                 ZeroRedundancyOptimizer(model.parameters(), optimizer_class={class}, {arguments})\n",
                wrapped(ddp)
            )
        }
        Parallel::Fsdp2(sharded) => {
            let mut text = match &sharded.units {
                // Checkpointing of blocks has the function already.
                None if variant.checkpointing == Checkpointing::PerBlock => {
                    "units = repeated_blocks(model)\n".to_owned()
                }
                None => format!("{REPEATED_BLOCKS}units = repeated_blocks(model)\n"),
                Some(globs) => matching("units", globs),
            };
            text += "from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard\n\n";
            let policy = &sharded.mixed_precision;
            let types = [
                ("param_dtype", policy.param_dtype),
                ("reduce_dtype", policy.reduce_dtype),
                ("output_dtype", policy.output_dtype),
            ];
            let types = types
                .into_iter()
                .filter_map(|(name, dtype)| Some(format!("{name}=torch.{}", torch_name(dtype?))));
            let types: Vec<String> = types.collect();
            let mut options = vec![format!(
                "\"mp_policy\": MixedPrecisionPolicy({})",
                types.join(", ")
            )];
            if sharded.cpu_offload {
                options.push("\"offload_policy\": CPUOffloadPolicy()".to_owned());
            }
            let reshard = literal(&Value::from(sharded.reshard_after_forward));
            let _ = write!(
                text,
                "policy = {{{}}}\nfor name in units:\n    fully_shard(model.get_submodule(name), reshard_after_forward={reshard}, \
                 **policy)\nfully_shard(model, reshard_after_forward={reshard}, **policy)\noptimizer = {made}\n",
                options.join(", ")
            );
            text
        }
    }
}

fn torch_name(dtype: crate::shape::DType) -> &'static str {
    use crate::shape::DType;
    match dtype {
        DType::BFloat16 => "bfloat16",
        DType::Float16 => "float16",
        _ => "float32",
    }
}

/// What DDP is told besides its defaults, as arguments.
pub(super) fn ddp_arguments(ddp: &Ddp) -> Vec<String> {
    let mut arguments = vec![format!(
        "find_unused_parameters={}",
        literal(&Value::from(ddp.find_unused_parameters))
    )];
    let others = [
        (!ddp.broadcast_buffers).then(|| "broadcast_buffers=False".to_owned()),
        (ddp.gradient_as_bucket_view).then(|| "gradient_as_bucket_view=True".to_owned()),
        ddp.static_graph.then(|| "static_graph=True".to_owned()),
        ddp.bucket_cap_mb.map(|mib| format!("bucket_cap_mb={mib}")),
    ];
    arguments.extend(others.into_iter().flatten());
    arguments
}

fn wrapped(ddp: &Ddp) -> String {
    let mut text = format!(
        "model = torch.nn.parallel.DistributedDataParallel(model.cuda(), {})\n",
        ddp_arguments(ddp).join(", ")
    );
    if let Some(hook) = ddp.comm_hook {
        let kind = match hook {
            crate::model::CommHook::Fp16 => "fp16",
            crate::model::CommHook::Bf16 => "bf16",
        };
        let _ = writeln!(
            text,
            "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n\nmodel.register_comm_hook(None, \
             default_hooks.{kind}_compress_hook)"
        );
    }
    text
}

/// What a trainer has no words for, as far as it goes beyond DDP of `known` arguments.
pub(super) fn beyond(answer: &Answer, format: &str, known: &[&str]) -> Result<(), String> {
    let variant = answer.variant();
    let refuse = |what: &str, line: &str| {
        Err(format!(
            "{format} has no word for {what}, on which the answer depends: it takes {line}; `--format python` writes all of it in \
             plain PyTorch"
        ))
    };
    match &variant.parallel {
        _ if variant.recorded => Ok(()),
        Parallel::None => Ok(()),
        Parallel::Fsdp2(_) => refuse(
            "FSDP2 of these units and types",
            "`fully_shard(model.get_submodule(name))` for each unit, then for the model",
        ),
        Parallel::Zero1(_) => refuse(
            "ZeRO-1",
            "`ZeroRedundancyOptimizer(model.parameters(), optimizer_class=...)`",
        ),
        Parallel::Ddp(ddp) => {
            if ddp.comm_hook.is_some() {
                return refuse("DDP's comm_hook", "`model.register_comm_hook(None, hook)`");
            }
            if ddp.sync_every_micro_step {
                return refuse("sync_every_micro_step", "a loop without `model.no_sync()`");
            }
            let arguments = ddp_arguments(ddp);
            let mut names = arguments
                .iter()
                .filter_map(|it| Some((it.split_once('=')?.0, it)));
            match names.find(|(name, _)| !known.contains(name)) {
                Some((name, argument)) => refuse(
                    name,
                    &format!("`DistributedDataParallel(model, {argument})`"),
                ),
                None => Ok(()),
            }
        }
    }
}

/// The norm to which gradients are clipped.
pub(super) fn clip(variant: &Variant) -> Option<f64> {
    variant.clip_grad_norm.map(f64::from)
}

/// Lines that import what a dotted name is in, unless it is torch's.
pub(super) fn import_of(name: &str) -> String {
    match name.rsplit_once('.') {
        Some((module, _)) if !module.starts_with("torch.") => format!("import {module}\n"),
        _ => String::new(),
    }
}

/// A call with an argument a line.
pub(super) fn call(function: &str, arguments: &[String]) -> String {
    format!("{function}(\n    {},\n)\n", arguments.join(",\n    "))
}
