//! Functions of one tensor, but for activations.

use super::super::row::{
    FIRST, Gradient, Read, Row, Step,
    Temporary::{Like, Mask, Number},
    Tuned, new_tensor, steps,
};
use super::choices::{bessel, bessel_of_x, ceil, finite, floor, logit, of_logit, round, trunc};
use crate::program::Unary;

/// `nan_to_num_backward`: `grad * at::isfinite(self)`, which is `(self == self) * (self.abs() != inf)`.
const NAN_TO_NUM: &[Step] = &[
    Step::Make(Like),
    Step::Make(Mask),
    Step::Make(Mask),
    Step::Make(Mask),
    Step::Free(2),
    Step::Free(1),
    Step::Free(0),
    Step::Give(0),
    Step::Free(3),
];

/// `sinc_backward` in `FunctionsManual.cpp`.
const SINC: &[Step] = &[
    Step::Make(Like),
    Step::Make(Like),
    Step::Make(Like),
    Step::Free(1),
    Step::Make(Like),
    Step::Make(Like),
    Step::Make(Like),
    Step::Make(Like),
    Step::Make(Like),
    Step::Make(Like),
    Step::Free(7),
    Step::Free(6),
    Step::Free(5),
    Step::Free(4),
    Step::Free(3),
    Step::Make(Number),
    Step::Make(Mask),
    Step::Give(0),
    Step::Free(10),
    Step::Free(9),
    Step::Free(8),
    Step::Free(2),
    Step::Free(0),
];

#[rustfmt::skip] // A row a line.
pub(super) const ROWS: &[Row] = &[
    Row::unary(&["aten.abs.default", "aten.abs_.default", "aten.absolute.default", "aten.absolute_.default"]).saves_operand(&[Like]).computes("absolute(self)").derives(["grad * sign_of(self)"]),
    Row::unary(&["aten.acos.default", "aten.acos_.default", "aten.arccos.default", "aten.arccos_.default"]).real().high().saves_operand(&[Like, Like, Like, Like, Like]).computes("acos(self)").derives(["-grad * rsqrt(1 - self * self)"]),
    Row::unary(&["aten.acosh.default", "aten.acosh_.default", "aten.arccosh.default", "aten.arccosh_.default"]).real().saves_operand(&[Like, Like, Like]).computes("acosh(self)").derives(["grad * rsqrt(self * self - 1)"]),
    Row::unary(&["aten.angle.default"]).real().saves_operand(&[]).computes("is_nan(self) ? self : self < 0 ? 3.141592653589793 : 0").derives(["0"]),
    Row::unary(&["aten.asin.default", "aten.asin_.default", "aten.arcsin.default", "aten.arcsin_.default"]).real().high().saves_operand(&[Like, Like, Like, Like]).computes("asin(self)").derives(["grad * rsqrt(1 - self * self)"]),
    Row::unary(&["aten.asinh.default", "aten.asinh_.default", "aten.arcsinh.default", "aten.arcsinh_.default"]).real().saves_operand(&[Like, Like, Like]).computes("asinh(self)").derives(["grad * rsqrt(self * self + 1)"]),
    Row::unary(&["aten.atan.default", "aten.atan_.default", "aten.arctan.default", "aten.arctan_.default"]).real().saves_operand(&[Like, Like]).computes("atan(self)").derives(["grad / (self * self + 1)"]),
    Row::unary(&["aten.atanh.default", "aten.atanh_.default", "aten.arctanh.default", "aten.arctanh_.default"]).real().saves_operand(&[Like, Like, Like]).computes("atanh(self)").derives(["grad / (1 - self * self)"]),
    Row::unary(&["aten.cos.default", "aten.cos_.default"]).real().saves_operand(&[Like, Like]).tuned(Tuned::Unary(|_| Some(Unary::Cos))).computes("cos(self)").derives(["-grad * sin(self)"]),
    Row::unary(&["aten.cosh.default", "aten.cosh_.default"]).real().high().saves_operand(&[Like]).computes("cosh(self)").derives(["grad * sinh(self)"]),
    Row::unary(&["aten.deg2rad.default", "aten.deg2rad_.default"]).real().saves_nothing().computes("self * 0.017453292519943295").derives(["grad * 0.017453292519943295"]),
    Row::unary(&["aten.digamma.default", "aten.digamma_.default", "aten.special_digamma.default", "aten.special_psi.default"]).real().saves_operand(&[Like]).computes("digamma(self)").derives(["grad * polygamma(1.0, self)"]),
    Row::unary(&["aten.erf.default", "aten.erf_.default", "aten.special_erf.default"]).real().saves_operand(&[Like, Like, Like, Like]).computes("erf(self)").derives(["grad * 1.1283791670955126 * exp(-self * self)"]),
    Row::unary(&["aten.erfc.default", "aten.erfc_.default", "aten.special_erfc.default"]).real().saves_operand(&[Like, Like, Like, Like]).computes("erfc(self)").derives(["-grad * 1.1283791670955126 * exp(-self * self)"]),
    Row::unary(&["aten.erfinv.default", "aten.erfinv_.default", "aten.special_erfinv.default"]).real().high().saves_operand(&[Like, Like, Like, Like]).computes("inverse_erf(self)").derives(["grad * 0.886226925452758 * exp(square(inverse_erf(self)))"]),
    Row::unary(&["aten.exp.default", "aten.exp_.default"]).real().high().saves_result(&[]).computes("exp(self)").derives(["grad * result"]),
    Row::unary(&["aten.exp2.default", "aten.exp2_.default", "aten.special_exp2.default"]).real().saves_result(&[Like]).computes("exp2(self)").derives(["grad * result * 0.6931471805599453"]),
    Row::unary(&["aten.expm1.default", "aten.expm1_.default", "aten.special_expm1.default"]).real().high().saves_result(&[Like]).computes("expm1(self)").derives(["grad * (result + 1)"]),
    Row::unary(&["aten.i0.default", "aten.i0_.default", "aten.special_i0.default"]).real().saves_operand(&[Like]).computes("bessel_i0e(self) * exp(fabs(self))").derives(["grad * bessel_i1e(self) * exp(fabs(self))"]),
    Row::unary(&["aten.lgamma.default", "aten.lgamma_.default", "aten.special_gammaln.default"]).real().saves_operand(&[Like]).computes("lgamma(self)").derives(["grad * digamma(self)"]),
    Row::unary(&["aten.log.default", "aten.log_.default"]).real().high().saves_operand(&[]).computes("log(self)").derives(["grad / self"]),
    Row::unary(&["aten.log10.default", "aten.log10_.default"]).real().high().saves_operand(&[Like]).computes("log10(self)").derives(["grad / (self * 2.302585092994046)"]),
    Row::unary(&["aten.log1p.default", "aten.log1p_.default", "aten.special_log1p.default"]).real().high().saves_operand(&[Like]).computes("log1p(self)").derives(["grad / (self + 1)"]),
    Row::unary(&["aten.log2.default", "aten.log2_.default"]).real().high().saves_operand(&[Like]).computes("log2(self)").derives(["grad / (self * 0.6931471805599453)"]),
    Row::unary(&["aten.logit.default", "aten.logit_.default", "aten.special_logit.default"]).attributes(&["eps"]).real().saves_operand(&[]).computes_by(logit).derives_by([of_logit]),
    Row::unary(&["aten.nan_to_num.default", "aten.nan_to_num_.default"]).attributes(&["nan", "posinf", "neginf"]).gradients([steps(&[FIRST], NAN_TO_NUM)]).computes_by(finite).derives(["self - self == 0 ? grad : 0"]),
    Row::unary(&["aten.neg.default", "aten.neg_.default", "aten.negative.default", "aten.negative_.default"]).saves_nothing().tuned(Tuned::Negation).computes("-self").derives(["-grad"]),
    Row::unary(&["aten.rad2deg.default", "aten.rad2deg_.default"]).real().saves_nothing().computes("self * 57.29577951308232").derives(["grad * 57.29577951308232"]),
    Row::unary(&["aten.reciprocal.default", "aten.reciprocal_.default"]).real().high().saves_result(&[Like, Like]).computes("1 / self").derives(["-grad * (result * result)"]),
    Row::unary(&["aten.rsqrt.default", "aten.rsqrt_.default"]).real().high().saves_result(&[Like, Like]).tuned(Tuned::Unary(|_| Some(Unary::Rsqrt))).computes("rsqrt(self)").derives(["-0.5 * grad * (result * result * result)"]),
    Row::unary(&["aten.sin.default", "aten.sin_.default"]).real().saves_operand(&[Like]).tuned(Tuned::Unary(|_| Some(Unary::Sin))).computes("sin(self)").derives(["grad * cos(self)"]),
    Row::unary(&["aten.sinc.default", "aten.sinc_.default", "aten.special_sinc.default"]).real().gradients([steps(&[FIRST], SINC)]).computes("const C a = self * 3.141592653589793; result = a == 0 ? 1.0 : sin(a) / a;").derives(["const C a = self * 3.141592653589793; gradient = a == 0 ? 0 : grad * ((a * cos(a) - sin(a)) / (a * self));"]),
    Row::unary(&["aten.sinh.default", "aten.sinh_.default"]).real().high().saves_operand(&[Like]).computes("sinh(self)").derives(["grad * cosh(self)"]),
    Row::unary(&["aten.special_entr.default"]).real().saves_operand(&[Like, Like, Like]).computes("is_nan(self) ? self : self > 0 ? -self * log(self) : self == 0 ? 0 : -INFINITY").derives(["-grad * (1 + log(self))"]),
    Row::unary(&["aten.special_erfcx.default"]).real().gradients([new_tensor(&[FIRST, Read::Result], &[Like, Like, Like])]).computes("scaled_erfc(self)").derives(["(2 * self * result - 1.1283791670955126) * grad"]),
    Row::unary(&["aten.special_i0e.default"]).real().gradients([new_tensor(&[FIRST, Read::Result], &[Like, Like, Like, Like])]).computes("bessel_i0e(self)").derives(["grad * (bessel_i1e(self) - sign_of(self) * result)"]),
    Row::unary(&["aten.special_log_ndtr.default"]).real().gradients([new_tensor(&[FIRST, Read::Result], &[Like, Like, Like, Like, Like, Like])]).computes("log_ndtr(self)").derives(["grad * 0.3989422804014327 * exp(-(result + self * self / 2))"]),
    Row::unary(&["aten.special_ndtri.default"]).real().saves_result(&[Like, Like, Like, Like]).computes("normal_quantile(self)").derives(["grad * 2.5066282746310002 * exp(result * result / 2)"]),
    Row::unary(&["aten.sqrt.default", "aten.sqrt_.default"]).real().saves_result(&[Like]).computes("sqrt(self)").derives(["grad / (2 * result)"]),
    Row::unary(&["aten.square.default", "aten.square_.default"]).high().saves_operand(&[Like, Like]).tuned(Tuned::Square).computes("self * self").derives(["grad * (2 * self)"]),
    Row::unary(&["aten.tan.default", "aten.tan_.default"]).real().high().saves_result(&[Like, Like]).computes("tan(self)").derives(["grad * (1 + result * result)"]),
    Row::unary(&["aten.polygamma.default", "aten.special_polygamma.default"]).attributes(&["n"]).real().saves_operand(&[Like]).computes("polygamma(n, self)").derives(["grad * polygamma(n + 1, self)"]),
    // Without a derivative.
    Row::unary(&["aten.special_bessel_j0.default", "aten.special_bessel_j1.default", "aten.special_bessel_y0.default", "aten.special_bessel_y1.default", "aten.special_modified_bessel_i0.default", "aten.special_modified_bessel_i1.default", "aten.special_modified_bessel_k0.default", "aten.special_modified_bessel_k1.default"]).real().computes_by(bessel),
    Row::with_operands(&["aten.special_scaled_modified_bessel_k0.default", "aten.special_scaled_modified_bessel_k1.default", "aten.special_spherical_bessel_j0.default", "aten.special_airy_ai.default"], &["x"]).real().computes_by(bessel_of_x),
    Row::unary(&["aten.poisson.default"]).saves_nothing().computes("poisson(seed, index, self)").derives(["0"]),
    // Steps: their derivatives are zeros.
    Row::unary(&["aten.ceil.default", "aten.ceil_.default"]).saves_nothing().computes_by(ceil).derives(["0"]),
    Row::unary(&["aten.floor.default", "aten.floor_.default"]).saves_nothing().computes_by(floor).derives(["0"]),
    Row::unary(&["aten.sign.default", "aten.sign_.default"]).saves_nothing().computes("sign_of(self)").derives(["0"]),
    Row::unary(&["aten.trunc.default", "aten.trunc_.default", "aten.fix.default", "aten.fix_.default"]).saves_nothing().computes_by(trunc).derives(["0"]),
    Row::unary(&["aten.round.default", "aten.round.decimals", "aten.round_.default", "aten.round_.decimals", "aten.special_round.default"]).attributes(&["decimals"]).saves_nothing().computes_by(round).derives(["0"]),
    // An efficient zero tensor, which takes no memory.
    Row::unary(&["aten.sgn.default"]).computes("sign_of(self)"),
    Row::unary(&["aten.frac.default", "aten.frac_.default"]).gradients([Gradient::Pass]).computes("self - trunc(self)").derives(["grad"]),
];
