//! The best-known models of the families, by their ids on the Hugging Face hub.
//!
//! `hub/FAMILY.json` has their configs as the hub has them, without what nothing reads. Parameter counts are those that
//! transformers 5.17 makes of the configs.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use crate::presets::{Override, Preset};

/// A model of the hub.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HubModel {
    /// Such as `Qwen/Qwen3-0.6B`.
    pub(crate) id: String,
    /// What it is, in a few words.
    pub(crate) summary: String,
    /// Elements of its parameters, shared ones once.
    pub(crate) parameters: u64,
    /// Tokens or samples of sound of one sample, where the model has a length of its own.
    #[serde(default)]
    pub(crate) seq_len: Option<u64>,
    /// Tokens of an answer, where the model has a length of its own.
    #[serde(default)]
    pub(crate) target_len: Option<u64>,
    /// What every answer about it says.
    #[serde(default)]
    pub(super) note: Option<String>,
    /// Its `config.json`.
    pub(super) config: Value,
    /// What a request may say.
    #[serde(skip)]
    overrides: Vec<Override>,
}

/// One file for each family.
const FILES: &[&str] = &[
    include_str!("hub/albert.json"),
    include_str!("hub/bart.json"),
    include_str!("hub/bert.json"),
    include_str!("hub/bloom.json"),
    include_str!("hub/clip.json"),
    include_str!("hub/convnext.json"),
    include_str!("hub/deberta_v2.json"),
    include_str!("hub/deepseek.json"),
    include_str!("hub/dinov2.json"),
    include_str!("hub/distilbert.json"),
    include_str!("hub/electra.json"),
    include_str!("hub/falcon.json"),
    include_str!("hub/gemma.json"),
    include_str!("hub/gemma2.json"),
    include_str!("hub/gemma3.json"),
    include_str!("hub/gpt2.json"),
    include_str!("hub/gpt_neox.json"),
    include_str!("hub/granite.json"),
    include_str!("hub/llama.json"),
    include_str!("hub/mistral.json"),
    include_str!("hub/mixtral.json"),
    include_str!("hub/mpnet.json"),
    include_str!("hub/olmo.json"),
    include_str!("hub/opt.json"),
    include_str!("hub/phi.json"),
    include_str!("hub/qwen2.json"),
    include_str!("hub/qwen3.json"),
    include_str!("hub/qwen3_moe.json"),
    include_str!("hub/roberta.json"),
    include_str!("hub/smollm3.json"),
    include_str!("hub/swin.json"),
    include_str!("hub/t5.json"),
    include_str!("hub/vit.json"),
    include_str!("hub/whisper.json"),
];

static MODELS: LazyLock<Vec<HubModel>> = LazyLock::new(|| {
    let read = |file: &&str| -> Vec<HubModel> {
        serde_json::from_str(file).expect("a test reads every file of the hub's models")
    };
    let mut models: Vec<HubModel> = FILES.iter().flat_map(read).collect();
    for model in &mut models {
        model.overrides = model.lengths();
    }
    models
});

static PRESETS: LazyLock<Vec<Preset>> = LazyLock::new(|| {
    let preset = |model: &'static HubModel| Preset {
        name: &model.id,
        summary: &model.summary,
        parameters: model.parameters,
        overrides: &model.overrides,
    };
    models().iter().map(preset).collect()
});

/// Members of a config that say how many tokens a model has room for.
const ROOM_FOR_TOKENS: [&str; 4] = [
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
];

/// Members of configs whose samples are more than tokens.
const MORE_THAN_TOKENS: [&str; 5] = [
    "image_size",
    "vision_config",
    "num_mel_bins",
    "audio_config",
    "feat_extract_norm",
];

/// Most tokens that a person is taken to mean who does not say how many a sample has.
pub const MOST_ASSUMED: u64 = 2048;

/// The most tokens that a sample may have, as the config says or as its weights were trained. Nothing for a config that does not say
/// that its samples are tokens.
pub fn room_for_tokens(config: &Value) -> Option<u64> {
    let has = |name: &&str| config.get(name).is_some();
    if !has(&"vocab_size") || MORE_THAN_TOKENS.iter().any(has) {
        return None;
    }
    let class = config.pointer("/architectures/0").and_then(Value::as_str);
    // T5 has no positions to run out of, and its checkpoints were trained on 512 tokens.
    let is_t5 = |class: &str| class.ends_with("ForConditionalGeneration");
    let most = class.map(|class| if is_t5(class) { 512 } else { MOST_ASSUMED });
    let room = ROOM_FOR_TOKENS
        .iter()
        .find_map(|name| config.get(name)?.as_u64());
    let room = room.or(most)?;
    // RoBERTa's 514 positions are room for 512.
    Some(room / 8 * 8)
}

/// The same for the preset of this name, where it has no length of its own.
pub fn room_for_tokens_of(preset: &str) -> Option<u64> {
    let open = find(preset).filter(|model| model.seq_len.is_none())?;
    room_for_tokens(&open.config)
}

/// The tokens of a sample of this preset that a person is taken to mean who does not say.
pub fn assumed_tokens_of(preset: &str) -> Option<u64> {
    room_for_tokens_of(preset).map(|room| room.min(MOST_ASSUMED))
}

/// All models as presets.
pub(crate) fn presets() -> std::slice::Iter<'static, Preset> {
    PRESETS.iter()
}

impl HubModel {
    /// The class that its config names.
    fn class(&self) -> &str {
        let classes = self.config.get("architectures");
        let first = classes.and_then(|classes| classes.get(0));
        first.and_then(Value::as_str).unwrap_or_default()
    }

    /// The lengths that its config leaves open, or that a request may change.
    fn lengths(&self) -> Vec<Override> {
        let class = self.class();
        let mut lengths = Vec::new();
        // Images are as large as the config says, and whisper hears half a minute.
        if !class.ends_with("ForImageClassification") && !class.starts_with("Whisper") {
            lengths.push(Override {
                name: "seq_len",
                default: self.seq_len,
                summary: "tokens of a sample",
            });
        }
        if ["Dinov2", "ConvNext", "Swin"]
            .iter()
            .any(|any_size| class.starts_with(any_size))
        {
            let side = self.config.get("image_size").and_then(Value::as_u64);
            lengths.push(Override {
                name: "image_size",
                default: side.or(Some(224)),
                summary: "height and width of the images: one number, or [height, width]",
            });
        }
        if class.ends_with("ForConditionalGeneration") {
            lengths.push(Override {
                name: "target_len",
                default: self.target_len,
                summary: "tokens of an answer, if not as many as the config says",
            });
        }
        lengths
    }
}

/// All models, family by family.
pub(crate) fn models() -> &'static [HubModel] {
    &MODELS
}

/// Owners of models that the hub knows without one, too, because they are older than owners are.
const FIRST_OWNERS: [&str; 6] = [
    "albert",
    "distilbert",
    "FacebookAI",
    "google-bert",
    "google-t5",
    "openai-community",
];

/// The model of this id. Ids are told apart by more than case nowhere, and the hub itself does not mind it.
pub(crate) fn find(id: &str) -> Option<&'static HubModel> {
    models().iter().find(|model| {
        let alone = model
            .id
            .split_once('/')
            .filter(|(owner, _)| FIRST_OWNERS.contains(owner));
        model.id.eq_ignore_ascii_case(id)
            || alone.is_some_and(|(_, alone)| alone.eq_ignore_ascii_case(id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestError;
    use crate::graph::Graph;
    use crate::huggingface::{Run, lower, parse, parse_hub};
    use serde_json::json;

    /// A length that every model takes whose config names none.
    const LENGTH: u64 = 64;

    /// The graph, with lengths where the model asks for them.
    fn graph(model: &HubModel) -> Result<Graph, RequestError> {
        let mut description = json!({ "hf": model.config });
        let lengths = [("seq_len", model.seq_len), ("target_len", model.target_len)];
        for (name, length) in lengths {
            if let Some(length) = length {
                description[name] = json!(length);
            }
        }
        loop {
            let asked = match parse(&description, "/model").and_then(|m| lower(&m, Run::default()))
            {
                Err(invalid) if invalid.problem.contains("does not say") => invalid.pointer,
                built => return built.map(|(graph, _)| graph),
            };
            description[asked.trim_start_matches("/model/")] = json!(LENGTH);
        }
    }

    #[test]
    fn a_size_that_samples_do_not_have_is_refused() {
        let vit = "google/vit-base-patch16-224";
        for (id, size) in [
            ("gpt2", "image_size"),
            ("gpt2", "target_len"),
            (vit, "seq_len"),
        ] {
            let description = json!({ "preset": id, size: 224 });
            let refused = parse_hub(find(id).unwrap(), &description, "/model").unwrap_err();
            assert_eq!(refused.pointer, format!("/model/{size}"));
            assert!(refused.problem.contains("leave it out"), "{refused}");
        }
    }

    #[test]
    fn every_model_has_as_many_parameters_as_its_original() {
        for model in models() {
            let graph = graph(model);
            let graph = graph.unwrap_or_else(|invalid| panic!("{}: {}", model.id, invalid.problem));

            assert_eq!(graph.parameter_count(), model.parameters, "{}", model.id);
        }
    }

    #[test]
    fn a_model_that_sees_images_is_answered_as_its_text_model() {
        let text = find("google/gemma-3-4b-pt").unwrap();
        let class = "Gemma3ForConditionalGeneration";
        let whole =
            json!({ "architectures": [class], "text_config": text.config, "vision_config": {} });
        let built = parse(&json!({ "hf": whole, "seq_len": LENGTH }), "/model");
        let (graph, notes) = built
            .and_then(|model| lower(&model, Run::default()))
            .unwrap();

        assert_eq!(graph.parameter_count(), text.parameters);
        assert!(
            notes
                .iter()
                .any(|note| note.contains("without its image encoder")),
            "{notes:?}"
        );
    }

    #[test]
    fn the_first_models_need_no_owner() {
        let id = |name| find(name).map(|model| model.id.as_str());

        assert_eq!(id("gpt2"), Some("openai-community/gpt2"));
        assert_eq!(
            id("bert-base-uncased"),
            Some("google-bert/bert-base-uncased")
        );
        assert_eq!(id("Llama-3.2-1B"), None);
        assert_eq!(
            id("META-LLAMA/llama-3.2-1b"),
            Some("meta-llama/Llama-3.2-1B")
        );
    }

    #[test]
    fn every_id_is_there_once() {
        for (index, model) in models().iter().enumerate() {
            let first = models()
                .iter()
                .position(|other| other.id.eq_ignore_ascii_case(&model.id));

            assert_eq!(first, Some(index), "{}", model.id);
        }
    }
}
