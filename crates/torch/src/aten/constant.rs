//! Numbers, truth values and texts among arguments.

use serde::Serialize;

use crate::shape::{Extent, Number};

/// A number, truth value or text among the arguments, with its kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Constant {
    /// `True`.
    Truth(bool),
    /// `2`.
    Whole(i64),
    /// `2.0`.
    Real(f64),
    /// A whole number that depends on the batch.
    Length(Extent),
    /// A fraction that depends on the batch in a way that the export does not spell out.
    Symbolic,
    /// `2 + 1j`.
    Complex(f64, f64),
    /// `"tanh"`.
    Text(String),
}

impl Constant {
    /// Its kind, as type promotion counts it; `None` for a text.
    pub fn kind(&self) -> Option<Number> {
        match self {
            Constant::Truth(_) => Some(Number::Truth),
            Constant::Whole(_) | Constant::Length(_) => Some(Number::Whole),
            Constant::Real(_) | Constant::Symbolic => Some(Number::Real),
            Constant::Complex(..) => Some(Number::Complex),
            Constant::Text(_) => None,
        }
    }

    /// As a fraction, where it is a number that is known.
    pub fn real(&self) -> Option<f64> {
        match self {
            Constant::Truth(value) => Some(f64::from(u8::from(*value))),
            Constant::Whole(value) => Some(*value as f64),
            Constant::Real(value) => Some(*value),
            Constant::Length(_)
            | Constant::Symbolic
            | Constant::Complex(..)
            | Constant::Text(_) => None,
        }
    }
}
