//! What the snippets for trainers have in common: Python.

use super::Answer;
use crate::model::{Checkpointing, Optimizer, OptimizerImpl, Precision, Variant};
use crate::units::Bytes;

/// Momentum of the example: its value takes no memory.
pub(super) const MOMENTUM: &str = "momentum=0.9";

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

/// How Python makes the optimizer.
pub(super) fn optimizer(variant: &Variant, model: &str) -> String {
    let (class, own) = match variant.optimizer {
        Optimizer::Sgd => ("torch.optim.SGD", ""),
        Optimizer::SgdMomentum => ("torch.optim.SGD", MOMENTUM),
        Optimizer::Adam => ("torch.optim.Adam", ""),
        Optimizer::Adamw => ("torch.optim.AdamW", ""),
        Optimizer::Adamw8bit | Optimizer::AdamwBnb8bit => ("bitsandbytes.optim.AdamW8bit", ""),
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
    let parameters = format!("{model}.parameters()");
    let all = [&*parameters, "lr=LEARNING_RATE", own, implementation];
    let given: Vec<&str> = all
        .into_iter()
        .filter(|argument| !argument.is_empty())
        .collect();
    format!("{class}({})", given.join(", "))
}

/// What has to be done to the model itself, where its parameters are of half precision.
pub(super) fn half_parameters(variant: &Variant) -> Option<String> {
    let dtype = match variant.precision {
        Precision::Bf16 => "torch.bfloat16",
        Precision::Fp16 => "torch.float16",
        Precision::Fp32 | Precision::AmpFp16 | Precision::AmpBf16 => return None,
    };
    Some(comment(&format!(
        "the model itself in half precision: from_pretrained(..., dtype={dtype}) or model.to(dtype={dtype})"
    )))
}

/// What has to be done to the model itself, where activations are computed again and the trainer has no word for it.
pub(super) fn checkpointed(variant: &Variant, per_block: &str) -> Option<String> {
    match &variant.checkpointing {
        Checkpointing::None => None,
        Checkpointing::PerBlock => Some(comment(per_block)),
        Checkpointing::Modules(globs) => Some(comment(&format!(
            "torch.utils.checkpoint.checkpoint(..., use_reentrant=False) around {}",
            globs.join(", ")
        ))),
    }
}

/// A call with an argument a line.
pub(super) fn call(function: &str, arguments: &[String]) -> String {
    format!("{function}(\n    {},\n)\n", arguments.join(",\n    "))
}
