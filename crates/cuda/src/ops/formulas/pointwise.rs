//! What is computed for each element by itself.

use crate::ops::prelude::*;
use crate::program::{Binary, Initial, Unary};

/// Kernels that compute each element by itself.
pub(super) fn pointwise(kernel: &Kernel) -> Option<Generated> {
    let none: [&'static str; 0] = [];
    Some(match kernel {
        Kernel::Initialize(Initial::Constant(value)) | Kernel::Fill(value) => {
            Generated::map("fill", none, "result = value;").with("value", number(*value))
        }
        Kernel::Initialize(Initial::Uniform { bound }) => Generated::map(
            "uniform",
            none,
            "result = (2 * uniform(seed, index) - 1) * bound;",
        )
        .with("bound", Number::Real(*bound))
        .with("seed", Number::Seed),
        Kernel::RandomNormal => Generated::map("randn", none, "result = normal(seed, index);")
            .with("seed", Number::Seed),
        Kernel::RandomBelow(limit) => Generated::map(
            "randint",
            none,
            "result = whole_between(seed, index, 0, limit);",
        )
        .with("limit", Number::Whole(limit.cast_signed()))
        .with("seed", Number::Seed),
        Kernel::Arange => Generated::map("arange", none, "result = index;"),
        Kernel::Copy => Generated::map("copy", ["x"], "result = x;"),
        Kernel::MaskBias => Generated::map("mask", ["x"], "result = x ? (T)0 : (T)-INFINITY;"),
        Kernel::Scale(factor) => {
            Generated::map("mul", ["x"], "result = (T)x * factor;").with("factor", number(*factor))
        }
        Kernel::Shift(summand) => Generated::map("add", ["x"], "result = (T)x + summand;")
            .with("summand", number(*summand)),
        Kernel::Power(exponent) => Generated::map("pow", ["x"], "result = pow((P)x, exponent);")
            .with("exponent", Number::Real(*exponent)),
        Kernel::PowerGrad(exponent) => Generated::map(
            "pow",
            ["grad", "x"],
            "result = exponent == 0 ? (P)0 : (P)grad * exponent * pow((P)x, exponent - 1);",
        )
        .with("exponent", Number::Real(*exponent)),
        Kernel::Binary(Binary::Add) => Generated::map("add", ["a", "b"], "result = (P)a + (P)b;"),
        Kernel::Binary(Binary::Mul) => Generated::map("mul", ["a", "b"], "result = (P)a * (P)b;"),
        Kernel::Unary(function) => Generated::map(function.name(), ["x"], unary(*function)),
        Kernel::UnaryGrad(function) => {
            Generated::map(function.name(), ["grad", "x"], unary_grad(*function))
        }
        Kernel::Dropout { p } => Generated::of(
            "dropout",
            ["x"],
            ["result", "mask"],
            Form::Map(
                "mask = uniform(seed, index) >= p; result = mask && p < 1 ? x / (1 - p) : (T)0;"
                    .into(),
            ),
        )
        .with("p", Number::Real(*p))
        .with("seed", Number::Seed),
        Kernel::DropoutGrad { p } => Generated::map(
            "dropout",
            ["grad", "mask"],
            "result = mask && p < 1 ? grad / (1 - p) : (T)0;",
        )
        .with("p", Number::Real(*p)),
        _ => return None,
    })
}

/// A whole number as one, so that integers stay integers.
#[allow(clippy::cast_possible_truncation)] // Below 2^53 whole numbers are exact.
fn number(value: f64) -> Number {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        Number::Whole(value as i64)
    } else {
        Number::Real(value)
    }
}

fn unary(function: Unary) -> &'static str {
    match function {
        Unary::Relu => "result = maximum(x, (P)0);",
        Unary::Gelu => "result = x * (T)0.5 * ((T)1 + erf(x * (T)0.7071067811865476));",
        Unary::GeluTanh => {
            "const T u = (T)0.7978845608028654 * (x + (T)0.044715 * x * x * x); result = (T)0.5 * x * ((T)1 + tanh(u));"
        }
        Unary::Tanh => "result = tanh((T)x);",
        Unary::Silu => "result = x * sigmoid((T)x);",
        Unary::Sigmoid => "result = sigmoid((T)x);",
        Unary::Relu6 => "result = minimum(maximum(x, (P)0), (P)6);",
        Unary::Rsqrt => "result = rsqrt((T)x);",
        Unary::Cos => "result = cos((T)x);",
        Unary::Sin => "result = sin((T)x);",
    }
}

/// From the gradient and, as `x`, what is saved: the result for relu, tanh, sigmoid and rsqrt.
fn unary_grad(function: Unary) -> &'static str {
    match function {
        Unary::Relu => "result = x > 0 ? grad : (T)0;",
        Unary::Gelu => {
            "const T cdf = (T)0.5 * ((T)1 + erf(x * (T)0.7071067811865476)), pdf = (T)0.3989422804014327 * exp((T)-0.5 * x * x);
    result = grad * (cdf + x * pdf);"
        }
        Unary::GeluTanh => {
            "const T u = (T)0.7978845608028654 * (x + (T)0.044715 * x * x * x), t = tanh(u);
    result = grad * ((T)0.5 * ((T)1 + t) + (T)0.5 * x * ((T)1 - t * t) * (T)0.7978845608028654 * ((T)1 + (T)0.134145 * x * x));"
        }
        Unary::Tanh => "result = grad * ((T)1 - x * x);",
        Unary::Silu => "const T s = sigmoid((T)x); result = grad * s * ((T)1 + x * ((T)1 - s));",
        Unary::Sigmoid => "result = grad * x * ((T)1 - x);",
        Unary::Relu6 => "result = x > 0 && x < 6 ? grad : (T)0;",
        Unary::Rsqrt => "result = (T)-0.5 * grad * x * x * x;",
        Unary::Cos => "result = -grad * sin((T)x);",
        Unary::Sin => "result = grad * cos((T)x);",
    }
}
