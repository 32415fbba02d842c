//! From files and flags to a request.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::{Value, json};

use super::arguments;
use super::trouble::Trouble;
use crate::model::Request;

/// Reads the request with whatever flags put in its place.
pub(super) fn read(question: &arguments::Question) -> Result<Request, Trouble> {
    let text = read_bytes(&question.request)?;
    let mut document: Value =
        serde_json::from_slice(&text).map_err(|error| Trouble::NotJson {
            path: question.request.clone(),
            detail: error.to_string(),
        })?;
    if let Value::Object(fields) = &mut document {
        if let Some(device) = &question.device {
            fields.insert("device".to_owned(), json!(device));
        }
        if let Some(limit) = &question.memory_limit {
            let bytes = limit.parse::<u64>().ok();
            let limit = bytes.map_or_else(|| json!(limit), |bytes| json!(bytes));
            fields.insert("memory_limit".to_owned(), limit);
        }
    }
    Request::parse(document).map_err(Trouble::Invalid)
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, Trouble> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    bytes.map_err(|source| Trouble::Unreadable {
        path: path.to_owned(),
        source,
    })
}
