//! Elementwise functions of one tensor.

use serde::Serialize;

/// Whether an operation writes a new tensor or over its first operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Placement {
    /// A new tensor.
    New,
    /// Over the first operand: PyTorch's trailing underscore.
    InPlace,
}

/// Elementwise functions of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
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
    /// `clamp(x, min, max)` with other bounds than `ReLU6`.
    Hardtanh,
    /// `clamp(x / 6 + 1 / 2, 0, 1)`.
    Hardsigmoid,
    /// `x * hardsigmoid(x)`.
    Hardswish,
    /// `max(x, 0) + slope * min(x, 0)`.
    LeakyRelu,
    /// Exponential below zero; SELU and CELU are scaled ones.
    Elu,
    /// `x * tanh(softplus(x))`.
    Mish,
    /// `log(1 + exp(x))`.
    Softplus,
    /// `log(sigmoid(x))`.
    LogSigmoid,
    /// A value in the place of small elements.
    Threshold,
}

impl Unary {
    /// All of them.
    pub const ALL: [Unary; 19] = [
        Unary::Relu,
        Unary::Gelu,
        Unary::GeluTanh,
        Unary::Tanh,
        Unary::Silu,
        Unary::Sigmoid,
        Unary::Relu6,
        Unary::Rsqrt,
        Unary::Cos,
        Unary::Sin,
        Unary::Hardtanh,
        Unary::Hardsigmoid,
        Unary::Hardswish,
        Unary::LeakyRelu,
        Unary::Elu,
        Unary::Mish,
        Unary::Softplus,
        Unary::LogSigmoid,
        Unary::Threshold,
    ];

    /// The name a PyTorch user knows it by.
    pub fn name(self, placement: Placement) -> &'static str {
        let (new, in_place) = match self {
            Unary::Relu => ("relu", "relu_"),
            Unary::Gelu | Unary::GeluTanh => ("gelu", "gelu_"),
            Unary::Tanh => ("tanh", "tanh_"),
            Unary::Silu => ("silu", "silu_"),
            Unary::Sigmoid => ("sigmoid", "sigmoid_"),
            Unary::Relu6 | Unary::Hardtanh => ("hardtanh", "hardtanh_"),
            Unary::Rsqrt => ("rsqrt", "rsqrt_"),
            Unary::Cos => ("cos", "cos_"),
            Unary::Sin => ("sin", "sin_"),
            Unary::Hardsigmoid => ("hardsigmoid", "hardsigmoid_"),
            Unary::Hardswish => ("hardswish", "hardswish_"),
            Unary::LeakyRelu => ("leaky_relu", "leaky_relu_"),
            Unary::Elu => ("elu", "elu_"),
            Unary::Mish => ("mish", "mish_"),
            Unary::Softplus => ("softplus", "softplus_"),
            Unary::LogSigmoid => ("log_sigmoid", "log_sigmoid_"),
            Unary::Threshold => ("threshold", "threshold_"),
        };
        match placement {
            Placement::New => new,
            Placement::InPlace => in_place,
        }
    }
}
