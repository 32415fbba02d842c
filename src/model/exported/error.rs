//! Why an exported graph was not read.

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
    /// An operator that batchfit does not know.
    #[error(
        "at {pointer}: the operator {op} {} is not supported{}",
        place(module),
        nearest.map(|nearest| format!("; the nearest that is: {nearest}")).unwrap_or_default()
    )]
    UnknownOperator {
        /// Where its node is.
        pointer: String,
        /// Its name, such as `aten.einsum.default`.
        op: String,
        /// The path of the module that runs it; empty for the model itself.
        module: String,
        /// The supported operator with the most similar name.
        nearest: Option<&'static str>,
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
            ExportedError::UnknownOperator { pointer, .. }
            | ExportedError::Refused { pointer, .. } => pointer,
            ExportedError::Archive { .. }
            | ExportedError::Compressed { .. }
            | ExportedError::TooLarge { .. }
            | ExportedError::Syntax { .. } => "",
        }
    }
}
