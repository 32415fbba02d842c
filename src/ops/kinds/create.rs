//! Operations that make tensors out of nothing.

use serde::Serialize;

use crate::shape::DType;
use crate::shape::Extent;

/// A new tensor whose elements follow from no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Create {
    /// The name a PyTorch user knows it by.
    pub name: &'static str,
    /// Its shape.
    pub shape: Vec<Extent>,
    /// Its type.
    pub dtype: CreatedType,
    /// Where it is.
    pub place: Place,
}

/// The type of a created tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CreatedType {
    /// This one whatever the model's precision: PyTorch's default, or a whole type.
    Fixed(DType),
    /// Written as this one in the model's code, which in a model of another precision names that.
    OfModel(DType),
    /// That of the first operand (`zeros_like`, `new_zeros`), recorded as this.
    OfOperand(DType),
}

/// Where a created tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Place {
    /// In the card's memory.
    Card,
    /// In the host's memory: a number that is written into a slice, which an export shows as a tensor.
    Host,
}

impl Create {
    /// The type that the export recorded.
    pub fn recorded(&self) -> DType {
        match self.dtype {
            CreatedType::Fixed(dtype)
            | CreatedType::OfModel(dtype)
            | CreatedType::OfOperand(dtype) => dtype,
        }
    }
}
