//! Elementwise functions and their derivatives in float64.

use batchfit::program::Unary;

/// Those with a kernel that are defined for all numbers: `rsqrt` is not.
pub const UNARY: [Unary; 9] = [
    Unary::Relu,
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::Tanh,
    Unary::Silu,
    Unary::Sigmoid,
    Unary::Relu6,
    Unary::Cos,
    Unary::Sin,
];

pub fn unary(function: Unary, x: f64) -> f64 {
    match function {
        Unary::Relu => x.max(0.0),
        Unary::Gelu => x * normal_cdf(x),
        Unary::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Unary::Tanh => x.tanh(),
        Unary::Silu => x / (1.0 + (-x).exp()),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Relu6 => x.clamp(0.0, 6.0),
        Unary::Rsqrt => x.sqrt().recip(),
        Unary::Cos => x.cos(),
        Unary::Sin => x.sin(),
    }
}

/// The derivative at `x`, by central differences except at the kinks.
pub fn unary_slope(function: Unary, x: f64) -> f64 {
    match function {
        Unary::Relu => f64::from(u8::from(x > 0.0)),
        Unary::Relu6 => f64::from(u8::from(x > 0.0 && x < 6.0)),
        _ => {
            let step = 1e-5;
            (unary(function, x + step) - unary(function, x - step)) / (2.0 * step)
        }
    }
}

/// What a gradient kernel is given beside the gradient.
pub fn saved(function: Unary, x: f64) -> f64 {
    match function {
        Unary::Relu | Unary::Tanh | Unary::Sigmoid | Unary::Rsqrt => unary(function, x),
        _ => x,
    }
}

/// The standard normal distribution's cumulative function, by its series.
fn normal_cdf(x: f64) -> f64 {
    let mut term = x;
    let mut sum = x;
    for n in 1..200 {
        term *= x * x / f64::from(2 * n + 1);
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}
