//! The request as it was written.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::source::{self, ModelSchema};
use crate::limits::{AnyValue, LimitExceeded, Text, clause, insert_once, measured, with_budget};
use crate::model::{Digest, Reference};
use batchfit_models::RequestError;
use batchfit_models::members::{OBJECTS, REQUEST, schema_of};

/// What the members of a request may take in memory, its model apart: they are a few words and numbers.
const MEMBERS_BYTES: usize = 4 << 20;

/// Longest model that stands for one that was put aside, in bytes of JSON: one way to describe it, and a digest.
const LONGEST_ASIDE: usize = 200;

/// The member that may be megabytes, and stays text.
const MODEL: &str = "model";

/// The request as it was written: stored and given back unchanged.
///
/// [`Request::parse`](super::Request::parse) says what may be in it. Cloning it shares the text of the model, which
/// nothing here copies: it may be most of a gigabyte.
#[derive(Clone)]
pub struct RequestDocument {
    /// The members, with nothing in the place of the model; or whatever there is instead of an object.
    members: Value,
    /// The JSON text of the model, and where it is in a longer one.
    model: Option<(Arc<str>, Range<usize>)>,
    /// The whole text as it was read, until a member changes.
    read: Option<Arc<str>>,
    /// What is read in the place of the model.
    pub(super) files: Option<ModelFiles>,
    /// Bytes of the heap that reading it took, and what it asks, where they are counted: without its texts.
    pub(super) parsed: usize,
}

/// Contents of files that take the place of a request's model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFiles {
    /// An exported graph, gzipped or not.
    Graph(Vec<u8>),
    /// Recordings, and the batches of those that do not say it themselves, or none.
    Recordings(Vec<Vec<u8>>, Vec<u64>),
}

impl PartialEq for RequestDocument {
    fn eq(&self, other: &RequestDocument) -> bool {
        self.members == other.members && self.model() == other.model()
    }
}

impl fmt::Debug for RequestDocument {
    /// Leaves out the model.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.model().map_or(0, str::len);
        write!(f, "{} with a model of {bytes} bytes", self.members)
    }
}

impl RequestDocument {
    /// Reads JSON text.
    pub fn from_json(text: &[u8]) -> Result<RequestDocument, RequestError> {
        // Some editors begin every file with a byte order mark.
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let text = std::str::from_utf8(text).map_err(|error| {
            let before = &text[..error.valid_up_to()];
            let line = before.split(|byte| *byte == b'\n');
            let column = line.clone().next_back().map_or(0, <[u8]>::len);
            not_json(line.count(), column + 1, "invalid unicode code point")
        })?;
        RequestDocument::read(Arc::from(text.trim_ascii()))
    }

    /// Reads JSON text, of which no second copy is kept meanwhile.
    pub fn from_bytes(text: Vec<u8>) -> Result<RequestDocument, RequestError> {
        let shared: Option<Arc<str>> = match std::str::from_utf8(&text) {
            Ok(valid) if !valid.starts_with('\u{feff}') => Some(Arc::from(valid.trim_ascii())),
            Ok(_) | Err(_) => None,
        };
        match shared {
            Some(shared) => {
                drop(text);
                RequestDocument::read(shared)
            }
            None => RequestDocument::from_json(&text),
        }
    }

    /// Reads JSON text that is shared from then on.
    pub fn read(text: Arc<str>) -> Result<RequestDocument, RequestError> {
        let ((members, excess), parsed) =
            measured(|| with_budget(MEMBERS_BYTES, || read_members(&text, [MODEL])));
        if excess == Some(LimitExceeded::Memory) {
            return Err(RequestError::at(
                "",
                format!(
                    "the members of the request beside its model would take more than {} MiB of memory",
                    MEMBERS_BYTES >> 20
                ),
            ));
        }
        let (members, [model]) =
            members.map_err(|error| not_json(error.line(), error.column(), &clause(&error)))?;
        let model = model.map(|model| (Arc::clone(&text), place(&text, model)));
        let mut document = RequestDocument {
            members,
            model,
            read: Some(text),
            files: None,
            parsed,
        };
        let is_name = |text: &&str| text.starts_with('"') && text.len() < LONGEST_ASIDE;
        let name = document
            .model()
            .filter(is_name)
            .map(serde_json::from_str::<String>);
        if let Some(Ok(name)) = name {
            document.set_model(Arc::from(json!({ "preset": name }).to_string()));
        }
        Ok(document)
    }

    /// The members, with null in the place of the model; or whatever there is instead of an object.
    pub fn members(&self) -> &Value {
        &self.members
    }

    /// The JSON text of the model, unless it is null or absent.
    pub fn model(&self) -> Option<&str> {
        let model = self
            .model
            .as_ref()
            .map(|(text, range)| &text[range.clone()]);
        model.filter(|model| *model != "null")
    }

    /// Bytes of the heap that it keeps, and what was read of it, where they are counted.
    pub(super) fn held(&self) -> usize {
        let model = self.model.as_ref().map(|(text, _)| text);
        self.parsed + self.read.as_ref().or(model).map_or(0, |text| text.len())
    }

    /// The same with these files in the place of its model, which is not looked at then, unless it is nothing but `seq_len` and they are
    /// a graph.
    #[must_use]
    pub fn with_files(self, files: impl Into<Option<ModelFiles>>) -> RequestDocument {
        let files = files.into();
        RequestDocument { files, ..self }
    }

    /// What takes the place of the model.
    pub fn files(&self) -> Option<&ModelFiles> {
        self.files.as_ref()
    }

    /// The uploads that the model names.
    pub fn references(&self) -> Result<Vec<Reference>, RequestError> {
        self.model().map_or(Ok(Vec::new()), source::references)
    }

    /// The digest that stands in the place of the model, where the whole of it was put aside: see
    /// [`Request::shown`](super::Request::shown).
    pub fn model_aside(&self) -> Option<Digest> {
        let text = self.model().filter(|text| text.len() < LONGEST_ASIDE)?;
        let model: Value = serde_json::from_str(text).ok()?;
        let named = source::WAYS.iter().find_map(|way| model.get(way)?.as_str());
        Digest::parse(named?)
    }

    /// The same request with this JSON text of its model in place, which [`DetachedModel`](super::DetachedModel) has.
    pub fn with_model(mut self, model: &[u8]) -> Result<RequestDocument, RequestError> {
        let text = std::str::from_utf8(model).map_err(|error| {
            RequestError::at("/model", format!("the stored model is damaged: {error}"))
        })?;
        self.set_model(Arc::from(text));
        Ok(self)
    }

    /// The text that the model is part of, and where in it a part of the model is.
    pub(super) fn locate(&self, part: &str) -> (Arc<str>, Range<usize>) {
        let (text, _) = self.model.as_ref().expect("only a model has parts");
        (Arc::clone(text), place(text, part))
    }

    /// The JSON text.
    pub fn text(&self) -> Arc<str> {
        match &self.read {
            Some(read) => Arc::clone(read),
            None => Arc::from(self.to_text()),
        }
    }

    /// Takes a member of the top level out.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        let taken = self.members.as_object_mut()?.shift_remove(field)?;
        self.read = None;
        Some(taken)
    }

    /// Replaces a field of the top level, as the flags of the command line do.
    pub fn set(&mut self, field: &str, value: impl Into<Value>) {
        if let Value::Object(fields) = &mut self.members {
            fields.insert(field.to_owned(), value.into());
            self.read = None;
        }
    }

    /// Changes members by a JSON merge patch (RFC 7396). A model that is more than a preset or a config is left as it is.
    pub(super) fn merge(&mut self, patch: &Value) {
        let Some(changes) = patch.as_object() else {
            return;
        };
        for (key, change) in changes {
            if key == MODEL {
                let model = self.model().map(serde_json::from_str::<Value>);
                if let Some(Ok(mut model)) = model {
                    merge(&mut model, change);
                    self.set_model(Arc::from(model.to_string()));
                }
            } else if let Value::Object(fields) = &mut self.members {
                merge(fields.entry(key).or_insert(Value::Null), change);
                self.read = None;
            }
        }
    }

    /// Puts the word that was meant, or else nothing, into the place of a value that is wrong; `None` where there is no value.
    pub(super) fn correct(&mut self, wrong: &RequestError) -> Option<()> {
        let put = |members: &mut Value, place: &str| {
            let found = members.pointer_mut(place).filter(|it| !it.is_null())?;
            *found = wrong.nearest.clone().map_or(Value::Null, Value::from);
            Some(())
        };
        if wrong.pointer.starts_with("/model/") {
            let mut model = serde_json::from_str(self.model()?).ok()?;
            put(&mut model, &wrong.pointer["/model".len()..])?;
            self.set_model(Arc::from(model.to_string()));
        } else {
            put(&mut self.members, &wrong.pointer)?;
            self.read = None;
        }
        Some(())
    }

    /// Replaces the model by this JSON text.
    pub fn set_model(&mut self, model: Arc<str>) {
        if let Value::Object(fields) = &mut self.members {
            fields.insert(MODEL.to_owned(), Value::Null);
            let whole = 0..model.len();
            self.model = Some((model, whole));
            self.read = None;
        }
    }

    /// The text again, from the members and the text of the model.
    fn to_text(&self) -> String {
        let Value::Object(fields) = &self.members else {
            return self.members.to_string();
        };
        let model = self.model();
        let mut text = String::with_capacity(model.map_or(0, str::len) + (1 << 10));
        text.push('{');
        for (key, value) in fields {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&Value::from(key.as_str()).to_string());
            text.push(':');
            match model {
                Some(model) if key == MODEL => text.push_str(model),
                _ => text.push_str(&value.to_string()),
            }
        }
        text.push('}');
        text
    }
}

/// Applies a JSON merge patch (RFC 7396).
fn merge(to: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        to.clone_from(patch);
        return;
    };
    if !to.is_object() {
        *to = Value::Object(Map::new());
    }
    let Value::Object(members) = to else {
        return;
    };
    for (key, change) in changes {
        if change.is_null() {
            members.remove(key);
        } else {
            merge(members.entry(key).or_insert(Value::Null), change);
        }
    }
}

/// Where in a text a part of it is.
fn place(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - text.as_ptr().addr();
    start..start + part.len()
}

impl From<Value> for RequestDocument {
    fn from(value: Value) -> RequestDocument {
        let text = Arc::from(value.to_string());
        // Nothing larger than what was in memory already.
        RequestDocument::read(text).unwrap_or_else(|_| RequestDocument {
            members: Value::Null,
            model: None,
            read: None,
            files: None,
            parsed: 0,
        })
    }
}

fn not_json(line: usize, column: usize, clause: &str) -> RequestError {
    let problem =
        format!("the request is not valid JSON at line {line}, column {column}: {clause}");
    RequestError {
        is_malformed: true,
        ..RequestError::at("", problem)
    }
}

/// Reads an object, or whatever there is instead. Members of these names, which may be megabytes, stay text, with null in their places.
pub(super) fn read_members<'t, const N: usize>(
    text: &'t str,
    names: [&'static str; N],
) -> serde_json::Result<(Value, [Option<&'t str>; N])> {
    if !text.starts_with('{') {
        return serde_json::from_str(text).map(|AnyValue(other)| (other, [None; N]));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let members = json.deserialize_map(Members(names))?;
    json.end().map(|()| members)
}

struct Members<const N: usize>([&'static str; N]);

impl<'de, const N: usize> Visitor<'de> for Members<N> {
    type Value = (Value, [Option<&'de str>; N]);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut members = Map::new();
        let mut texts = [None; N];
        while let Some(key) = map.next_key::<Text<'de>>()? {
            let value = match self.0.iter().position(|name| **name == *key) {
                Some(place) => {
                    texts[place] = Some(map.next_value::<&'de RawValue>()?.get());
                    Value::Null
                }
                None => map.next_value::<AnyValue>()?.0,
            };
            insert_once(&mut members, &key, value)?;
        }
        Ok((Value::Object(members), texts))
    }
}

impl Serialize for RequestDocument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.text();
        let text: &RawValue = serde_json::from_str(&text).map_err(serde::ser::Error::custom)?;
        text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RequestDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RequestDocument, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        RequestDocument::from_json(text.get().as_bytes()).map_err(de::Error::custom)
    }
}

impl PartialSchema for RequestDocument {
    fn schema() -> RefOr<Schema> {
        Schema::Object(schema_of(&REQUEST)).into()
    }
}

impl ToSchema for RequestDocument {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Request")
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((ModelSchema::name().into(), ModelSchema::schema()));
        ModelSchema::schemas(schemas);
        for object in OBJECTS {
            let schema = Schema::Object(schema_of(object));
            schemas.push((object.schema.to_owned(), schema.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_given_once() {
        let twice = br#"{"model": {}, "device": "sim:t4", "device": "sim:h200"}"#;

        let refused = RequestDocument::from_json(twice).unwrap_err();

        assert!(
            refused.problem.contains(r#""device" is given twice"#),
            "{refused:?}"
        );
    }
}
