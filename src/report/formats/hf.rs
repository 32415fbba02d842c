//! For Hugging Face's Trainer: the names are those of transformers 5.17's `TrainingArguments`.

use super::Answer;
use super::python::{call, checkpointed, comment, half_parameters, headline, optimizer};
use crate::model::{Checkpointing, Optimizer, OptimizerImpl, Precision, Variant};

/// `TrainingArguments` as Python.
pub fn hf(answer: &Answer) -> String {
    let (best, variant) = (answer.best(), answer.variant());
    let mut text = headline(answer);
    text.extend(half_parameters(&variant));
    let mut arguments = vec!["output_dir=\"output\"".to_owned()];
    if answer.is_training() {
        arguments.push(format!("per_device_train_batch_size={}", best.micro_batch));
        arguments.push(format!(
            "gradient_accumulation_steps={}",
            best.accumulation_steps
        ));
        arguments.extend(precision(&variant).map(str::to_owned));
        if let Some(optim) = optim(&variant) {
            arguments.extend(optim.into_iter().map(str::to_owned));
        } else {
            let made = optimizer(&variant, "model");
            text += &comment(&format!(
                "Trainer has no name for this optimizer: Trainer(..., optimizers=({made}, None))"
            ));
        }
        match variant.checkpointing {
            Checkpointing::None => {}
            Checkpointing::PerBlock => arguments.push("gradient_checkpointing=True".to_owned()),
            Checkpointing::Modules(_) => text.extend(checkpointed(&variant, "")),
        }
    } else {
        arguments.push(format!("per_device_eval_batch_size={}", best.micro_batch));
        arguments.extend(precision(&variant).map(str::to_owned));
    }
    if answer.world_size > 1 {
        text += &comment(&format!(
            "start it with: torchrun --nproc-per-node {} train.py",
            answer.world_size
        ));
    }
    text + "from transformers import TrainingArguments\n\n"
        + &call("training_arguments = TrainingArguments", &arguments)
}

/// Mixed precision.
fn precision(variant: &Variant) -> Option<&'static str> {
    match variant.precision {
        Precision::AmpFp16 => Some("fp16=True"),
        Precision::AmpBf16 => Some("bf16=True"),
        Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => None,
    }
}

/// The Trainer's name for the optimizer, where it has one.
fn optim(variant: &Variant) -> Option<Vec<&'static str>> {
    const SGD: &str = "optim=\"sgd\"";
    match (variant.optimizer, variant.optimizer_impl) {
        (Optimizer::Adamw, OptimizerImpl::Foreach) => Some(vec!["optim=\"adamw_torch\""]),
        (Optimizer::Adamw, OptimizerImpl::Fused) => Some(vec!["optim=\"adamw_torch_fused\""]),
        (Optimizer::Sgd, OptimizerImpl::Foreach) => Some(vec![SGD]),
        (Optimizer::SgdMomentum, OptimizerImpl::Foreach) => {
            Some(vec![SGD, "optim_args=\"momentum=0.9\""])
        }
        (Optimizer::AdamwBnb8bit, _) => Some(vec!["optim=\"adamw_bnb_8bit\""]),
        (Optimizer::PagedAdamw8bit, _) => Some(vec!["optim=\"paged_adamw_8bit\""]),
        (Optimizer::Adamw8bitTorchao, _) => Some(vec!["optim=\"adamw_torch_8bit\""]),
        (Optimizer::AdafactorTransformers, _) => Some(vec!["optim=\"adafactor\""]),
        (Optimizer::Adam | Optimizer::Adamw8bit | Optimizer::Adafactor, _)
        | (_, OptimizerImpl::Fused | OptimizerImpl::ForLoop) => None,
    }
}
