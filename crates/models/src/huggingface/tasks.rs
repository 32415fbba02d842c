//! What a model is trained on: the head that its class has.

use serde_json::{Value, json};

use super::{HuggingFaceModel, build_of, config_fields, is_language_model};
use crate::fields::Fields;
use crate::request_error::RequestError;

/// Tasks by their names in requests, and how the classes of models for them end.
const TASKS: &[(&str, &[&str])] = &[
    ("causal_lm", &["ForCausalLM", "LMHeadModel"]),
    ("masked_lm", &["ForMaskedLM"]),
    ("sequence_classification", &["ForSequenceClassification"]),
    ("token_classification", &["ForTokenClassification"]),
    ("question_answering", &["ForQuestionAnswering"]),
];

/// How the classes of other models end.
const OTHERS: [&str; 3] = [
    "ForImageClassification",
    "ForConditionalGeneration",
    "Model",
];

/// What the names of a family's classes begin with.
pub(super) fn stem(class: &str) -> &str {
    let of_tasks = TASKS.iter().flat_map(|(_, ends)| ends.iter());
    let ends = of_tasks.chain(&OTHERS);
    let stems = ends.filter_map(|end| class.strip_suffix(end));
    stems.min_by_key(|stem| stem.len()).unwrap_or(class)
}

/// The tasks that there are for models of the family of a class, with their classes.
fn tasks(class: &str) -> Vec<(&'static str, String)> {
    let stem = stem(class);
    let of = |(task, ends): &(&'static str, &[&str])| {
        let mut classes = ends.iter().map(|end| format!("{stem}{end}"));
        Some((*task, classes.find(|class| build_of(class).is_some())?))
    };
    TASKS.iter().filter_map(of).collect()
}

/// The config of the model with the head and the number of labels that the description asks for.
pub(super) fn chosen(
    fields: &Fields<'_>,
    config: &Value,
    pointer: &str,
) -> Result<Value, RequestError> {
    let mut config = text_of(config).unwrap_or_else(|| config.clone());
    let class = config.pointer("/architectures/0").and_then(Value::as_str);
    let class = class.unwrap_or_default().to_owned();
    // A config that names no class is refused for that.
    if let Some(task) = fields.text("task")?.filter(|_| !class.is_empty()) {
        let known = tasks(&class);
        let found = known.iter().find(|(known, _)| *known == task);
        let (_, chosen) = found.ok_or_else(|| {
            let names = known.iter().map(|(known, _)| *known);
            RequestError::unknown(format!("{pointer}/task"), "task", task, names)
        })?;
        config["architectures"] = json!([chosen]);
    }
    if let Some(labels) = fields.size("num_labels")? {
        let class = config.pointer("/architectures/0").and_then(Value::as_str);
        if !class.is_some_and(|class| class.ends_with("Classification")) {
            let problem = "only classifiers have labels; `--with task=sequence_classification` makes one of a model of text";
            return Err(RequestError::at(format!("{pointer}/num_labels"), problem));
        }
        config["id2label"] = Value::Null;
        config["num_labels"] = labels.into();
    }
    Ok(config)
}

/// The config of the text model of one that sees images too, as far as that is one of the families.
fn text_of(config: &Value) -> Option<Value> {
    let class = config.pointer("/architectures/0")?.as_str()?;
    let text = (class == "Gemma3ForConditionalGeneration").then(|| config.get("text_config"))??;
    let mut text = text.as_object()?.clone();
    text.insert("architectures".to_owned(), json!(["Gemma3ForCausalLM"]));
    let said = config_fields().iter().flat_map(|said| &said.fields);
    for name in said.map(String::as_str).chain([IMAGES]) {
        let given = config.get(name);
        if let Some(value) = given.filter(|it| !it.is_null() && **it != json!(false)) {
            text.insert(name.to_owned(), value.clone());
        }
    }
    Some(text.into())
}

/// What the answer says of that.
pub(super) fn images_left_out(config: &Value) -> Option<String> {
    config.get(IMAGES).map(|_| {
        "it is answered as its text model, Gemma3ForCausalLM, without its image encoder".to_owned()
    })
}

/// The member of a config for an encoder of images.
const IMAGES: &str = "vision_config";

/// What an answer says of the task of a model.
pub(super) fn note(model: &HuggingFaceModel, class: &str) -> Option<String> {
    if class == "CLIPModel" {
        return Some("the loss compares the pairs of a micro-batch: accumulation steps do not add any to compare, as a larger batch does".to_owned());
    }
    if is_language_model(class) {
        let all_at_once = model.sizes.loss_chunks.is_none();
        return all_at_once.then(|| {
            "the loss has all logits at once; TRL's trainers compute it in chunks: `--with loss_chunks=16` asks about that"
                .to_owned()
        });
    }
    let others = tasks(class)
        .into_iter()
        .filter(|(_, other)| *other != class);
    let others: Vec<String> = others
        .map(|(task, _)| format!("`--with task={task}`"))
        .collect();
    let id = model.id.filter(|_| !others.is_empty())?;
    Some(format!(
        "{id} is trained as {class}; {} asks about another task",
        others.join(" or ")
    ))
}

/// How a class that is not built is exported.
pub(super) fn exported(class: &str) -> String {
    /// What classes end in whose labels the exporter makes up (`_labels` in the client's `export/huggingface.py`).
    const ENDINGS: [&str; 10] = [
        "ForCausalLM",
        "LMHeadModel",
        "ForMaskedLM",
        "ForTokenClassification",
        "ForSequenceClassification",
        "ForImageClassification",
        "ForAudioClassification",
        "ForSemanticSegmentation",
        "ForQuestionAnswering",
        "ForCTC",
    ];
    /// What models of sound and of images take in place of tokens, and how long it is, by what their classes contain.
    const INPUTS: [(&[&str], &str, &str); 2] = [
        (
            &["Wav2Vec2", "Hubert", "WavLM", "SEW", "UniSpeech", "Audio"],
            "\"input_values=f32[B,160000]\" \"labels=i64[B,100]\"",
            " --seq-len 160000",
        ),
        (
            &["CLIP", "Siglip"],
            "\"pixel_values=f32[B,3,224,224]\" \"input_ids=i64[B,77]\"",
            " --seq-len 64",
        ),
    ];
    /// Two towers that return a loss over all pairs of a batch.
    const PAIRS: [&str; 4] = [
        "CLIPModel",
        "ChineseCLIPModel",
        "SiglipModel",
        "AltCLIPModel",
    ];
    let takes =
        |(names, ..): &&(&[&str], &str, &str)| names.iter().any(|name| class.contains(name));
    let (_, inputs, length) = INPUTS.iter().find(takes).unwrap_or(&(
        &[],
        "\"input_ids=i64[B,512]\" \"labels=i64[B,512]\"",
        "",
    ));
    if ENDINGS.iter().any(|ending| class.ends_with(ending)) || PAIRS.contains(&class) {
        return format!("by `batchfit export --hf config.json{length} -o model.json.gz`");
    }
    format!(
        "from a function of yours that builds it with its loss, as in `batchfit export my_module:build --batch {inputs} \
         --loss model -o model.json.gz`"
    )
}
