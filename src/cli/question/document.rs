//! The request document that WHAT and flags make.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::flags::FlagValue;
use crate::cli::error::CliError;
use crate::model::{
    MOST_ASSUMED, ModelFiles, RequestDocument, room_for_tokens, room_for_tokens_of,
};

/// Where a model is in a request.
const MODEL: &str = "model";

/// Where several lengths are in a request, and what differs of them; a model has one of these.
const LENGTHS: &str = "lengths";
const SIZES: [&str; 2] = ["seq_len", "image_size"];

/// Largest description of a model, in bytes, whose members flags change: only graphs and lists of layers are larger.
const LARGEST_CHANGED: usize = 1 << 20;

/// What WHAT is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A request.
    Request,
    /// The name of a model.
    Name,
    /// A file that a model is in.
    File,
}

/// A request with nothing in it.
pub(super) fn empty() -> RequestDocument {
    RequestDocument::from(Value::Object(Map::new()))
}

/// The model of this name.
pub(super) fn preset(name: &str) -> RequestDocument {
    described("preset", &Value::from(name).to_string())
}

/// A model by the text of its Hugging Face config.
pub(super) fn config(text: &str) -> RequestDocument {
    described("hf", text.trim_end())
}

fn described(way: &str, description: &str) -> RequestDocument {
    let mut document = empty();
    document.set_model(Arc::from(format!("{{\"{way}\":{description}}}")));
    document
}

/// The most tokens that samples may have, of a model that WHAT is.
fn most_tokens(document: &RequestDocument, kind: Kind) -> Option<u64> {
    let model = || serde_json::from_str::<Value>(document.model()?).ok();
    match kind {
        Kind::Request => None,
        Kind::Name => room_for_tokens_of(model()?["preset"].as_str()?),
        Kind::File => room_for_tokens(&model()?["hf"]),
    }
}

/// Sets the members that flags give.
pub(super) fn set(
    document: &mut RequestDocument,
    kind: Kind,
    given: &[FlagValue],
) -> Result<(), CliError> {
    let (of_model, others): (Vec<&FlagValue>, Vec<&FlagValue>) =
        given.iter().partition(|given| given.place[0] == MODEL);
    let is_length = |given: &&FlagValue| given.place[1] == "seq_len";
    match (document.files(), of_model.first()) {
        (Some(ModelFiles::Graph(_)), Some(length)) if of_model.iter().all(is_length) => {
            let model = serde_json::json!({ "seq_len": length.value });
            document.set_model(Arc::from(model.to_string()));
        }
        (Some(_), Some(first)) => return Err(fixed(first)),
        (Some(_), None) => {}
        (None, _) if kind == Kind::Request => change(document, &of_model, lengths(&others))?,
        (None, _) => {
            let model = with_members(document.model().unwrap_or_default(), &of_model);
            document.set_model(Arc::from(model));
        }
    }
    for given in others {
        put(document, given);
    }
    Ok(())
}

/// The length that is asked about where no flag says one; `--seq-len max` is what the model has room for.
pub(super) fn assumed_length(
    document: &RequestDocument,
    kind: Kind,
    given: &mut [FlagValue],
) -> Option<FlagValue> {
    let most_tokens = most_tokens(document, kind);
    let is_most = |one: &&mut FlagValue| one.place == ["model", "seq_len"] && one.value == "max";
    if let Some(most) = given.iter_mut().find(is_most) {
        most.value = most_tokens.map_or(Value::from("max"), Value::from);
    }
    let says = |given: &FlagValue| {
        given.place[0] == "generation" || given.place.get(1).is_some_and(|at| at == "seq_len")
    };
    if given.iter().any(says) {
        return None;
    }
    Some(FlagValue::new(
        "--seq-len",
        &["model", "seq_len"],
        Value::from(most_tokens?.min(MOST_ASSUMED)),
    ))
}

/// The JSON text of a model with the members that flags set behind its own.
fn with_members(model: &str, given: &[&FlagValue]) -> String {
    let mut text = model.strip_suffix('}').unwrap_or(model).to_owned();
    for given in given {
        let name = Value::from(given.place[1].as_str());
        let _ = write!(text, ",{name}:{}", given.value);
    }
    text.push('}');
    text
}

/// What flags name several of: `seq_len` or `image_size`.
fn lengths<'g>(others: &[&'g FlagValue]) -> Option<&'g FlagValue> {
    let are_lengths = |given: &&&FlagValue| {
        given.place[0] == LENGTHS
            && given.place[1..]
                .first()
                .is_some_and(|name| SIZES.contains(&name.as_str()))
    };
    others.iter().find(are_lengths).copied()
}

/// Sets members of a request's model that flags give. What flags say of lengths takes the place of what the request says, be it one
/// or several.
fn change(
    document: &mut RequestDocument,
    given: &[&FlagValue],
    several: Option<&FlagValue>,
) -> Result<(), CliError> {
    let Some(first) = given.first().copied().or(several) else {
        return Ok(());
    };
    let has_lengths = |model: &str| SIZES.iter().any(|size| model.contains(size));
    if !document.members().is_object()
        || given.is_empty() && !document.model().is_some_and(has_lengths)
    {
        return Ok(());
    }
    let Some(model) = document.model() else {
        let problem = "the request has no `model` to change";
        return Err(CliError::flag(&first.flag, problem));
    };
    if model.len() > LARGEST_CHANGED {
        return Err(fixed(first));
    }
    let Ok(mut model) = serde_json::from_str::<Map<String, Value>>(model) else {
        // The reader of requests says what is wrong with the model.
        return Ok(());
    };
    if model.contains_key("exported") || model.contains_key("recorded") {
        return Err(fixed(first));
    }
    for given in given {
        model.insert(given.place[1].clone(), given.value.clone());
    }
    if let Some(several) = several {
        model.remove(&several.place[1]);
    }
    document.set_model(Arc::from(Value::Object(model).to_string()));
    let names_one = |given: &&FlagValue| SIZES.contains(&given.place[1].as_str());
    if given.iter().any(names_one) {
        document.take(LENGTHS);
    }
    Ok(())
}

/// Puts what a flag gives into its place.
fn put(document: &mut RequestDocument, given: &FlagValue) {
    let Some((outer, inner)) = given.place.split_first() else {
        return;
    };
    let was = document.members().get(outer);
    if let Some(value) = nested(was, inner, &given.value) {
        document.set(outer, value);
    }
}

/// A member's value with another in this place inside it; nothing where it is no object, which the reader of requests
/// says.
fn nested(was: Option<&Value>, place: &[String], value: &Value) -> Option<Value> {
    let Some((outer, inner)) = place.split_first() else {
        return Some(value.clone());
    };
    let mut members = match was {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(members)) => members.clone(),
        Some(_) => return None,
    };
    let inside = nested(members.get(outer), inner, value)?;
    members.insert(outer.clone(), inside);
    Some(Value::Object(members))
}

/// Exported graphs and recordings cannot be changed.
fn fixed(given: &FlagValue) -> CliError {
    let problem = "exported graphs and recordings have their sizes already; export or record the model again with others";
    CliError::flag(&given.flag, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built((mut document, kind): (RequestDocument, Kind), given: &[FlagValue]) -> Value {
        set(&mut document, kind, given).unwrap();
        assert_eq!(document.files(), None);
        serde_json::from_str(&document.text()).unwrap()
    }

    /// What a flag of this name gives for the member at this place.
    fn flag(name: &str, place: &[&str], value: impl Into<Value>) -> FlagValue {
        FlagValue::new(name, place, value.into())
    }

    fn request(text: &str) -> (RequestDocument, Kind) {
        let document = RequestDocument::from_json(text.as_bytes()).unwrap();
        (document, Kind::Request)
    }

    #[test]
    fn a_preset_and_flags_make_a_request() {
        let flags = [
            flag("--seq-len", &["model", "seq_len"], 512),
            flag("--precision", &["training", "precision"], "bf16"),
            flag("--optimizer", &["training", "optimizer"], "sgd"),
            flag("--target", &["target_batch"], 64),
        ];

        let document = built((preset("resnet50"), Kind::Name), &flags);

        let expected = serde_json::json!({
            "model": {"preset": "resnet50", "seq_len": 512},
            "training": {"precision": "bf16", "optimizer": "sgd"},
            "target_batch": 64,
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn a_config_is_given_as_it_is() {
        let text = r#"{"model_type": "gpt2", "n_embd": 1e2}"#;
        let mut document = config(text);
        let flags = [flag("--seq-len", &["model", "seq_len"], 8)];

        set(&mut document, Kind::File, &flags).unwrap();

        assert_eq!(
            &*document.text(),
            format!(r#"{{"model":{{"hf":{text},"seq_len":8}}}}"#)
        );
    }

    #[test]
    fn flags_go_before_a_file_and_leave_the_rest_of_it() {
        let source = request(
            r#"{"model": {"preset": "resnet50", "image_size": 64, "num_classes": 7},
                "training": {"precision": "fp16", "mode": "train"}, "device": "sim:t4"}"#,
        );
        let flags = [
            flag("--image-size", &["model", "image_size"], 32),
            flag("--precision", &["training", "precision"], "bf16"),
        ];

        let document = built(source, &flags);

        let expected = serde_json::json!({
            "model": {"preset": "resnet50", "image_size": 32, "num_classes": 7},
            "training": {"precision": "bf16", "mode": "train"},
            "device": "sim:t4",
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn flags_that_cannot_change_a_document_are_refused_or_left_to_the_reader() {
        let flags = [flag("--seq-len", &["model", "seq_len"], 8)];
        let refused = |(mut document, kind): (RequestDocument, Kind)| {
            let refused = set(&mut document, kind, &flags).unwrap_err();
            refused.into_problem().detail
        };

        let graph = request(r#"{"model": {"exported": {}}}"#);
        assert!(
            refused(graph)
                .starts_with("--seq-len: exported graphs and recordings have their sizes")
        );
        let none = request("{}");
        assert_eq!(
            refused(none),
            "--seq-len: the request has no `model` to change"
        );
        let odd = request(r#"{"model": 5}"#);
        assert_eq!(built(odd, &flags), serde_json::json!({"model": 5}));
        let odd = request(r#"{"model": {}, "training": "fp16"}"#);
        let precision = flag("--precision", &["training", "precision"], "bf16");
        assert_eq!(built(odd, &[precision])["training"], "fp16");
    }
}
