//! From files and flags to a request.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use super::arguments;
use super::trouble::Trouble;
use crate::device::sim;
use crate::model::{Invalid, Request, RequestDocument, exported};

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
        Some(file) => Request::parse_with_model(document, &read_model(file)?, &known_sims),
    }
    .map_err(Trouble::Invalid)
}

/// Reads a model file. Of an archive only the model, which may lie beside gigabytes of weights.
fn read_model(path: &Path) -> Result<Vec<u8>, Trouble> {
    if path == Path::new("-") {
        return read_bytes(path);
    }
    let unreadable = |source| Trouble::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut file = BufReader::new(File::open(path).map_err(unreadable)?);
    if exported::is_archive(file.fill_buf().map_err(unreadable)?) {
        return exported::model_of_archive(file)
            .map_err(|error| Trouble::Invalid(Invalid::at("/model", error.to_string())));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
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
