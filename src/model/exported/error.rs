//! Why an exported graph was not read.

use super::unknown::{UnknownOperator, not_supported};

/// Why an exported graph was not read, with the place as a JSON pointer into the graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExportedError {
    /// A zip archive without a model that can be read.
    #[error("this is an archive, but {problem}")]
    Archive {
        /// What is wrong with it.
        problem: String,
    },
    /// Not gzip after all.
    #[error("the gzip data cannot be read: {problem}")]
    Compressed {
        /// What the decompressor says.
        problem: String,
    },
    /// Larger than any export of a real model.
    #[error("the graph is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The most that is read.
        limit_bytes: u64,
    },
    /// Not JSON.
    #[error("not valid JSON at line {line}, column {column}: {problem}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// What the parser says.
        problem: String,
    },
    /// Operators that batchfit does not know: all that the graph has, at least one.
    #[error("at {}: {}", first(operators), not_supported(operators))]
    UnknownOperators {
        /// In the order of their first nodes.
        operators: Vec<UnknownOperator>,
    },
    /// Anything else that is not as PyTorch writes it, or not something batchfit can follow.
    #[error("at {pointer}: {problem}")]
    Refused {
        /// Where.
        pointer: String,
        /// What is wrong there.
        problem: String,
    },
}

/// Where the first of them is.
fn first(operators: &[UnknownOperator]) -> &str {
    operators.first().map_or("", |operator| &operator.pointer)
}

/// Which module's code something is in.
pub(crate) fn place(module: &str) -> String {
    match module {
        "" => "in the model itself".to_owned(),
        path => format!("in module `{path}`"),
    }
}

impl ExportedError {
    /// Where in the graph's JSON; empty for the whole.
    pub fn pointer(&self) -> &str {
        match self {
            ExportedError::UnknownOperators { operators } => first(operators),
            ExportedError::Refused { pointer, .. } => pointer,
            ExportedError::Archive { .. }
            | ExportedError::Compressed { .. }
            | ExportedError::TooLarge { .. }
            | ExportedError::Syntax { .. } => "",
        }
    }
}
