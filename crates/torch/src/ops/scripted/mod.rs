//! Operators whose memory is written down as a script: what they make, in which order, and when it goes.
//!
//! A row says how the lengths of operands are called, and then, in one line each, what happens going forward and in the
//! backward pass. [`text`] says how such a line reads. Every line is a recording of PyTorch with lengths in the place of
//! numbers (`tests/golden/calls`), or the statements of a function of PyTorch that the row names.

mod linalg;
mod read;
mod run;
mod table;
mod text;

#[cfg(test)]
mod tests;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Casts {
    /// Nothing.
    None,
    /// It makes them float32.
    High,
    /// It makes them half.
    Low,
}

/// One operator of a table.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// Its ATen operators.
    aten: &'static [&'static str],
    /// Its tensors: their names in the schema, and their lengths.
    operands: &'static [(&'static str, &'static str)],
    /// Its other arguments.
    attributes: &'static [&'static str],
    casts: Casts,
    /// Lengths and words that follow from arguments.
    more: Option<read::More>,
    /// Going forward.
    forward: &'static str,
    /// What it saves: `NAME=0` an operand, `NAME=y0` a result; `?1` after it: where that operand wants a gradient.
    saves: &'static [&'static str],
    /// In the backward pass; none where it has no derivative.
    backward: Option<&'static str>,
    /// What of it is an estimate.
    estimate: Option<&'static str>,
}

/// Rows are told apart by their operators.
impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        self.aten == other.aten
    }
}

impl Row {
    const fn new(
        aten: &'static [&'static str],
        operands: &'static [(&'static str, &'static str)],
        forward: &'static str,
    ) -> Row {
        Row {
            aten,
            operands,
            attributes: &[],
            casts: Casts::None,
            more: None,
            forward,
            saves: &[],
            backward: None,
            estimate: None,
        }
    }

    const fn attributes(mut self, attributes: &'static [&'static str]) -> Row {
        self.attributes = attributes;
        self
    }

    const fn casts(mut self, casts: Casts) -> Row {
        self.casts = casts;
        self
    }

    const fn more(mut self, more: read::More) -> Row {
        self.more = Some(more);
        self
    }

    const fn backward(mut self, saves: &'static [&'static str], line: &'static str) -> Row {
        self.saves = saves;
        self.backward = Some(line);
        self
    }

    const fn estimate(mut self, what: &'static str) -> Row {
        self.estimate = Some(what);
        self
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
