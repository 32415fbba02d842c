//! Elementwise functions of one tensor.

use serde::{Deserialize, Serialize};

/// Whether an operation writes a new tensor or over its first operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Placement {
    /// A new tensor.
    New,
    /// Over the first operand: PyTorch's trailing underscore.
    InPlace,
}

listed! {
    /// Elementwise functions of one tensor that have a kernel.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all(deserialize = "snake_case"))]
    pub enum Unary {
        /// `max(x, 0)`.
        Relu,
        /// `x * Φ(x)`, exact.
        Gelu,
        /// `gelu(approximate="tanh")`.
        GeluTanh,
        /// Hyperbolic tangent.
        Tanh,
        /// `x * sigmoid(x)`.
        Silu,
        /// `1 / (1 + exp(-x))`.
        Sigmoid,
        /// `clamp(x, 0, 6)`.
        Relu6,
        /// `1 / sqrt(x)`.
        Rsqrt,
        /// Cosine.
        Cos,
        /// Sine.
        Sin,
    }
}

impl Unary {
    /// The name a PyTorch user knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Unary::Relu => "relu",
            Unary::Gelu | Unary::GeluTanh => "gelu",
            Unary::Tanh => "tanh",
            Unary::Silu => "silu",
            Unary::Sigmoid => "sigmoid",
            Unary::Relu6 => "relu6",
            Unary::Rsqrt => "rsqrt",
            Unary::Cos => "cos",
            Unary::Sin => "sin",
        }
    }
}
