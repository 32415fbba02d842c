//! What a file is, told by its content.

use std::fmt;
use std::io::Cursor;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::document::{self, Kind};
use super::flags::WAYS;
use crate::cli::arguments::hints;
use crate::limits::Text;
use crate::model::members::REQUEST;
use crate::model::{ModelFiles, RequestDocument, RequestError, exported, of_another_library};
use crate::recorded;

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
pub(super) fn tell(bytes: Vec<u8>) -> Result<(RequestDocument, Kind), RequestError> {
    let request = |document| (document, Kind::Request);
    let of = |files| Ok((document::empty().with_files(files), Kind::File));
    if exported::is_archive(&bytes) {
        let model = exported::model_of_archive(Cursor::new(bytes));
        return match model {
            Ok(graph) => of(ModelFiles::Graph(graph)),
            Err(error) => Err(RequestError::at("", error.to_string())),
        };
    }
    if recorded::is_recording(&bytes) {
        return of(ModelFiles::Recordings(vec![bytes], Vec::new()));
    }
    if bytes.starts_with(b"\x1f\x8b") {
        return of(ModelFiles::Graph(bytes));
    }
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let text = text.trim_ascii_start();
    if !text.starts_with(b"{") {
        return Err(RequestError::at("", unlike(text)));
    }
    let Ok(members) = members(text) else {
        // The reader of requests says what is wrong with the JSON, and where.
        return RequestDocument::from_bytes(bytes).map(request);
    };
    let has = |known: &[&str]| members.iter().any(|member| known.contains(&&**member));
    if has(&OF_GRAPHS) {
        return of(ModelFiles::Graph(bytes));
    }
    if has(&OF_CONFIGS) && !has(&["model"]) {
        return Ok((document::config(&String::from_utf8_lossy(text)), Kind::File));
    }
    let is_member = |name: &str| members.iter().any(|member| member == name);
    if let Some(problem) = of_a_trainer(text, is_member).filter(|_| !is_member("model")) {
        return Err(RequestError::at("", problem));
    }
    if let Some(problem) = of_another_library(is_member).filter(|_| !has(&["model"])) {
        return Err(RequestError::at("", problem));
    }
    // People write those of the model at the top of a request.
    let known = || REQUEST.names().chain(WAYS);
    let alike = |member: &String| {
        let nearest = RequestError::unknown("", "member", member, known());
        known().any(|name| name == member) || nearest.nearest.is_some()
    };
    if members.is_empty() || members.iter().any(alike) {
        return RequestDocument::from_bytes(bytes).map(request);
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
    Err(RequestError::at("", problem))
}

/// What to type in place of a file that says how is trained, and not what.
fn of_a_trainer(text: &[u8], has: impl Fn(&str) -> bool) -> Option<String> {
    if has("zero_optimization") || has("train_micro_batch_size_per_gpu") {
        return Some("it is a config of DeepSpeed, which is not modelled: `batchfit run --on CARD --gpus 8 -- python train.py` runs your own \
                     script with it on virtual GPUs".to_owned());
    }
    let kind = if has("base_model_name_or_path") {
        "an adapter of PEFT"
    } else if has("per_device_train_batch_size") || has("gradient_accumulation_steps") {
        "a trainer's arguments"
    } else {
        return None;
    };
    let settings: Map<String, Value> = serde_json::from_slice(text).ok()?;
    let lines = settings
        .iter()
        .map(|(key, value)| format!("{key}: {value}\n"));
    let lines: String = lines.collect();
    let asks = hints::of_settings(&lines)
        .or_else(|| hints::of_settings(&(lines + "model_name: MODEL\n")))?;
    Some(format!("this is {kind}, not a model: {asks}"))
}

/// Says what bytes that are no JSON object look like.
fn unlike(bytes: &[u8]) -> String {
    let looks = if bytes.is_empty() {
        "it is empty"
    } else if bytes.starts_with(b"\x80") {
        "it is a pickle: weights, or a memory snapshot, which --recorded reads, with --batches"
    } else if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        "it is text in UTF-16, as `>` of Windows PowerShell writes it: save it as UTF-8 (`| Out-File -Encoding utf8 FILE`)"
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
        "it is a script, which `batchfit run --on CARD -- python train.py` runs on a virtual GPU; a function of it that \
         builds a model is `batchfit fit train.py:build`"
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
