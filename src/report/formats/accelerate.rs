//! For Hugging Face's accelerate: the names are those of version 1.15.

use std::fmt::Write as _;

use super::Answer;
use super::lightning::DDP;
use super::python::{
    beyond, call, class_of, clip, comment, ddp_arguments, headline, import_of, optimizer, prepared,
};
use crate::model::{Parallel, Precision, Variant};

/// The `Accelerator`, the optimizer, the batch of the data and the loop, as Python. `model`, `dataset` and `loss_of(model, batch)` are the
/// reader's.
pub fn accelerate(answer: &Answer) -> Result<String, String> {
    beyond(answer, "accelerate", &DDP)?;
    let (best, variant) = (answer.best(), answer.variant());
    let mut text = headline(answer);
    text += &comment(&format!(
        "start it with: accelerate launch --num_processes {} train.py",
        answer.world_size
    ));
    text += &comment("yours are model, dataset, and loss_of(model, batch)");
    text += &prepared(answer, true, false)?;
    let mut arguments = Vec::new();
    if !variant.recorded {
        arguments.push(format!("mixed_precision=\"{}\"", precision(&variant)));
    }
    if answer.is_training() {
        arguments.push(format!(
            "gradient_accumulation_steps={}",
            best.accumulation_steps
        ));
    }
    if let Parallel::Ddp(ddp) = &variant.parallel {
        text += "from accelerate import DistributedDataParallelKwargs\n";
        let of_ddp = ddp_arguments(ddp).join(", ");
        arguments.push(format!(
            "kwargs_handlers=[DistributedDataParallelKwargs({of_ddp})]"
        ));
    }
    text += "from accelerate import Accelerator\n\n";
    text += &call("accelerator = Accelerator", &arguments);
    let loader = "loader = torch.utils.data.DataLoader";
    let _ = writeln!(text, "{loader}(dataset, batch_size={})", best.micro_batch);
    if !answer.is_training() {
        return Ok(text + "model, loader = accelerator.prepare(model, loader)\n");
    }
    if variant.recorded {
        return Ok(text);
    }
    text += &import_of(class_of(&variant).0);
    let _ = writeln!(text, "optimizer = {}", optimizer(&variant, "model"));
    text += "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n";
    text += "for batch in loader:\n    with accelerator.accumulate(model):\n        accelerator.backward(loss_of(model, batch))\n";
    if let Some(norm) = clip(&variant) {
        let _ = write!(
            text,
            "        if accelerator.sync_gradients:\n            accelerator.clip_grad_norm_(model.parameters(), {norm:?})\n"
        );
    }
    Ok(text + "        optimizer.step()\n        optimizer.zero_grad()\n")
}

/// accelerate's name for mixed precision; parameters of half precision are the model's own.
fn precision(variant: &Variant) -> &'static str {
    match variant.precision {
        Precision::AmpFp16 => "fp16",
        Precision::AmpBf16 => "bf16",
        Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => "no",
    }
}
