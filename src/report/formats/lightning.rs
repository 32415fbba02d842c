//! For Lightning 2: its `Trainer`, and what goes into the module and the data beside it.

use super::Answer;
use super::python::{call, checkpointed, comment, headline, optimizer};
use crate::model::{Precision, Variant};

/// The `Trainer`, and the batch of the data, as Python.
pub fn lightning(answer: &Answer) -> String {
    let (best, variant) = (answer.best(), answer.variant());
    let mut text = headline(answer);
    if answer.is_training() {
        text += &comment(&format!(
            "configure_optimizers returns {}",
            optimizer(&variant, "self")
        ));
        let blocks = "torch.utils.checkpoint.checkpoint(..., use_reentrant=False) around every block of the model";
        text.extend(checkpointed(&variant, blocks));
    }
    let mut arguments = vec![
        "accelerator=\"gpu\"".to_owned(),
        format!("devices={}", answer.world_size),
        format!("precision=\"{}\"", precision(&variant)),
    ];
    if answer.is_training() {
        arguments.push(format!(
            "accumulate_grad_batches={}",
            best.accumulation_steps
        ));
    }
    text += "from lightning import Trainer\n\n";
    text += &call("trainer = Trainer", &arguments);
    text + &format!(
        "data = DataModule(batch_size={})  # your LightningDataModule, or DataLoader\n",
        best.micro_batch
    )
}

/// Lightning's name for a precision.
fn precision(variant: &Variant) -> &'static str {
    match variant.precision {
        Precision::Fp32 => "32-true",
        Precision::AmpFp16 => "16-mixed",
        Precision::AmpBf16 => "bf16-mixed",
        Precision::Bf16 => "bf16-true",
        Precision::Fp16 => "16-true",
    }
}
