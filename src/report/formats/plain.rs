//! Plain PyTorch: a whole training loop, for whoever has no trainer, and for what trainers have no words for.

use std::fmt::Write as _;

use super::Answer;
use super::python::{call, class_of, clip, comment, headline, import_of, prepared, sharded};
use crate::model::{Parallel, Precision, Variant};

/// The model, its optimizer and its loop, as Python. `model`, `dataset` and `loss_of(model, batch)` are the reader's.
pub fn python(answer: &Answer) -> Result<String, String> {
    let (best, variant) = (answer.best(), answer.variant());
    let mut text = headline(answer);
    let several = answer.world_size > 1;
    if several {
        text += &comment(&format!(
            "start it with: torchrun --nproc-per-node {} train.py",
            answer.world_size
        ));
    }
    text += &comment(
        "yours are model, dataset, and loss_of(model, batch), which moves the batch to the GPU",
    );
    text += &prepared(answer, true, false)?;
    if several {
        text += "import os\n\ntorch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"]))\n";
        text += "torch.distributed.init_process_group(\"nccl\")\n";
    }
    let autocast = match variant.precision {
        Precision::AmpFp16 => "torch.autocast(\"cuda\", dtype=torch.float16)",
        Precision::AmpBf16 => "torch.autocast(\"cuda\", dtype=torch.bfloat16)",
        Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => "contextlib.nullcontext()",
    };
    text += "import contextlib\n\n";
    let mut loader = vec![
        "dataset".to_owned(),
        format!("batch_size={}", best.micro_batch),
    ];
    if several {
        loader.push("sampler=torch.utils.data.distributed.DistributedSampler(dataset)".to_owned());
    } else if answer.is_training() {
        loader.push("shuffle=True".to_owned());
    }
    let loader = call("loader = torch.utils.data.DataLoader", &loader);
    if !answer.is_training() {
        return Ok(format!(
            "{text}model = model.cuda().eval()\n{loader}with torch.no_grad(), {autocast}:\n    for batch in loader:\n        \
             loss_of(model, batch)\n"
        ));
    }
    text += &import_of(class_of(&variant).0);
    text += &sharded(&variant);
    text += &loader;
    text += &looped(&variant, best.accumulation_steps, autocast);
    Ok(text)
}

fn looped(variant: &Variant, steps: u64, autocast: &str) -> String {
    let scaled = variant.precision == Precision::AmpFp16;
    let mut text = String::new();
    if scaled {
        text += "scaler = torch.amp.GradScaler()\n";
    }
    text += "for step, batch in enumerate(loader, 1):\n";
    let _ = writeln!(text, "    is_last = step % {steps} == 0");
    // Gradients are reduced in the last micro-step alone.
    let skips = match &variant.parallel {
        Parallel::Ddp(ddp) | Parallel::Zero1(ddp) if !ddp.sync_every_micro_step => {
            "contextlib.nullcontext() if is_last else model.no_sync()"
        }
        _ => "contextlib.nullcontext()",
    };
    if let Parallel::Fsdp2(sharded) = &variant.parallel
        && !sharded.sync_every_micro_step
    {
        text += "    model.set_requires_gradient_sync(is_last)\n";
    }
    let backward = if scaled { "scaler.scale(loss)" } else { "loss" };
    let _ = write!(
        text,
        "    with {skips}:\n        with {autocast}:\n            loss = loss_of(model, batch) / {steps}\n        \
         {backward}.backward()\n    if is_last:\n"
    );
    if let Some(norm) = clip(variant) {
        if scaled {
            text += "        scaler.unscale_(optimizer)\n";
        }
        let _ = writeln!(
            text,
            "        torch.nn.utils.clip_grad_norm_(model.parameters(), {norm:?})"
        );
    }
    text += if scaled {
        "        scaler.step(optimizer)\n        scaler.update()\n"
    } else {
        "        optimizer.step()\n"
    };
    text + "        optimizer.zero_grad()\n"
}
