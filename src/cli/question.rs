//! From files and flags to a request.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use super::arguments;
use super::trouble::Trouble;
use crate::device::sim;
use crate::model::{Request, RequestDocument};

/// Reads the request, with what the flags put in the place of its fields.
pub(super) fn read(question: &arguments::Question) -> Result<Request, Trouble> {
    let text = read_bytes(&question.request)?;
    let mut document = RequestDocument::from_json(&text).map_err(Trouble::Invalid)?;
    if let Some(device) = &question.device {
        document.set("device", device.as_str());
    }
    if let Some(limit) = &question.memory_limit {
        document.set("memory_limit", limit.as_str());
    }
    let known_sims = sim::names();
    match &question.model {
        None => Request::parse(document, &known_sims),
        Some(file) => Request::parse_with_model(document, &read_bytes(file)?, &known_sims),
    }
    .map_err(Trouble::Invalid)
}

/// Reads a file, or stdin for `-`.
pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, Trouble> {
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
