//! Formulas that depend on attributes, on which operands are given, or on their type.

#![expect(clippy::unnecessary_wraps, reason = "all rules have one type")]

use super::super::{Elementwise, Operand};
use crate::ops::prelude::*;

type Text = Option<&'static str>;

/// A formula by the call and the type to which its operands promote; nothing where no kernel can compute it.
pub(in super::super) type Rule = fn(&Elementwise, DType) -> Text;

/// All of them, by the names that rows have for them.
pub(super) const RULES: &[(&str, Rule)] = &[
    ("bessel", bessel),
    ("bessel_of_x", bessel_of_x),
    ("ceil", ceil),
    ("clamped", clamped),
    ("finite", finite),
    ("floor", floor),
    ("gelu_derivative", gelu_derivative),
    ("gelu_formula", gelu_formula),
    ("has_sign", has_sign),
    ("logit", logit),
    ("next", next),
    ("of_clamped", of_clamped),
    ("of_dividend", of_dividend),
    ("of_divisor", of_divisor),
    ("of_logit", of_logit),
    ("of_lower_bound", of_lower_bound),
    ("of_upper_bound", of_upper_bound),
    ("quotient", quotient),
    ("random", random),
    ("remainder", remainder),
    ("round", round),
    ("trunc", trunc),
];

fn text_of<'a>(op: &'a Elementwise, attribute: &str) -> Option<&'a str> {
    match op.attribute(attribute)? {
        Constant::Text(text) => Some(text),
        Constant::Truth(_)
        | Constant::Whole(_)
        | Constant::Real(_)
        | Constant::Length(_)
        | Constant::Symbolic
        | Constant::Complex(..) => None,
    }
}

/// The operand at this position is a tensor or a number.
fn has(op: &Elementwise, position: usize) -> bool {
    op.operands
        .get(position)
        .is_some_and(|operand| *operand != Operand::Missing)
}

/// Whole numbers are what they round to.
fn of_fractions(dtype: DType, text: &'static str) -> Text {
    Some(if dtype.is_float() { text } else { "self" })
}

/// `GeluCUDAKernelImpl` in `ActivationGeluKernel.cu`.
fn gelu_formula(op: &Elementwise, _: DType) -> Text {
    match text_of(op, "approximate")? {
        "none" => Some("self * 0.5 * (1 + erf(self * 0.7071067811865476))"),
        "tanh" => Some(
            "const C inner = 0.7978845608028654 * (self + 0.044715 * self * self * self); result = 0.5 * self * (1 + tanh(inner));",
        ),
        _ => None,
    }
}

fn gelu_derivative(op: &Elementwise, _: DType) -> Text {
    match text_of(op, "approximate")? {
        "none" => Some(
            "const C share = 0.5 * (1 + erf(self * 0.7071067811865476)); gradient = grad * (share + self * 0.3989422804014327 * exp(-0.5 * self * self));",
        ),
        "tanh" => Some(
            "const C inner = 0.7978845608028654 * (self + 0.044715 * self * self * self), t = tanh(inner), slope = 0.7978845608028654 * (1 + 0.134145 * self * self);
    gradient = grad * (0.5 * (1 + t) + 0.5 * self * (1 - t * t) * slope);",
        ),
        _ => None,
    }
}

/// `div(rounding_mode)`.
fn quotient(op: &Elementwise, dtype: DType) -> Text {
    match (text_of(op, "rounding_mode"), dtype.is_float()) {
        (Some("floor"), _) => Some("floor_quotient(self, other)"),
        (Some("trunc"), true) => Some("trunc(self / other)"),
        (Some("trunc"), false) => Some("trunc_quotient(self, other)"),
        (None, true) => Some("self / other"),
        (Some(_), _) | (None, false) => None,
    }
}

/// Of what is rounded, zeros.
fn of_dividend(op: &Elementwise, _: DType) -> Text {
    match op.attribute("rounding_mode") {
        Some(_) => Some("0"),
        None => Some("grad / other"),
    }
}

fn of_divisor(op: &Elementwise, _: DType) -> Text {
    match op.attribute("rounding_mode") {
        Some(_) => Some("0"),
        None => Some("-grad * ((self / other) / other)"),
    }
}

/// `fmod`.
fn remainder(_: &Elementwise, dtype: DType) -> Text {
    Some(if dtype.is_float() {
        "fmod(self, other)"
    } else {
        "self - trunc_quotient(self, other) * other"
    })
}

/// `nextafter`, of the types that C has it for.
fn next(_: &Elementwise, dtype: DType) -> Text {
    (!dtype.is_half()).then_some("nextafter(self, other)")
}

fn clamped(op: &Elementwise, _: DType) -> Text {
    Some(match (has(op, 1), has(op, 2)) {
        (true, true) => "minimum(maximum(self, min), max)",
        (true, false) => "maximum(self, min)",
        (false, true) => "minimum(self, max)",
        (false, false) => "self",
    })
}

/// `clamp_backward` in `FunctionsManual.cpp`.
fn of_clamped(op: &Elementwise, _: DType) -> Text {
    Some(match (has(op, 1), has(op, 2)) {
        (true, true) => "self >= min && self <= max ? grad : 0",
        (true, false) => "self >= min ? grad : 0",
        (false, true) => "self <= max ? grad : 0",
        (false, false) => "grad",
    })
}

/// `clamp_backward_min_max` in `FunctionsManual.cpp`.
fn of_lower_bound(op: &Elementwise, _: DType) -> Text {
    Some(if has(op, 2) {
        "min < max && self < min ? grad : 0"
    } else {
        "self < min ? grad : 0"
    })
}

/// The same of the other bound.
fn of_upper_bound(op: &Elementwise, _: DType) -> Text {
    Some(if has(op, 1) {
        "self > max || max < min ? grad : 0"
    } else {
        "self > max ? grad : 0"
    })
}

fn has_sign(_: &Elementwise, dtype: DType) -> Text {
    Some(if dtype.is_float() {
        "copysign(1.0, self) < 0"
    } else {
        "self < 0"
    })
}

/// `random_from_to_kernel` and `random_kernel` in `DistributionTemplates.h`: without an end, up to the largest number
/// below which a type has all whole ones.
fn random(op: &Elementwise, dtype: DType) -> Text {
    let is_given = |name: &str| op.attribute(name).is_some();
    Some(match (is_given("from"), is_given("to"), dtype) {
        (true, true, _) => "whole_between(seed, index, from, to)",
        (false, true, _) => "whole_between(seed, index, 0, to)",
        (true, false, _) => "whole_between(seed, index, from, (i64)1 << 62)",
        (false, false, DType::Float64) => "whole_between(seed, index, 0, ((i64)1 << 53) + 1)",
        (false, false, DType::Float32) => "whole_between(seed, index, 0, (1 << 24) + 1)",
        (false, false, DType::Float16) => "whole_between(seed, index, 0, (1 << 11) + 1)",
        (false, false, DType::BFloat16) => "whole_between(seed, index, 0, (1 << 8) + 1)",
        (false, false, DType::Int64) => "whole_between(seed, index, 0, (i64)1 << 62)",
        (false, false, DType::Int32) => "whole_between(seed, index, 0, (i64)1 << 31)",
        (false, false, DType::UInt8) => "whole_between(seed, index, 0, 1 << 8)",
        (false, false, DType::Bool) => "whole_between(seed, index, 0, 2)",
        (false, false, DType::Complex64 | DType::Complex128) => return None,
    })
}

/// `logit_kernel_cuda` in `UnaryGeometricKernels.cu`.
fn logit(op: &Elementwise, _: DType) -> Text {
    Some(match op.attribute("eps") {
        Some(_) => {
            "const C low = eps, high = 1 - eps, z = self < low ? low : self > high ? high : self; result = log(z / (1 - z));"
        }
        None => "log(self / (1 - self))",
    })
}

/// `logit_backward_kernel_cuda` in `BinaryMiscBackwardOpsKernels.cu`.
fn of_logit(op: &Elementwise, _: DType) -> Text {
    Some(match op.attribute("eps") {
        Some(_) => "self < eps || self > 1 - eps ? 0 : grad / (self * (1 - self))",
        None => "self < 0 || self > 1 ? NAN : grad / (self * (1 - self))",
    })
}

/// `nan_to_num`: numbers that are not given are filled in by `Elementwise::constant`.
fn finite(_: &Elementwise, dtype: DType) -> Text {
    of_fractions(
        dtype,
        "is_nan(self) ? nan : self == INFINITY ? posinf : self == -INFINITY ? neginf : self",
    )
}

fn ceil(_: &Elementwise, dtype: DType) -> Text {
    of_fractions(dtype, "ceil(self)")
}

fn floor(_: &Elementwise, dtype: DType) -> Text {
    of_fractions(dtype, "floor(self)")
}

fn trunc(_: &Elementwise, dtype: DType) -> Text {
    of_fractions(dtype, "trunc(self)")
}

/// `round`, to even, and to decimal places (`round_decimals_kernel_cuda` in `UnaryFractionKernels.cu`).
fn round(op: &Elementwise, dtype: DType) -> Text {
    let decimals = op.attribute("decimals").and_then(Constant::real);
    of_fractions(
        dtype,
        match decimals {
            Some(places) if places > 0.0 => {
                "const C ten = pow(10.0, decimals); result = rint(self * ten) / ten;"
            }
            Some(places) if places < 0.0 => {
                "const C ten = pow(10.0, -decimals); result = rint(self / ten) * ten;"
            }
            Some(_) | None => "rint(self)",
        },
    )
}

/// Bessel functions by their names.
fn bessel(op: &Elementwise, _: DType) -> Text {
    Some(match op.base_name() {
        "special_bessel_j0" => "bessel_j0(self)",
        "special_bessel_j1" => "bessel_j1(self)",
        "special_bessel_y0" => "bessel_y0(self)",
        "special_bessel_y1" => "bessel_y1(self)",
        "special_modified_bessel_i0" => "bessel_i0e(self) * exp(fabs(self))",
        "special_modified_bessel_i1" => "bessel_i1e(self) * exp(fabs(self))",
        "special_modified_bessel_k0" => "bessel_ke(0.0, self) * exp(-self)",
        "special_modified_bessel_k1" => "bessel_ke(1.0, self) * exp(-self)",
        _ => return None,
    })
}

fn bessel_of_x(op: &Elementwise, _: DType) -> Text {
    Some(match op.base_name() {
        "special_scaled_modified_bessel_k0" => "bessel_ke(0.0, x)",
        "special_scaled_modified_bessel_k1" => "bessel_ke(1.0, x)",
        "special_spherical_bessel_j0" => "x == 0 ? 1.0 : sin(x) / x",
        "special_airy_ai" => "airy_ai(x)",
        _ => return None,
    })
}
