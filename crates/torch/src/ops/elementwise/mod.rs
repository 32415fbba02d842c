//! Elementwise operators: each is a row of a table.
//!
//! A row says how its ATen operators are read, the type of their result, what autocast does with their
//! operands, what backward saves and takes. Rows were read off the allocator's history of PyTorch 2.11, forward
//! and backward; `tests/record/elementwise.py` records it and a test compares every row with it.

mod formula;
mod kernel;
mod read;
mod row;
mod run;
mod shorthand;
mod table;
#[cfg(test)]
mod tests;

use serde::Serializer;

use crate::ops::prelude::*;
use crate::shape::{Number, result_type};

pub(super) use kernel::number_of;
pub(super) use read::ATEN;
pub use run::expanded;

use row::{Casts, Forward, ResultType, Row, Tuned};

/// A call of an elementwise operator: which one, and its arguments in full.
#[derive(Debug, Clone, Serialize)]
pub struct Elementwise {
    /// Its ATen operator.
    target: &'static str,
    #[serde(skip)]
    row: &'static Row,
    /// What stands in the place of each operand.
    operands: Vec<Operand>,
    /// The other arguments, by their names; those that are missing have no default.
    attributes: Vec<(&'static str, Constant)>,
}

/// What an operator is given in the place of an operand.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// The next tensor.
    Tensor,
    /// A number.
    Number(Constant),
    /// Nothing.
    Missing,
}

impl Serialize for Operand {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Operand::Tensor => serializer.serialize_str("tensor"),
            Operand::Number(value) => value.serialize(serializer),
            Operand::Missing => serializer.serialize_none(),
        }
    }
}

/// The row is found by the target.
impl PartialEq for Elementwise {
    fn eq(&self, other: &Elementwise) -> bool {
        (self.target, &self.operands, &self.attributes)
            == (other.target, &other.operands, &other.attributes)
    }
}

impl Elementwise {
    /// A call of an operator of the tables on tensors, with the defaults of its other arguments.
    ///
    /// # Panics
    ///
    /// If the tables have no such operator.
    pub fn of(target: &str) -> Elementwise {
        let (target, row) = read::find(target)
            .unwrap_or_else(|| panic!("{target} is in no table of elementwise operators"));
        let mut op = Elementwise {
            target,
            row,
            operands: vec![Operand::Tensor; row.operands.len()],
            attributes: Vec::new(),
        };
        for attribute in &row.attributes {
            let default = row::default(op.base_name(), attribute);
            op.attributes
                .extend(default.map(|value| (*attribute, value)));
        }
        op
    }

    /// The same with this number in the place of an operand or attribute.
    #[must_use]
    pub fn with(mut self, argument: &str, value: Constant) -> Elementwise {
        let known =
            |names: &'static [&'static str]| names.iter().position(|name| *name == argument);
        if let Some(position) = known(&self.row.operands) {
            self.operands[position] = Operand::Number(value);
        } else if let Some(position) = known(&self.row.attributes) {
            let name = self.row.attributes[position];
            self.attributes.retain(|(known, _)| *known != name);
            self.attributes.push((name, value));
        }
        self
    }

    /// Its ATen operator, such as `aten.add_.Tensor`.
    pub fn target(&self) -> &'static str {
        self.target
    }

    /// The name of its operator without overload, such as `add_`.
    fn aten_name(&self) -> &'static str {
        let name = self.target.strip_prefix("aten.").unwrap_or(self.target);
        name.split_once('.').map_or(name, |(name, _)| name)
    }

    /// The name of its operator without overload and underscore, such as `add`.
    fn base_name(&self) -> &'static str {
        let name = self.aten_name();
        name.strip_suffix('_').unwrap_or(name)
    }

    /// Whether the result replaces the first operand.
    pub fn placement(&self) -> Placement {
        let name = self.aten_name();
        // `__and__` is no operator in place, `__iand__` is.
        let is_in_place = match name.strip_prefix("__") {
            Some(dunder) => dunder.starts_with('i'),
            None => name.ends_with('_'),
        };
        if is_in_place {
            Placement::InPlace
        } else {
            Placement::New
        }
    }

    /// Whether it adds two tensors, under whatever name.
    pub fn is_sum_of_tensors(&self) -> bool {
        matches!(self.row.tuned, Tuned::Sum) && self.operands == [Operand::Tensor, Operand::Tensor]
    }

    /// Whether it multiplies two tensors into a new one.
    pub fn is_product_of_tensors(&self) -> bool {
        matches!(self.row.tuned, Tuned::Product)
            && self.placement() == Placement::New
            && self.operands == [Operand::Tensor, Operand::Tensor]
    }

    /// The number in the place of the operand at this position.
    fn number(&self, position: usize) -> Option<&Constant> {
        match self.operands.get(position)? {
            Operand::Number(value) => Some(value),
            Operand::Tensor | Operand::Missing => None,
        }
    }

    /// An attribute.
    fn attribute(&self, name: &str) -> Option<&Constant> {
        let found = self.attributes.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value)
    }

    /// Whether an attribute is this number.
    fn is(&self, name: &str, expected: f64) -> bool {
        let value = self.attribute(name).and_then(Constant::real);
        value.is_some_and(|value| (value - expected).abs() < f64::EPSILON)
    }

    /// Of the operands that are given, how many.
    fn given_operands(&self) -> usize {
        let given = self.operands.iter();
        given
            .filter(|operand| **operand != Operand::Missing)
            .count()
    }

    /// Positions of the operands that are tensors.
    fn positions(&self) -> impl Iterator<Item = usize> {
        let all = self.operands.iter().enumerate();
        all.filter(|(_, operand)| **operand == Operand::Tensor)
            .map(|(position, _)| position)
    }

    /// The type of the result on tensors of these types; the flag says whether one has no dimensions.
    fn result_type(&self, tensors: &[(DType, bool)]) -> DType {
        if self.placement() == Placement::InPlace {
            return tensors[0].0;
        }
        match self.row.result {
            ResultType::Truth => DType::Bool,
            ResultType::Promoted
            | ResultType::Real
            | ResultType::Quotient
            | ResultType::First
            | ResultType::Branches => self.common_type(tensors),
        }
    }

    /// The type to which operands of these types are converted before anything is computed.
    fn common_type(&self, tensors: &[(DType, bool)]) -> DType {
        let number: Option<Number> = (0..self.operands.len())
            .filter_map(|position| self.number(position)?.kind())
            .max();
        let promoted = || result_type(tensors, number);
        match self.row.result {
            ResultType::Promoted | ResultType::Truth => promoted(),
            ResultType::Quotient if self.attribute("rounding_mode").is_some() => promoted(),
            ResultType::Real | ResultType::Quotient
                if promoted().is_float() || promoted().is_complex() =>
            {
                promoted()
            }
            ResultType::Real | ResultType::Quotient => DType::Float32,
            ResultType::First => tensors[0].0,
            ResultType::Branches => result_type(&tensors[1..], number),
        }
    }
}

impl Operator for Elementwise {
    fn name(&self) -> &'static str {
        self.aten_name()
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let dtype = match self.row.casts {
            Casts::Double => DType::Float64,
            Casts::None | Casts::High | Casts::Low | Casts::Widest => {
                self.result_type(&super::scalars(operands))
            }
        };
        if let Forward::Prelu = self.row.forward {
            return Ok(vec![(dtype, operands[0].1.clone())]);
        }
        let shapes = operands.iter().map(|(_, shape)| shape);
        let shape = shapes
            .into_iter()
            .try_fold(Vec::new(), |result, shape| broadcast(&result, shape))?;
        Ok(vec![(dtype, shape)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        // Batch norms count their batches only in training.
        let is_sum = matches!(self.row.tuned, Tuned::Sum);
        let counts = is_sum && self.placement() == Placement::InPlace;
        if counts && operands.len() == 1 && context.inference && context.of_buffer {
            return Ok(vec![Tensor::clone(&operands[0])]);
        }
        Ok(vec![eager.elementwise(self, operands)?])
    }
}
