//! The request document that WHAT and flags make.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::flags::FlagValue;
use super::source::Source;
use crate::cli::error::CliError;
use crate::model::RequestDocument;

/// Where a model is in a request.
const MODEL: &str = "model";

/// Where several lengths are in a request, and what differs of them; a model has one of these.
const LENGTHS: &str = "lengths";
const SIZES: [&str; 2] = ["seq_len", "image_size"];

/// Largest description of a model, in bytes, whose members flags change: only graphs and lists of layers are larger.
const LARGEST_CHANGED: usize = 1 << 20;

/// Files that take the place of a request's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Files<'s> {
    /// An exported graph.
    Graph(&'s [u8]),
    /// Recordings.
    Recordings(&'s [Vec<u8>]),
}

/// The document, and the files that take the place of its model: those of `--model` or `--recorded`, or WHAT itself.
pub(super) fn build<'s>(
    source: &'s Source,
    files: Option<Files<'s>>,
    given: &[FlagValue],
) -> Result<(RequestDocument, Option<Files<'s>>), CliError> {
    let (of_model, others): (Vec<&FlagValue>, Vec<&FlagValue>) =
        given.iter().partition(|given| given.place[0] == MODEL);
    let empty = || RequestDocument::from(Value::Object(Map::new()));
    let (mut document, files) = match (source, files) {
        (Source::Request(document), Some(files)) => (document.clone(), Some(files)),
        (Source::Request(document), None) => {
            (changed(document, &of_model, lengths(&others))?, None)
        }
        (Source::Config(config), _) => (
            with_model(&Map::new(), &described("hf", config, &of_model))?,
            None,
        ),
        (Source::Graph(graph), _) => (empty(), Some(Files::Graph(graph))),
        (Source::Recording(recording), _) => (
            empty(),
            Some(Files::Recordings(std::slice::from_ref(recording))),
        ),
        (Source::Preset(name), _) => {
            let name = Value::from(*name).to_string();
            (
                with_model(&Map::new(), &described("preset", &name, &of_model))?,
                None,
            )
        }
    };
    let is_length = |given: &&&FlagValue| given.place[1] == "seq_len";
    match (files, of_model.first()) {
        (Some(Files::Graph(_)), Some(length)) if of_model.iter().all(|given| is_length(&given)) => {
            let members = document.members().as_object().cloned().unwrap_or_default();
            let model = serde_json::json!({ "seq_len": length.value });
            document = with_model(&members, &model.to_string())?;
        }
        (Some(_), Some(first)) => return Err(fixed(first)),
        (None, _) | (_, None) => {}
    }
    for given in others {
        put(&mut document, given);
    }
    Ok((document, files))
}

/// The JSON text of a model that is described in one way, with the members that flags set.
fn described(way: &str, description: &str, given: &[&FlagValue]) -> String {
    let mut text = format!("{{\"{way}\":{}", description.trim_end());
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

/// A request whose model has the members that flags set. What flags say of lengths takes the place of what the request says, be it one
/// or several.
fn changed(
    document: &RequestDocument,
    given: &[&FlagValue],
    several: Option<&FlagValue>,
) -> Result<RequestDocument, CliError> {
    let first = given.first().copied().or(several);
    let (Some(first), Some(members)) = (first, document.members().as_object()) else {
        return Ok(document.clone());
    };
    let names_one = given
        .iter()
        .any(|given| SIZES.contains(&given.place[1].as_str()));
    let mut members = members.clone();
    if names_one {
        members.remove(LENGTHS);
    }
    if given.is_empty()
        && document
            .model()
            .is_none_or(|model| !SIZES.iter().any(|size| model.contains(size)))
    {
        return Ok(document.clone());
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
        return Ok(document.clone());
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
    with_model(&members, &Value::Object(model).to_string())
}

/// A request of these members, with this JSON text as its model.
fn with_model(members: &Map<String, Value>, model: &str) -> Result<RequestDocument, CliError> {
    let mut text = format!("{{\"{MODEL}\":{model}");
    for (name, value) in members.iter().filter(|(name, _)| *name != MODEL) {
        let _ = write!(text, ",{}:{value}", Value::from(name.as_str()));
    }
    text.push('}');
    RequestDocument::read(Arc::from(text)).map_err(CliError::Invalid)
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

    fn flag_value(flag: &str, place: &[&str], value: Value) -> FlagValue {
        FlagValue {
            flag: flag.to_owned(),
            place: place.iter().map(|name| (*name).to_owned()).collect(),
            value,
        }
    }

    fn built(source: &Source, given: &[FlagValue]) -> Value {
        let (document, graph) = build(source, None, given).unwrap();
        assert_eq!(graph, None);
        serde_json::from_str(&document.text()).unwrap()
    }

    fn request(text: &str) -> Source {
        let document = RequestDocument::from_json(text.as_bytes()).unwrap();
        Source::Request(document)
    }

    #[test]
    fn a_preset_and_flags_make_a_request() {
        let flags = [
            flag_value("--seq-len", &["model", "seq_len"], Value::from(512)),
            flag_value(
                "--precision",
                &["training", "precision"],
                Value::from("bf16"),
            ),
            flag_value(
                "--optimizer",
                &["training", "optimizer"],
                Value::from("sgd"),
            ),
            flag_value("--target", &["target_batch"], Value::from(64)),
        ];

        let document = built(&Source::Preset("resnet50"), &flags);

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
        let source = Source::Config(Arc::from(text));
        let flags = [flag_value(
            "--seq-len",
            &["model", "seq_len"],
            Value::from(8),
        )];

        let (document, _) = build(&source, None, &flags).unwrap();

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
            flag_value("--image-size", &["model", "image_size"], Value::from(32)),
            flag_value(
                "--precision",
                &["training", "precision"],
                Value::from("bf16"),
            ),
        ];

        let document = built(&source, &flags);

        let expected = serde_json::json!({
            "model": {"preset": "resnet50", "image_size": 32, "num_classes": 7},
            "training": {"precision": "bf16", "mode": "train"},
            "device": "sim:t4",
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn flags_that_cannot_change_a_document_are_refused_or_left_to_the_reader() {
        let flags = [flag_value(
            "--seq-len",
            &["model", "seq_len"],
            Value::from(8),
        )];
        let refused = |source: &Source| {
            build(source, None, &flags)
                .unwrap_err()
                .into_problem()
                .detail
        };

        let graph = request(r#"{"model": {"exported": {}}}"#);
        assert!(
            refused(&graph)
                .starts_with("--seq-len: exported graphs and recordings have their sizes")
        );
        let none = request("{}");
        assert_eq!(
            refused(&none),
            "--seq-len: the request has no `model` to change"
        );
        let odd = request(r#"{"model": 5}"#);
        assert_eq!(built(&odd, &flags), serde_json::json!({"model": 5}));
        let odd = request(r#"{"model": {}, "training": "fp16"}"#);
        let precision = flag_value(
            "--precision",
            &["training", "precision"],
            Value::from("bf16"),
        );
        assert_eq!(built(&odd, &[precision])["training"], "fp16");
    }
}
