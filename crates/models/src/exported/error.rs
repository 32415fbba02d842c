//! Why an exported graph was not read.

use std::fmt::Write as _;

use super::problems::NodeProblem;
use super::unknown::{UnknownOperator, is_not_supported, not_supported};
use crate::limits::{MOST_NAMES, MOST_NODES};

/// So many nodes are listed; of more, only how many there are.
const MOST_LISTED: usize = 10;

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
    /// Reading it was stopped: see [`with_cancel`](crate::limits::unless).
    #[error("nobody waits for it any more")]
    Cancelled,
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
    /// More nodes than are read.
    #[error("the graph has more than {MOST_NODES} nodes; at most that many are read")]
    TooManyNodes,
    /// More operands and results than are read.
    #[error(
        "the nodes of the graph have more than {MOST_NAMES} operands and results together; at most that many are read"
    )]
    TooManyNames,
    /// A document that is small in the file and would be large in memory.
    #[error(
        "reading the graph would take more than {} MiB of memory, which exports of {MOST_NODES} nodes do not",
        limit_bytes >> 20
    )]
    TooComplex {
        /// What it may take.
        limit_bytes: usize,
    },
    /// Nodes that are not understood: all of them, at least one.
    #[error("{}", not_understood(problems, unknown, ""))]
    NotUnderstood {
        /// In the order of their first nodes.
        problems: Vec<NodeProblem>,
        /// Operators that are not known, beside them.
        unknown: Vec<UnknownOperator>,
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

/// A sentence about all nodes that are not understood, each with its place below `at`, and with whether the
/// request's `unknown_ops` can help.
pub fn not_understood(problems: &[NodeProblem], unknown: &[UnknownOperator], at: &str) -> String {
    if let ([only], []) = (problems, unknown) {
        let times = times(only.count);
        return format!(
            "at {at}{}{times}: {}; `unknown_ops` does not help",
            only.pointer, only.problem
        );
    }
    let kinds = problems.len() + unknown.len();
    let mut text = format!("{kinds} things in the graph are not understood:");
    // Writing to a string does not fail.
    for problem in problems.iter().take(MOST_LISTED) {
        let _ = write!(
            text,
            " at {at}{} ({}{}): {}; `unknown_ops` does not help.",
            problem.pointer,
            place(&problem.module),
            times(problem.count),
            problem.problem
        );
    }
    for operator in unknown.iter().take(MOST_LISTED) {
        let help = match operator.not_elementwise {
            None => "`unknown_ops` can help",
            Some(_) => "`unknown_ops` does not help",
        };
        let _ = write!(
            text,
            " at {at}{}: {}; {help}.",
            operator.pointer,
            is_not_supported(operator)
        );
    }
    let listed = problems.len().min(MOST_LISTED) + unknown.len().min(MOST_LISTED);
    if kinds > listed {
        let _ = write!(text, " And {} more.", kinds - listed);
    }
    text
}

fn times(count: usize) -> String {
    match count {
        1 => String::new(),
        count => format!(", {count} times"),
    }
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
            ExportedError::NotUnderstood { problems, .. } => {
                problems.first().map_or("", |problem| &problem.pointer)
            }
            ExportedError::Archive { .. }
            | ExportedError::Compressed { .. }
            | ExportedError::TooLarge { .. }
            | ExportedError::TooManyNodes
            | ExportedError::TooManyNames
            | ExportedError::Cancelled
            | ExportedError::TooComplex { .. }
            | ExportedError::Syntax { .. } => "",
        }
    }
}
