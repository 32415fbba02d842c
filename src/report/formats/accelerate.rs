//! For Hugging Face's accelerate: the names are those of version 1.15.

use std::fmt::Write as _;

use super::Answer;
use super::python::{call, checkpointed, comment, half_parameters, headline, optimizer};
use crate::model::{Precision, Variant};

/// The `Accelerator`, the optimizer and the batch of the data, as Python.
pub fn accelerate(answer: &Answer) -> String {
    let (best, variant) = (answer.best(), answer.variant());
    let mut text = headline(answer);
    text += &comment(&format!(
        "start it with: accelerate launch --num_processes {} train.py",
        answer.world_size
    ));
    text.extend(half_parameters(&variant));
    let mut arguments = vec![format!("mixed_precision=\"{}\"", precision(&variant))];
    if answer.is_training() {
        arguments.push(format!(
            "gradient_accumulation_steps={}",
            best.accumulation_steps
        ));
        let blocks =
            "model.gradient_checkpointing_enable(), or torch.utils.checkpoint around every block";
        text.extend(checkpointed(&variant, blocks));
    }
    text += "from accelerate import Accelerator\n\n";
    text += &call("accelerator = Accelerator", &arguments);
    let loader = "loader = torch.utils.data.DataLoader";
    let _ = writeln!(text, "{loader}(dataset, batch_size={})", best.micro_batch);
    if answer.is_training() {
        let _ = writeln!(text, "optimizer = {}", optimizer(&variant, "model"));
    }
    text
}

/// accelerate's name for mixed precision; parameters of half precision are the model's own.
fn precision(variant: &Variant) -> &'static str {
    match variant.precision {
        Precision::AmpFp16 => "fp16",
        Precision::AmpBf16 => "bf16",
        Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => "no",
    }
}
