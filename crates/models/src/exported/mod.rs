//! Reads a model exported by PyTorch: the forward pass with its loss, in the JSON that
//! `torch._export.serde` writes and a `.pt2` archive contains.
//!
//! The export must have been made with a symbolic batch as its only dynamic dimension, and return one
//! scalar. What the exporting machine leaves in it (devices, layouts, `cudnn_enabled`, metadata checks)
//! is ignored. Every type that PyTorch recorded is compared with the one inferred from the operands, so
//! a graph that is read is a graph that is understood. Nothing here panics on a malformed document.

mod archive;
mod error;
mod functions;
mod lower;
mod modules;
mod prediction;
mod problems;
mod recorded;
mod region;
mod side_table;
mod signature;
mod sizes;
mod symbol;
mod unknown;

use std::borrow::Cow;
use std::io::{Cursor, Read};

use flate2::read::MultiGzDecoder;
use serde_json::Value;

pub use archive::model_of_archive_within;
pub use archive::{is_archive, model_of_archive};
pub use error::ExportedError;
pub use error::not_understood;
pub(crate) use prediction::{fill_inputs, prediction};
pub use problems::NodeProblem;
pub use unknown::not_supported;
pub use unknown::{UnknownOperator, UnknownOps};

use crate::aten::schema::Document;
use crate::graph::Graph;
use crate::limits::{LEAST_ACCOUNT, LimitExceeded, clause, shorten_sentence, with_budget};

/// Largest document read, after decompression. An export of 100,000 nodes takes a few tens of megabytes; the
/// service reads less.
pub(crate) const LIMIT_BYTES: u64 = 1 << 30;

/// An exported graph, and what had to be assumed in reading it.
#[derive(Debug, Clone, PartialEq)]
pub struct Exported {
    /// The forward pass with its loss.
    pub graph: Graph,
    /// Sentences for the answer, such as which parameters were taken to be tied.
    pub notes: Vec<String>,
    /// What was assumed where the file does not say enough, a sentence each: the answer is as good as these are.
    pub assumptions: Vec<String>,
    /// What is not understood of it, where that was no reason to refuse it: a sentence for people.
    pub not_understood: Option<String>,
}

/// Reads the bytes of a model file: JSON, gzipped or not, or an archive that contains it.
pub fn parse(file: &[u8]) -> Result<Exported, ExportedError> {
    parse_with(file, UnknownOps::Refuse)
}

/// What is assumed of a graph where it does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Assumptions {
    /// What becomes of operators that are not known.
    pub unknown_ops: UnknownOps,
    /// How many percent of what values may choose they are taken to choose; all, or even parts, if none.
    pub chosen_percent: Option<u64>,
    /// What a second symbolic size, of samples, stands for; none where the batch is the only one.
    pub seq_len: Option<u64>,
    /// Whether PyTorch itself runs what is not understood, so that it is no reason to refuse the graph.
    pub recorded: bool,
}

/// [`parse`], with a say in what becomes of operators that are not known.
pub fn parse_with(file: &[u8], unknown_ops: UnknownOps) -> Result<Exported, ExportedError> {
    let assumptions = Assumptions {
        unknown_ops,
        ..Assumptions::default()
    };
    parse_assuming(file, assumptions)
}

/// [`parse`], with a say in all that may be assumed.
pub fn parse_assuming(file: &[u8], assumptions: Assumptions) -> Result<Exported, ExportedError> {
    parse_text(&unpack(file)?, assumptions)
}

/// Reads the JSON text of a graph.
pub fn parse_text(text: &[u8], assumptions: Assumptions) -> Result<Exported, ExportedError> {
    read(text, |document| lower::lower(document, assumptions))
}

/// How many nodes the graph in this JSON text has. The text is read within the same bounds; what its operators are is
/// left to [`parse_text`].
pub fn count_nodes(text: &[u8]) -> Result<usize, ExportedError> {
    read(text, |document| Ok(document.graph_module.graph.nodes.len()))
}

/// Reads the JSON text of a graph, and has it looked at within the same account.
fn read<T>(
    text: &[u8],
    look: impl FnOnce(&Document<'_>) -> Result<T, ExportedError>,
) -> Result<T, ExportedError> {
    let limit_bytes = LEAST_ACCOUNT.max(text.len());
    let (exported, excess) = with_budget(limit_bytes, || {
        let document: Document<'_> = serde_json::from_slice(text)?;
        Ok(look(&document))
    });
    match (exported, excess) {
        (Ok(exported), None) => exported,
        (_, Some(LimitExceeded::Nodes)) => Err(ExportedError::TooManyNodes),
        (_, Some(LimitExceeded::Names)) => Err(ExportedError::TooManyNames),
        (_, Some(LimitExceeded::Cancelled)) => Err(ExportedError::Cancelled),
        (_, Some(LimitExceeded::Memory)) => Err(ExportedError::TooComplex { limit_bytes }),
        (Err(error), None) => Err(if serde_json::Error::is_data(&error) {
            with_budget(limit_bytes, || unreadable(text)).0
        } else {
            syntax(&error)
        }),
    }
}

/// Reads a graph that is part of a larger document.
pub fn parse_value(graph: &Value) -> Result<Exported, ExportedError> {
    parse_text(graph.to_string().as_bytes(), Assumptions::default())
}

/// The JSON text of a model file.
pub fn unpack(file: &[u8]) -> Result<Cow<'_, [u8]>, ExportedError> {
    let limit_bytes = LIMIT_BYTES;
    if is_archive(file) {
        return model_of_archive(Cursor::new(file)).map(Cow::Owned);
    }
    let text = if file.starts_with(&[0x1f, 0x8b]) {
        let mut text = Vec::new();
        MultiGzDecoder::new(file)
            .take(limit_bytes + 1)
            .read_to_end(&mut text)
            .map_err(|error| ExportedError::Compressed {
                problem: error.to_string(),
            })?;
        Cow::Owned(text)
    } else {
        Cow::Borrowed(file)
    };
    if text.len() as u64 > limit_bytes {
        return Err(ExportedError::TooLarge { limit_bytes });
    }
    Ok(text)
}

/// Reads the document once more, slowly, to find out where it differs from what PyTorch writes.
fn unreadable(text: &[u8]) -> ExportedError {
    let mut json = serde_json::Deserializer::from_slice(text);
    match serde_path_to_error::deserialize::<_, Document<'_>>(&mut json) {
        Err(error) => at_path(&error),
        Ok(_) => unreachable_shape(),
    }
}

fn unreachable_shape() -> ExportedError {
    ExportedError::Refused {
        pointer: String::new(),
        problem: "it is not an exported graph".into(),
    }
}

fn at_path(error: &serde_path_to_error::Error<serde_json::Error>) -> ExportedError {
    let mut pointer = String::new();
    for segment in error.path() {
        use serde_path_to_error::Segment;
        match segment {
            Segment::Seq { index } => pointer = format!("{pointer}/{index}"),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                pointer.push('/');
                pointer.push_str(&lower::escape(key));
            }
            Segment::Unknown => {}
        }
    }
    // Without the position, which is that of the whole file; the pointer says it better.
    ExportedError::Refused {
        pointer: shorten_sentence(pointer),
        problem: format!("not as PyTorch writes it: {}", clause(error.inner())),
    }
}

fn syntax(error: &serde_json::Error) -> ExportedError {
    ExportedError::Syntax {
        line: error.line(),
        column: error.column(),
        problem: clause(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Cancel, with_cancel};

    #[test]
    fn reading_stops_when_cancelled() {
        let node = r#"{"target": "torch.ops.aten.relu.default", "inputs": [], "outputs": []}"#;
        let nodes = vec![node; 1000].join(",");
        let graph = format!(
            r#"{{"graph_module": {{"graph": {{"inputs": [], "outputs": [], "nodes": [{nodes}]}}}}}}"#
        );
        let cancel = Cancel::default();
        cancel.cancel();
        let mut read = None;

        let kept = with_cancel(&cancel, || {
            read = Some(parse_text(graph.as_bytes(), Assumptions::default()));
        });

        assert_eq!(kept, None);
        assert!(
            matches!(read, Some(Err(ExportedError::Cancelled))),
            "{read:?}"
        );
        let read = with_cancel(&Cancel::NEVER, || {
            parse_text(graph.as_bytes(), Assumptions::default())
        });
        let read = read.expect("it is never cancelled");
        assert!(!matches!(read, Err(ExportedError::Cancelled)), "{read:?}");
    }
}
