//! What a config says besides sizes: each field that memory depends on is honoured or refused.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use super::{HuggingFaceModel, Run};
use crate::fields::Fields;
use crate::huggingface::prelude::*;

/// A field of a config, or several that say the same.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigField {
    /// Their names.
    pub fields: Vec<String>,
    /// What they say.
    pub effect: String,
    /// What batchfit does about it.
    pub does: String,
    /// The values that are not refused, besides nothing: false and zero; all of them if none are named.
    followed: Option<Vec<String>>,
}

/// Fields of transformers 5.17's `PreTrainedConfig` and of the families' own classes that decide on memory and are no sizes.
static SAID: LazyLock<Vec<ConfigField>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("said.json")).expect("a test reads the table")
});

/// Places of some of them.
const DTYPE: usize = 0;
const ATTENTION: usize = 2;
const CHECKPOINTING: usize = 3;

/// What to ask about weights that are float32 against the config's word, on a card that computes in bfloat16.
pub const ASK_BF16: &str = "`--precision bf16` asks about that";

/// The fields of configs that memory depends on besides sizes.
pub fn config_fields() -> &'static [ConfigField] {
    &SAID
}

/// Libraries whose configs are not transformers', and members that tell theirs.
const LIBRARIES: &[(&str, &[&str])] = &[
    ("diffusers", &["_class_name"]),
    ("timm", &["architecture", "pretrained_cfg"]),
    ("open_clip", &["model_cfg", "preprocess_cfg"]),
    ("PEFT", &["peft_type"]),
];

/// Says of which other library a config is, by its members.
pub fn of_another_library(has: impl Fn(&str) -> bool) -> Option<String> {
    let all = |members: &[&str]| members.iter().all(|member| has(member));
    let (library, _) = LIBRARIES.iter().find(|(_, members)| all(members))?;
    Some(format!(
        "it is a config of {library}, and batchfit reads those of transformers; `batchfit export my_module:build --batch ... \
         -o model.json.gz`, of batchfit's Python client, writes the graph of any PyTorch model, to be given in its place"
    ))
}

/// What a config says besides sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Saying {
    /// What weights are loaded in.
    pub(super) dtype: Option<DType>,
    /// Whether attention is written out: `eager_attention_forward`.
    pub(super) is_eager: bool,
    /// Whether each layer is checkpointed.
    pub(super) checkpoints: bool,
    /// Whether tokens attend to those before them alone, against what the class may do.
    pub(super) is_causal: Option<bool>,
}

/// Types of weights by their names in configs.
const DTYPES: [(&str, Option<DType>); 4] = [
    ("auto", None),
    ("float32", Some(DType::Float32)),
    ("bfloat16", Some(DType::BFloat16)),
    ("float16", Some(DType::Float16)),
];

/// Functions of attention, and whether they are written out.
pub(super) const ATTENTIONS: [(&str, bool); 4] = [
    ("sdpa", false),
    ("eager", true),
    ("flash_attention_2", false),
    ("flash_attention_3", false),
];

/// Refuses what is not modelled in a config or a part of it.
fn refuse(fields: &Fields<'_>) -> Result<(), RequestError> {
    let is_something = |value: &&Value| {
        **value != Value::Bool(false) && value.as_f64().is_none_or(|number| number > 0.0)
    };
    for said in SAID.iter() {
        let Some(followed) = &said.followed else {
            continue;
        };
        let is_followed = |value: &Value| followed.iter().any(|one| value == one.as_str());
        for field in &said.fields {
            let value = fields.get(field).filter(is_something);
            if value.is_some_and(|value| !is_followed(value)) {
                return Err(fields.wrong(field, format!("{}; {}", said.effect, said.does)));
            }
        }
    }
    Ok(())
}

impl Saying {
    /// Reads it at `pointer`, and refuses what is not modelled.
    pub(super) fn read(config: &Value, pointer: &str) -> Result<Saying, RequestError> {
        let fields = Fields::any(config, pointer, "a Hugging Face config")?;
        let config = Config::of(config, pointer)?;
        refuse(&fields)?;
        for part in ["text_config", "vision_config"] {
            if let Some(value) = fields.get(part) {
                refuse(&Fields::any(value, &fields.at(part), part)?)?;
            }
        }
        let of = |index: usize| {
            let names = &SAID[index].fields;
            let given = names.iter().find(|name| fields.get(name).is_some());
            given.unwrap_or(&names[0]).as_str()
        };
        let dtype = fields.choice(of(DTYPE), "type of weights", &DTYPES)?;
        let attention = fields.choice(of(ATTENTION), "attention", &ATTENTIONS)?;
        Ok(Saying {
            dtype: dtype.flatten(),
            is_eager: attention.unwrap_or(false),
            checkpoints: config.flag(&SAID[CHECKPOINTING].fields[0], false)?,
            is_causal: fields.flag("is_causal")?,
        })
    }

    /// Refuses a request that contradicts it.
    pub(super) fn check(self, model: &HuggingFaceModel, run: Run) -> Result<(), RequestError> {
        if !self.checkpoints || !run.trains || run.is_checkpointed {
            return Ok(());
        }
        let ConfigField {
            fields,
            effect,
            does,
            ..
        } = &SAID[CHECKPOINTING];
        let at = format!("{}/hf/{}", model.pointer, fields[0]);
        Err(RequestError::at(at, format!("{effect}; {does}")))
    }

    /// What the answer says of the weights' type, where it is not the one that everybody expects.
    pub(super) fn note(self, stated: Option<DType>, run: Run) -> Option<String> {
        let is_half = |dtype: &DType| dtype.is_half() && stated.is_none();
        let loaded = self.dtype.filter(is_half)?;
        match run.stored {
            None => Some(format!(
                "the weights are {loaded}, as the config says and `from_pretrained` of transformers 5 loads them; `--with param_dtype=fp32` asks about float32"
            )),
            Some(DType::Float32) => Some(format!(
                "the weights are float32; the config says {loaded}, as `from_pretrained` of transformers 5 loads them: {ASK_BF16}"
            )),
            Some(_) => None,
        }
    }
}
