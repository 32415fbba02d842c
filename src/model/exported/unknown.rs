//! Operators that batchfit does not know: all of them at once, or an assumption about them.

use std::fmt::Write as _;

use super::error::place;
use super::schema::{Arg, NamedArg};

/// What becomes of operators that batchfit does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum UnknownOps {
    /// The graph is refused, with a list of them.
    #[default]
    Refuse,
    /// They are taken to save their inputs and to make their results, and nothing else.
    AssumeElementwise,
}

/// An operator that batchfit does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownOperator {
    /// Its name, such as `aten.einsum.default`.
    pub op: String,
    /// How many nodes use it.
    pub count: usize,
    /// Where the first of them is.
    pub pointer: String,
    /// The path of the module that runs the first; empty for the model itself.
    pub module: String,
    /// The supported operator with the most similar name.
    pub nearest: Option<&'static str>,
    /// Why it is never taken to be elementwise, if it is known not to be.
    pub not_elementwise: Option<&'static str>,
}

impl UnknownOperator {
    fn times(&self) -> String {
        match self.count {
            1 => String::new(),
            count => format!(", {count} times"),
        }
    }
}

/// A sentence about operators that are not supported.
pub(crate) fn not_supported(operators: &[UnknownOperator]) -> String {
    let similar = |operator: &UnknownOperator| {
        let nearest = operator.nearest;
        let nearest = nearest.map_or(String::new(), |name| {
            format!("; the nearest that is: {name}")
        });
        let why = operator.not_elementwise.map_or(String::new(), |why| {
            format!("; it is never taken to be elementwise: {why}")
        });
        format!("{nearest}{why}")
    };
    if let [only] = operators {
        return format!(
            "the operator {} {}{} is not supported{}",
            only.op,
            place(&only.module),
            only.times(),
            similar(only)
        );
    }
    let mut text = format!("{} operators are not supported:", operators.len());
    for (index, operator) in operators.iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{separator} {} ({}{}{})",
            operator.op,
            place(&operator.module),
            operator.times(),
            similar(operator)
        );
    }
    text
}

/// A warning for the answer: which operators were taken to be elementwise.
pub(super) fn assumption(operators: &[UnknownOperator]) -> Option<String> {
    if operators.is_empty() {
        return None;
    }
    let names = operators
        .iter()
        .map(|operator| format!("{} ({})", operator.op, operator.count))
        .collect::<Vec<_>>();
    Some(format!(
        "this answer rests on an assumption: these operators are not known and were taken to save their inputs and to make their results, \
         which may be less than they take: {}",
        names.join(", ")
    ))
}

/// The names of all tensors among arguments.
pub(super) fn tensors_of<'a>(inputs: &'a [NamedArg<'a>]) -> Vec<&'a str> {
    let mut names = Vec::new();
    for input in inputs {
        match &input.arg {
            Arg::Tensor(name) => names.push(name.as_ref()),
            Arg::Tensors(list) => names.extend(list.iter().map(AsRef::<str>::as_ref)),
            Arg::OptionalTensors(list) => {
                names.extend(list.iter().flatten().map(AsRef::<str>::as_ref));
            }
            _ => {}
        }
    }
    names
}
