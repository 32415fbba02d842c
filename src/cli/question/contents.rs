//! What a file is, told by its content.

use std::fmt;
use std::io::Cursor;
use std::sync::Arc;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

use super::flags::WAYS;
use crate::bounded::Text;
use crate::model::members::REQUEST;
use crate::model::{Invalid, RequestDocument, exported, of_another_library};
use crate::recorded;

/// What a file can be.
#[derive(Debug)]
pub(super) enum Contents {
    /// A request.
    Request(RequestDocument),
    /// The JSON text of a Hugging Face config.
    Config(Arc<str>),
    /// A graph that `torch.export` saved, compressed or not.
    Graph(Vec<u8>),
    /// A recording of PyTorch's allocator.
    Recording(Vec<u8>),
}

/// What is read, for errors about everything else.
const EXPECTED: &str = "a request (JSON with `model`), a Hugging Face config (JSON with `model_type`), a graph that \
     torch.export saved (.json, .json.gz, .pt2) or a recording";

/// Members that tell a Hugging Face config.
const OF_CONFIGS: [&str; 2] = ["model_type", "architectures"];

/// Members that tell an exported graph.
const OF_GRAPHS: [&str; 2] = ["graph_module", "range_constraints"];

/// Most members of an object that are looked at: configs have a hundred.
const MOST_MEMBERS: usize = 1000;

/// Tells what these bytes are; the error is a clause about the file that they are from.
pub(super) fn tell(bytes: Vec<u8>) -> Result<Contents, Invalid> {
    if exported::is_archive(&bytes) {
        let model = exported::model_of_archive(Cursor::new(bytes));
        return model
            .map(Contents::Graph)
            .map_err(|error| Invalid::at("", error.to_string()));
    }
    if recorded::is_recording(&bytes) {
        return Ok(Contents::Recording(bytes));
    }
    if bytes.starts_with(b"\x1f\x8b") {
        return Ok(Contents::Graph(bytes));
    }
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let text = text.trim_ascii_start();
    if !text.starts_with(b"{") {
        return Err(Invalid::at("", unlike(text)));
    }
    let Ok(members) = members(text) else {
        // Whoever reads requests says what is wrong with the JSON, and where.
        return RequestDocument::from_bytes(bytes).map(Contents::Request);
    };
    let has = |known: &[&str]| members.iter().any(|member| known.contains(&&**member));
    if has(&OF_GRAPHS) {
        return Ok(Contents::Graph(bytes));
    }
    if has(&OF_CONFIGS) && !has(&["model"]) {
        let text = String::from_utf8_lossy(text).into_owned();
        return Ok(Contents::Config(Arc::from(text)));
    }
    let is_member = |name: &str| members.iter().any(|member| member == name);
    if let Some(problem) = of_another_library(is_member).filter(|_| !has(&["model"])) {
        return Err(Invalid::at("", problem));
    }
    // People write those of the model at the top of a request.
    let known = || REQUEST.names().chain(WAYS);
    let alike = |member: &String| {
        let nearest = Invalid::unknown("", "member", member, known());
        known().any(|name| name == member) || nearest.nearest.is_some()
    };
    if members.is_empty() || members.iter().any(alike) {
        return RequestDocument::from_bytes(bytes).map(Contents::Request);
    }
    let first: Vec<String> = members
        .iter()
        .take(3)
        .map(|member| format!("{member:?}"))
        .collect();
    let problem = format!(
        "it is JSON with {}, and none of these: {EXPECTED}",
        first.join(", ")
    );
    Err(Invalid::at("", problem))
}

/// Says what bytes that are no JSON object look like.
fn unlike(bytes: &[u8]) -> String {
    let looks = if bytes.is_empty() {
        "it is empty"
    } else if bytes.starts_with(b"\x80") {
        "it is a pickle: weights, or a memory snapshot, which --recorded reads, with --batches"
    } else if bytes.get(8) == Some(&b'{') {
        "it holds weights; the config.json beside them describes the model"
    } else if bytes.contains(&0)
        || std::str::from_utf8(bytes.get(..64).unwrap_or(bytes))
            .is_err_and(|error| error.error_len().is_some())
    {
        "it is a binary file"
    } else if [&b"import "[..], b"from ", b"#!", b"\"\"\""]
        .iter()
        .any(|start| bytes.starts_with(start))
    {
        "it is a script, which `batchfit run --on CARD -- python train.py` runs on a virtual GPU, and `batchfit export MODULE:BUILD` \
         writes the graph of a model of"
    } else {
        "it is not a JSON object"
    };
    format!("{looks}; what is read is {EXPECTED}")
}

/// The names of the members of a JSON object, whose values are only checked to be JSON.
fn members(text: &[u8]) -> Result<Vec<String>, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let members = json.deserialize_map(Names)?;
    json.end()?;
    Ok(members)
}

/// Collects the names of members.
struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut names = Vec::new();
        while let Some(name) = map.next_key::<Text<'de>>()? {
            map.next_value::<IgnoredAny>()?;
            if names.len() < MOST_MEMBERS {
                names.push(name.to_string());
            }
        }
        Ok(names)
    }
}
