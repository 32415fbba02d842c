//! The request as it was written.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::schema::RequestSchema;
use crate::model::invalid::Invalid;

/// The request as it was written: stored and given back unchanged.
///
/// [`Request::parse`](super::Request::parse) says what may be in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestDocument(pub Value);

impl RequestDocument {
    /// Reads JSON text.
    pub fn from_json(text: &[u8]) -> Result<RequestDocument, Invalid> {
        // Some editors begin every file with a byte order mark.
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        serde_json::from_slice(text)
            .map(RequestDocument)
            .map_err(|error| {
                let problem = error.to_string();
                let clause = problem.split(" at line ").next().unwrap_or(&problem);
                Invalid::at(
                    "",
                    format!(
                        "the request is not valid JSON at line {}, column {}: {clause}",
                        error.line(),
                        error.column()
                    ),
                )
            })
    }

    /// Replaces a field of the top level, as the flags of the command line do.
    pub fn set(&mut self, field: &str, value: impl Into<Value>) {
        if let Value::Object(fields) = &mut self.0 {
            fields.insert(field.to_owned(), value.into());
        }
    }
}

impl PartialSchema for RequestDocument {
    fn schema() -> RefOr<Schema> {
        RequestSchema::schema()
    }
}

impl ToSchema for RequestDocument {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Request")
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        RequestSchema::schemas(schemas);
    }
}
