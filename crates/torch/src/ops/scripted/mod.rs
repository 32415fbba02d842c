//! Operators whose memory is written down as a script: what they make, in which order, and when it goes.
//!
//! A row says how the lengths of operands are called, and then, in one line each, what happens going forward and in the
//! backward pass. [`text`] says how such a line reads. Every line is a recording of PyTorch with lengths in the place of
//! numbers (`tests/golden/calls`), or the statements of a function of PyTorch that the row names.
//!
//! Lines of linear algebra are those of an H200 with CUDA 13 (`tests/golden/calls/linalg.json.gz`): batches go through cuBLAS, which
//! takes an array of pointers for each operand, single matrices through cuSOLVER. The scratch memory of cuSOLVER follows no rule that
//! is known; rows that rest on it take at least what it took for any of the matrices of up to 1,100 rows that were recorded, and
//! say so.

mod read;
mod run;
mod text;

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::ops::prelude::*;

pub(super) use read::{ATEN, read_as};
use text::{Command, Lengths, Source};

/// An operator of the tables.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scripted {
    /// Its ATen operator.
    target: &'static str,
    #[serde(skip)]
    row: &'static Row,
    /// Its other arguments.
    attributes: Vec<(&'static str, Constant)>,
    /// Lengths that follow from those, by the letters that stand for them in the script.
    lengths: Vec<(char, Vec<Extent>)>,
    /// Which of the words that the script asks for hold.
    holds: Vec<&'static str>,
}

/// What autocast does to operands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Casts {
    /// Nothing.
    #[default]
    None,
    /// It makes them float32.
    High,
    /// It makes them half.
    Low,
}

/// One operator of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// Where its lines are from, for who reads the table.
    #[serde(default, rename = "note")]
    _note: IgnoredAny,
    /// Its ATen operators.
    #[serde(borrow)]
    aten: Vec<&'static str>,
    /// Its tensors: their names in the schema, and their lengths.
    #[serde(borrow)]
    operands: Vec<(&'static str, &'static str)>,
    /// Its other arguments.
    #[serde(borrow, default)]
    attributes: Vec<&'static str>,
    #[serde(default)]
    casts: Casts,
    /// What of its arguments lengths and words follow from: a name in [`read::MORE`].
    more: Option<&'static str>,
    /// Going forward.
    forward: &'static str,
    /// What it saves: `NAME=0` an operand, `NAME=y0` a result; `?1` after it: where that operand wants a gradient.
    #[serde(borrow, default)]
    saves: Vec<&'static str>,
    /// In the backward pass; none where it has no derivative.
    backward: Option<&'static str>,
    /// What of it is an estimate.
    estimate: Option<&'static str>,
}

/// All operators that are written down as scripts.
static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let rows = |text| serde_json::from_str::<Vec<Row>>(text).expect("a test reads the table");
    #[cfg_attr(not(test), expect(unused_mut, reason = "tests have rows of their own"))]
    let mut table = rows(include_str!("table.json"));
    #[cfg(test)]
    table.extend(rows(tests::ROWS));
    table
});

/// Rows are told apart by their operators.
impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        self.aten == other.aten
    }
}

impl Scripted {
    /// The lengths of operands of these shapes.
    fn bind(&self, shapes: &[&[Extent]]) -> Result<Lengths, Mismatch> {
        let mut lengths = Lengths::new(&self.lengths);
        for ((name, pattern), shape) in self.row.operands.iter().zip(shapes) {
            lengths
                .bind(pattern, shape)
                .map_err(|problem| format!("its {name} is {shape:?}: {problem}"))?;
        }
        lengths.complete()?;
        Ok(lengths)
    }
}

impl Operator for Scripted {
    fn name(&self) -> &'static str {
        let name = self.target.strip_prefix("aten.").unwrap_or(self.target);
        name.split_once('.').map_or(name, |(name, _)| name)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let shapes: Vec<&[Extent]> = operands.iter().map(|(_, shape)| shape.as_slice()).collect();
        let lengths = self.bind(&shapes)?;
        let line = Command::of(self.row.forward)?;
        let mut results = Vec::new();
        for source in line.results(&self.holds) {
            results.push(match source {
                Source::Made(size) => {
                    let own = operands[0].0;
                    (size.dtype.unwrap_or(own), lengths.shape(&size)?)
                }
                Source::Operand(position) => operands
                    .get(position)
                    .cloned()
                    .ok_or_else(|| format!("it has no operand {position}"))?,
            });
        }
        Ok(results)
    }

    fn estimate(&self) -> Option<&'static str> {
        self.row.estimate
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        eager.scripted(self, operands)
    }
}
