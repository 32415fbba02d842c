//! How an answer trains: what was asked for, and what was assumed.

use batchfit_fit::model::{Checkpointing, Mode, preset};
use batchfit_fit::{FitResult, VariantResult};
use serde_json::Value;

/// How is trained, by the answer: what the request says, then what it leaves to be assumed.
pub(super) fn line(result: &FitResult, request: &Value) -> String {
    let Some(VariantResult { training, cost, .. }) = result.variants.first() else {
        return String::new();
    };
    let cost = cost.as_ref();
    let said = |member: &str| request.pointer(member).filter(|value| !value.is_null());
    let (mut given, mut assumed) = (Vec::new(), Vec::new());
    let mut put = |member: &str, text: String| match said(member) {
        Some(_) => given.push(text),
        None => assumed.push(text),
    };
    if !training.recorded {
        put("/training/precision", training.precision.name().to_owned());
    }
    if !training.recorded && training.mode == Mode::Train {
        let own = training.optimizer.implementations();
        let how = match training.optimizer_impl {
            usual if usual == own[0] => String::new(),
            other => format!(" {}", other.name()),
        };
        put(
            "/training/optimizer",
            training.optimizer.name().to_owned() + &how,
        );
        let checkpointing = match &training.checkpointing {
            Checkpointing::None => "no checkpointing".to_owned(),
            Checkpointing::PerBlock => "checkpointing of each block".to_owned(),
            Checkpointing::Modules(globs) => format!("checkpointing of {}", globs.join(", ")),
        };
        put("/training/checkpointing", checkpointing);
    }
    let name = said("/model/preset").and_then(Value::as_str);
    let usual = |size: &str| {
        let all = name.and_then(preset)?.overrides;
        all.iter()
            .find(|one| one.name == size)?
            .default
            .map(Value::from)
    };
    for (size, unit) in [("seq_len", "tokens"), ("image_size", "images")] {
        let member = format!("/model/{size}");
        if let Some(value) = said(&member)
            .cloned()
            .or_else(|| usual(size))
            .filter(|_| result.lengths.is_none())
        {
            let sides = value.as_array().map(|sides| {
                sides
                    .iter()
                    .map(Value::to_string)
                    .collect::<Vec<_>>()
                    .join(" x ")
            });
            let length = match sides {
                Some(sides) => sides,
                None if size == "image_size" => format!("{value} x {value}"),
                None => value.to_string(),
            };
            put(&member, format!("{length} {unit}"));
        }
    }
    given.extend(
        said("/model/attn_implementation")
            .and_then(|kind| Some(format!("{} attention", kind.as_str()?))),
    );
    given.extend(said("/model/lora").map(|_| "LoRA".to_owned()));
    given.extend(training.clip_grad_norm.map(|_| "clipping".to_owned()));
    given.extend(training.weight_decay.map(|_| "weight decay".to_owned()));
    given.extend(
        training
            .label_smoothing
            .map(|_| "label smoothing".to_owned()),
    );
    if let Some(strategy) = training.parallel.name() {
        let text = format!("{strategy} on {}", gpus(training.parallel.world_size()));
        let is_said = said("/training/parallel").is_some();
        (if is_said { &mut given } else { &mut assumed }).push(text);
    }
    given.extend(cost.filter(|_| result.variants.len() > 1).cloned());
    assumed.push(format!("PyTorch {}", result.environment.pytorch));
    let given = if given.is_empty() {
        String::new()
    } else {
        format!("with {}; ", given.join(", "))
    };
    format!("{given}assumed: {}", assumed.join(", "))
}

fn gpus(count: u64) -> String {
    if count == 1 {
        "one GPU".to_owned()
    } else {
        format!("{count} GPUs")
    }
}
