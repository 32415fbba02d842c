//! The request document that WHAT and flags make.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::flags::FlagValue;
use crate::cli::error::CliError;
use crate::model::{Request, RequestDocument, RequestError, room_for_tokens, room_for_tokens_of};

/// Where a model is in a request.
const MODEL: &str = "model";

/// Where several lengths are in a request, and what differs of them; a model has one of these.
const LENGTHS: &str = "lengths";
const SIZES: [&str; 2] = ["seq_len", "image_size"];

/// Largest description of a model, in bytes, whose members flags change: only graphs and lists of layers are larger.
const LARGEST_CHANGED: usize = 1 << 20;

/// What is asked as it was given: a request, and the contents of files in the place of its model.
#[derive(Debug)]
pub(super) struct Input {
    document: RequestDocument,
    files: Option<Files>,
    pub(super) kind: Kind,
}

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

/// Contents of files that take the place of a request's model.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// An exported graph, compressed or not.
    Graph(Vec<u8>),
    /// Recordings of PyTorch's allocator.
    Recordings(Vec<Vec<u8>>),
}

impl Input {
    /// A request.
    pub(super) fn request(document: RequestDocument) -> Input {
        Input {
            document,
            files: None,
            kind: Kind::Request,
        }
    }

    /// A request with nothing in it.
    pub(super) fn empty() -> Input {
        Input::request(RequestDocument::from(Value::Object(Map::new())))
    }

    /// The model of this name.
    pub(super) fn preset(name: &str) -> Input {
        Input::model(Kind::Name, "preset", &Value::from(name).to_string())
    }

    /// A model by the text of its Hugging Face config.
    pub(super) fn config(text: &str) -> Input {
        Input::model(Kind::File, "hf", text.trim_end())
    }

    fn model(kind: Kind, way: &str, description: &str) -> Input {
        let mut input = Input::empty();
        let model = format!("{{\"{way}\":{description}}}");
        input.document.set_model(Arc::from(model));
        Input { kind, ..input }
    }

    /// A model that is a file.
    pub(super) fn file(file: Files) -> Input {
        Input {
            files: Some(file),
            kind: Kind::File,
            ..Input::empty()
        }
    }

    /// The same with these files in the place of the model, where it is a request.
    pub(super) fn with_files(self, files: Option<Files>) -> Input {
        match self.kind {
            Kind::Request => Input { files, ..self },
            Kind::Name | Kind::File => self,
        }
    }

    /// The most tokens that samples of a model may have.
    pub(super) fn room_for_tokens(&self) -> Option<u64> {
        let model = || serde_json::from_str::<Value>(self.document.model()?).ok();
        match self.kind {
            Kind::Request => None,
            Kind::Name => room_for_tokens_of(model()?["preset"].as_str()?),
            Kind::File => room_for_tokens(&model()?["hf"]),
        }
    }

    /// Sets the members that flags give.
    pub(super) fn set(&mut self, given: &[FlagValue]) -> Result<(), CliError> {
        let (of_model, others): (Vec<&FlagValue>, Vec<&FlagValue>) =
            given.iter().partition(|given| given.place[0] == MODEL);
        let is_length = |given: &&FlagValue| given.place[1] == "seq_len";
        match (&self.files, of_model.first()) {
            (Some(Files::Graph(_)), Some(length)) if of_model.iter().all(is_length) => {
                let model = serde_json::json!({ "seq_len": length.value });
                self.document.set_model(Arc::from(model.to_string()));
            }
            (Some(_), Some(first)) => return Err(fixed(first)),
            (Some(_), None) => {}
            (None, _) if self.kind == Kind::Request => {
                change(&mut self.document, &of_model, lengths(&others))?;
            }
            (None, _) => {
                let model = self.document.model().unwrap_or_default();
                let model = with_members(model, &of_model);
                self.document.set_model(Arc::from(model));
            }
        }
        for given in others {
            put(&mut self.document, given);
        }
        Ok(())
    }

    /// Reads the request; `batches` are those of recordings that do not say it themselves.
    pub(super) fn read(self, batches: &[u64]) -> Result<Request, RequestError> {
        match self.files {
            None => Request::parse(self.document),
            Some(Files::Graph(graph)) => Request::parse_with_model(self.document, &graph),
            Some(Files::Recordings(files)) => {
                Request::parse_with_recordings(self.document, files, batches)
            }
        }
    }
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

    fn flag_value(flag: &str, place: &[&str], value: Value) -> FlagValue {
        FlagValue {
            flag: flag.to_owned(),
            place: place.iter().map(|name| (*name).to_owned()).collect(),
            value,
        }
    }

    fn built(mut input: Input, given: &[FlagValue]) -> Value {
        input.set(given).unwrap();
        assert_eq!(input.files, None);
        serde_json::from_str(&input.document.text()).unwrap()
    }

    fn request(text: &str) -> Input {
        Input::request(RequestDocument::from_json(text.as_bytes()).unwrap())
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

        let document = built(Input::preset("resnet50"), &flags);

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
        let mut input = Input::config(text);
        let flags = [flag_value(
            "--seq-len",
            &["model", "seq_len"],
            Value::from(8),
        )];

        input.set(&flags).unwrap();

        assert_eq!(
            &*input.document.text(),
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
        let flags = [flag_value(
            "--seq-len",
            &["model", "seq_len"],
            Value::from(8),
        )];
        let refused = |mut input: Input| input.set(&flags).unwrap_err().into_problem().detail;

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
        let precision = flag_value(
            "--precision",
            &["training", "precision"],
            Value::from("bf16"),
        );
        assert_eq!(built(odd, &[precision])["training"], "fp16");
    }
}
