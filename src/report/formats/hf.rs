//! For Hugging Face's Trainer: the names are those of transformers 5.17's `TrainingArguments`.

use super::Answer;
use super::python::{
    beyond, call, class_of, clip, comment, ddp_arguments, headline, import_of,
    is_of_transformers_lib, optimizer, prepared,
};
use crate::model::{Checkpointing, Optimizer, OptimizerImpl, Parallel, Precision, Variant};

/// What of DDP the Trainer passes on, with its own prefix.
const DDP: [&str; 3] = [
    "find_unused_parameters",
    "broadcast_buffers",
    "bucket_cap_mb",
];

/// `TrainingArguments` as Python.
pub fn hf(answer: &Answer) -> Result<String, String> {
    beyond(answer, "hf", &DDP)?;
    let (best, variant) = (answer.best(), answer.variant());
    let own_blocks = is_of_transformers_lib(answer);
    let mut text = headline(answer);
    if answer.world_size > 1 {
        text += &comment(&format!(
            "start it with: torchrun --nproc-per-node {} train.py",
            answer.world_size
        ));
    }
    if !own_blocks {
        text += &comment("the Trainer takes a model whose forward returns a dict with its `loss`");
    }
    text += &prepared(answer, true, own_blocks)?;
    let mut arguments = vec!["output_dir=\"output\"".to_owned()];
    if !answer.is_training() {
        arguments.push(format!("per_device_eval_batch_size={}", best.micro_batch));
        arguments.extend(precision(&variant).map(str::to_owned));
        return Ok(text + &finished(&arguments));
    }
    arguments.push(format!("per_device_train_batch_size={}", best.micro_batch));
    arguments.push(format!(
        "gradient_accumulation_steps={}",
        best.accumulation_steps
    ));
    if variant.recorded {
        return Ok(text + &finished(&arguments));
    }
    arguments.extend(precision(&variant).map(str::to_owned));
    if let Some(optim) = optim(&variant) {
        arguments.extend(optim.into_iter().map(str::to_owned));
    } else {
        text += &import_of(class_of(&variant).0);
        text += &format!(
            "optimizers = ({}, None)  # Trainer(..., optimizers=optimizers): it has no name for this one\n",
            optimizer(&variant, "model")
        );
    }
    // The Trainer clips to 1 where nobody says otherwise.
    arguments.push(format!("max_grad_norm={:?}", clip(&variant).unwrap_or(0.0)));
    if variant.checkpointing == Checkpointing::PerBlock && own_blocks {
        arguments.push("gradient_checkpointing=True".to_owned());
        arguments.push("gradient_checkpointing_kwargs={\"use_reentrant\": False}".to_owned());
    }
    if let Parallel::Ddp(ddp) = &variant.parallel {
        let passed = ddp_arguments(ddp).into_iter();
        arguments.extend(passed.map(|argument| format!("ddp_{argument}")));
    }
    Ok(text + &finished(&arguments))
}

fn finished(arguments: &[String]) -> String {
    "from transformers import TrainingArguments\n\n".to_owned()
        + &call("training_arguments = TrainingArguments", arguments)
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
        (Optimizer::PagedAdamw8bit, _) => Some(vec!["optim=\"paged_adamw_8bit\""]),
        (Optimizer::Adamw8bitTorchao, _) => Some(vec!["optim=\"adamw_torch_8bit\""]),
        (Optimizer::AdafactorTransformers, _) => Some(vec!["optim=\"adafactor\""]),
        // Its `adamw_bnb_8bit` keeps the moments of embeddings in 32 bits, the answer in 8.
        (Optimizer::Adamw8bit | Optimizer::Adam | Optimizer::Adafactor, _)
        | (_, OptimizerImpl::Fused | OptimizerImpl::ForLoop) => None,
    }
}
