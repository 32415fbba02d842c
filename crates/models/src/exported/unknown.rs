//! Operators that batchfit does not know: all of them at once, or an assumption about them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use serde::Serialize;

use super::error::place;
use crate::aten::schema::{Arg, NamedArg};
use crate::limits::shorten;
use crate::ops::not_elementwise;

/// So many operators are listed; of more, only how many there are.
pub(super) const MOST_LISTED: usize = 20;

/// How alike two names must be for one to be named as the nearest of the other: seven letters of ten.
const ALIKE: f64 = 0.7;

batchfit_step::listed! {
    /// What becomes of operators that batchfit does not know.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
    pub enum UnknownOps {
        /// The graph is refused, with a list of them.
        #[default]
        Refuse = "refuse",
        /// They are taken to save their inputs and to make their results, and nothing else.
        AssumeElementwise = "assume_elementwise",
    }
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

/// The operators of a graph that are not known, in the order of their first nodes.
#[derive(Debug, Default)]
pub(super) struct Unknown {
    found: Vec<UnknownOperator>,
    by_name: HashMap<String, usize>,
}

impl Unknown {
    /// Counts a node that uses one.
    pub(super) fn note(&mut self, op: &str, pointer: impl Fn() -> String, module: &str) {
        if let Some(known) = self.by_name.get(op) {
            self.found[*known].count += 1;
            return;
        }
        self.by_name.insert(op.to_owned(), self.found.len());
        // Looking for names alike takes a while, and a reader needs only a few.
        let is_listed = self.found.len() < MOST_LISTED;
        self.found.push(UnknownOperator {
            op: shorten(op),
            count: 1,
            pointer: pointer(),
            module: module.to_owned(),
            nearest: is_listed.then(|| nearest(op)).flatten(),
            not_elementwise: not_elementwise(op),
        });
    }

    pub(super) fn operators(&self) -> Vec<UnknownOperator> {
        self.found.clone()
    }
}

/// The supported operator with the most similar name, when one is similar.
fn nearest(target: &str) -> Option<&'static str> {
    // Not by common beginnings: `lt` and `lstm` have one, and nothing to do with each other.
    let score = |known: &&str| strsim::normalized_damerau_levenshtein(bare(target), bare(known));
    crate::ops::known()
        .max_by(|a, b| score(a).total_cmp(&score(b)))
        .filter(|known| score(known) >= ALIKE)
}

/// `conv2d` of `aten.conv2d.default`, short enough to compare.
fn bare(target: &str) -> &str {
    let name = target.strip_prefix("aten.").unwrap_or(target);
    let name = name.split('.').next().unwrap_or(name);
    name.get(..64).unwrap_or(name)
}

/// The supported operator whose name is most like it, and why it is never assumed, as clauses.
fn similar(operator: &UnknownOperator) -> String {
    let nearest = operator.nearest.map_or(String::new(), |name| {
        format!("; the nearest that is: {name}")
    });
    let why = operator.not_elementwise.map_or(String::new(), |why| {
        format!("; it is never taken to be elementwise: {why}")
    });
    format!("{nearest}{why}")
}

/// A sentence about one operator that is not supported.
pub(super) fn is_not_supported(operator: &UnknownOperator) -> String {
    format!(
        "the operator {} {}{} is not supported{}",
        operator.op,
        place(&operator.module),
        operator.times(),
        similar(operator)
    )
}

/// A sentence about operators that are not supported.
pub fn not_supported(operators: &[UnknownOperator]) -> String {
    if let [only] = operators {
        return is_not_supported(only);
    }
    let mut text = format!("{} operators are not supported:", operators.len());
    for (index, operator) in operators.iter().take(MOST_LISTED).enumerate() {
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
    if let Some(more) = operators.len().checked_sub(MOST_LISTED + 1) {
        let _ = write!(text, " and {} more", more + 1);
    }
    text
}

/// A warning for the answer: which operators were taken to be elementwise.
pub(super) fn assumption(operators: &[UnknownOperator]) -> Option<String> {
    if operators.is_empty() {
        return None;
    }
    let mut names = operators
        .iter()
        .take(MOST_LISTED)
        .map(|operator| format!("{} ({})", operator.op, operator.count))
        .collect::<Vec<_>>();
    if let Some(more) = operators.len().checked_sub(MOST_LISTED + 1) {
        names.push(format!("and {} more", more + 1));
    }
    Some(format!(
        "batchfit does not know these operators and assumed that each keeps its inputs for the backward pass and \
         allocates its results; they may need more: {}",
        names.join(", ")
    ))
}

/// A warning for the answer: which operators' memory is an estimate in part.
pub(super) fn estimates(
    estimated: &BTreeMap<&'static str, BTreeSet<&'static str>>,
) -> Option<String> {
    let parts: Vec<String> = estimated
        .iter()
        .map(|(what, operators)| {
            let operators: Vec<&str> = operators.iter().copied().collect();
            format!("{what} in {}", operators.join(", "))
        })
        .collect();
    (!parts.is_empty())
        .then(|| format!("estimated from recordings of an H200: {}", parts.join("; ")))
}

/// The names of the tensors that an operator writes its results into: arguments called `out`, or `out0` and so on.
pub(super) fn out_tensors<'a>(inputs: &'a [NamedArg<'a>]) -> Option<Vec<&'a str>> {
    let is_out = |name: &str| {
        name.strip_prefix("out")
            .is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let outs = inputs.iter().filter(|input| is_out(&input.name));
    let names: Vec<&str> = outs
        .map(|input| match &input.arg {
            Arg::Tensor(name) => Some(name.as_ref()),
            _ => None,
        })
        .collect::<Option<_>>()?;
    (!names.is_empty()).then_some(names)
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
