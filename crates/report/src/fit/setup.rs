//! How an answer trains: what was asked for, and what was assumed.

use batchfit_fit::model::{Checkpointing, Mode, preset};
use batchfit_fit::{FitResult, VariantResult};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Number, Value};

/// A request as it is stored and shown, as far as reports name what it says.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ShownRequest {
    pub(crate) model: ShownModel,
    training: Option<ShownTraining>,
    pub(crate) allocator: Option<String>,
    pub(crate) generation: Option<IgnoredAny>,
    pub(crate) lengths: Option<Map<String, Value>>,
    world_size: Option<Number>,
}

/// Its model.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ShownModel {
    pub(crate) preset: Option<String>,
    pub(crate) hf: Option<IgnoredAny>,
    seq_len: Option<Value>,
    target_len: Option<Value>,
    image_size: Option<Value>,
    attn_implementation: Option<String>,
    pub(crate) param_dtype: Option<String>,
    pub(crate) loss_chunks: Option<Number>,
    pub(crate) frozen: Option<Vec<String>>,
    pub(crate) lora: Option<Map<String, Value>>,
}

/// Whether it says how is trained.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ShownTraining {
    precision: Option<IgnoredAny>,
    optimizer: Option<IgnoredAny>,
    checkpointing: Option<IgnoredAny>,
    parallel: Option<IgnoredAny>,
}

impl ShownRequest {
    /// Reads its text; what a later version wrote may say nothing here.
    pub fn of(text: &str) -> ShownRequest {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// GPUs that train together.
    pub fn world_size(&self) -> u64 {
        self.world_size
            .as_ref()
            .and_then(Number::as_u64)
            .unwrap_or(1)
    }
}

impl ShownModel {
    /// How many tokens or pixels samples have by the model; the preset's own where it does not say it.
    pub(crate) fn size(&self, name: &str) -> Option<Value> {
        self.said(name).cloned().or_else(|| {
            let mut all = preset(self.preset.as_deref()?)?.overrides.iter();
            all.find(|one| one.name == name)?.default.map(Value::from)
        })
    }

    fn said(&self, name: &str) -> Option<&Value> {
        match name {
            "seq_len" => self.seq_len.as_ref(),
            "target_len" => self.target_len.as_ref(),
            _ => self.image_size.as_ref(),
        }
    }
}

/// How is trained, by the answer: what the request says, then what it leaves to be assumed.
pub(super) fn line(result: &FitResult, request: &ShownRequest) -> String {
    let Some(VariantResult { training, cost, .. }) = result.variants.first() else {
        return String::new();
    };
    let cost = cost.as_ref();
    let model = &request.model;
    let said = request.training.clone().unwrap_or_default();
    let (mut given, mut assumed) = (Vec::new(), Vec::new());
    let mut put = |is_said: bool, text: String| {
        let list = if is_said { &mut given } else { &mut assumed };
        list.push(text);
    };
    if !training.recorded {
        put(
            said.precision.is_some(),
            training.precision.name().to_owned(),
        );
    }
    if !training.recorded && training.mode == Mode::Train {
        let own = training.optimizer.implementations();
        let how = match training.optimizer_impl {
            usual if usual == own[0] => String::new(),
            other => format!(" {}", other.name()),
        };
        put(
            said.optimizer.is_some(),
            training.optimizer.name().to_owned() + &how,
        );
        let checkpointing = match &training.checkpointing {
            Checkpointing::None => "no checkpointing".to_owned(),
            Checkpointing::PerBlock => "checkpointing of each block".to_owned(),
            Checkpointing::Modules(globs) => format!("checkpointing of {}", globs.join(", ")),
        };
        put(said.checkpointing.is_some(), checkpointing);
    }
    for (size, unit) in [("seq_len", "tokens"), ("image_size", "images")] {
        if let Some(value) = model.size(size).filter(|_| result.lengths.is_none()) {
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
            put(model.said(size).is_some(), format!("{length} {unit}"));
        }
    }
    let attention = model.attn_implementation.as_ref();
    given.extend(attention.map(|kind| format!("{kind} attention")));
    given.extend(model.lora.as_ref().map(|_| "LoRA".to_owned()));
    given.extend(training.clip_grad_norm.map(|_| "clipping".to_owned()));
    given.extend(training.weight_decay.map(|_| "weight decay".to_owned()));
    given.extend(
        training
            .label_smoothing
            .map(|_| "label smoothing".to_owned()),
    );
    if let Some(strategy) = training.parallel.name() {
        let text = format!("{strategy} on {}", gpus(training.parallel.world_size()));
        let list = match said.parallel {
            Some(_) => &mut given,
            None => &mut assumed,
        };
        list.push(text);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_are_null_are_as_if_left_out() {
        let text = r#"{"model": {"preset": "bert-base", "seq_len": 64, "lora": {"r": 8}, "frozen": null}, "training": null,
                       "lengths": null, "allocator": null, "world_size": 2}"#;
        let request = ShownRequest::of(text);

        assert_eq!(request.world_size(), 2);
        assert_eq!(request.model.size("seq_len"), Some(Value::from(64)));
        assert!(request.model.lora.is_some());
    }
}
