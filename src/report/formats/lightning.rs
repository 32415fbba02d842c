//! For Lightning 2: its `Trainer`, and what goes into the module and the data beside it.

use std::fmt::Write as _;

use super::Answer;
use super::python::{
    beyond, call, class_of, clip, ddp_arguments, headline, import_of, optimizer, prepared,
};
use crate::model::{Parallel, Precision, Variant};

/// What `DDPStrategy` passes on to DDP.
pub(super) const DDP: [&str; 5] = [
    "find_unused_parameters",
    "broadcast_buffers",
    "gradient_as_bucket_view",
    "static_graph",
    "bucket_cap_mb",
];

/// The `Trainer`, and the batch of the data, as Python. `model` is the module inside of the reader's `LightningModule`.
pub fn lightning(answer: &Answer) -> Result<String, String> {
    beyond(answer, "lightning", &DDP)?;
    let (best, variant) = (answer.best(), answer.variant());
    let mut text = headline(answer) + &prepared(answer, false, false)?;
    let trains = answer.is_training() && !variant.recorded;
    if trains {
        text += &import_of(class_of(&variant).0);
        let _ = writeln!(
            text,
            "\ndef configure_optimizers(self):  # a method of your LightningModule\n    return {}\n",
            optimizer(&variant, "self")
        );
    }
    let mut arguments = vec![
        "accelerator=\"gpu\"".to_owned(),
        format!("devices={}", answer.world_size),
    ];
    if let Parallel::Ddp(ddp) = &variant.parallel {
        text += "from lightning.pytorch.strategies import DDPStrategy\n";
        arguments.push(format!(
            "strategy=DDPStrategy({})",
            ddp_arguments(ddp).join(", ")
        ));
    }
    if !variant.recorded {
        arguments.push(format!("precision=\"{}\"", precision(&variant)));
    }
    if answer.is_training() {
        arguments.push(format!(
            "accumulate_grad_batches={}",
            best.accumulation_steps
        ));
    }
    if let Some(norm) = clip(&variant).filter(|_| trains) {
        arguments.push(format!("gradient_clip_val={norm:?}"));
    }
    text += "from lightning import Trainer\n\n";
    text += &call("trainer = Trainer", &arguments);
    let loader = "loader = torch.utils.data.DataLoader";
    let _ = writeln!(text, "{loader}(dataset, batch_size={})", best.micro_batch);
    Ok(text)
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
