//! Activations: what `torch.nn.functional` has of functions of one tensor.

use super::super::Elementwise;
use super::super::kernel::{gelu, hardtanh};
use super::super::row::{
    BOTH, Casts, FIRST, Forward, Gradient, Order, Read, Row, Step, Tuned, new_tensor, ordered,
};
use super::choices::{gelu_derivative, gelu_formula};
use crate::program::Unary;

/// `prelu_kernel_backward` makes both gradients; one that is not wanted goes at once.
fn prelu(_: &Elementwise, wanted: [bool; 3]) -> Vec<Step> {
    let unwanted = [0, 1].into_iter().filter(|position| !wanted[*position]);
    let both = [Step::Give(0), Step::Give(1)];
    both.into_iter().chain(unwanted.map(Step::Free)).collect()
}

#[rustfmt::skip] // A row a line.
pub(super) const ROWS: &[Row] = &[
    Row::unary(&["aten.celu.default", "aten.celu_.default"]).attributes(&["alpha"]).saves_operand(&[]).in_place(new_tensor(&[Read::Result], &[]), Gradient::None).computes("self > 0 ? self : alpha * expm1(self / alpha)").derives(["self > 0 ? grad : grad * exp(self / alpha)"]).derives_in_place("result > 0 ? grad : grad * (result / alpha + 1)"),
    Row::unary(&["aten.elu.default", "aten.elu_.default"]).attributes(&["alpha", "scale", "input_scale"]).saves_operand(&[]).in_place(new_tensor(&[Read::Result], &[]), Gradient::None).computes("self > 0 ? self * scale : expm1(self * input_scale) * alpha * scale").derives(["self > 0 ? grad * scale : grad * input_scale * alpha * scale * exp(self * input_scale)"]).derives_in_place("result > 0 ? grad * scale : grad * input_scale * (result + alpha * scale)"),
    Row::unary(&["aten.gelu.default", "aten.gelu_.default"]).attributes(&["approximate"]).saves_operand(&[]).tuned(Tuned::Unary(gelu)).computes_by(gelu_formula).derives_by([gelu_derivative]),
    Row::unary(&["aten.hardshrink.default"]).attributes(&["lambd"]).saves_operand(&[]).computes("self >= -lambd && self <= lambd ? 0 : self").derives(["self >= -lambd && self <= lambd ? 0 : grad"]),
    Row::unary(&["aten.hardsigmoid.default", "aten.hardsigmoid_.default"]).saves_operand(&[]).computes("minimum(maximum(self + 3, 0.0), 6.0) / 6").derives(["self > -3 && self < 3 ? grad / 6 : 0"]),
    Row::unary(&["aten.hardswish.default", "aten.hardswish_.default"]).saves_operand(&[]).computes("self * minimum(maximum(self + 3, 0.0), 6.0) / 6").derives(["self <= -3 ? 0 : self < 3 ? grad * (self / 3 + 0.5) : grad"]),
    Row::unary(&["aten.hardtanh.default", "aten.hardtanh_.default"]).attributes(&["min_val", "max_val"]).saves_operand(&[]).tuned(Tuned::Unary(hardtanh)).computes("minimum(maximum(self, min_val), max_val)").derives(["self <= min_val || self >= max_val ? 0 : grad"]),
    Row::unary(&["aten.leaky_relu.default", "aten.leaky_relu_.default"]).attributes(&["negative_slope"]).gradients([ordered(&[FIRST], Order::Read)]).in_place(ordered(&[Read::Result], Order::Read), Gradient::None).computes("self > 0 ? self : self * negative_slope").derives(["self > 0 ? grad : grad * negative_slope"]).derives_in_place("result > 0 ? grad : grad * negative_slope"),
    Row::unary(&["aten.log_sigmoid.default"]).saves_operand(&[]).computes("minimum(self, 0.0) - log1p(exp(-fabs(self)))").derives(["grad * sigmoid(-self)"]),
    Row::unary(&["aten.mish.default", "aten.mish_.default"]).saves_operand(&[]).computes("self * tanh(log1p(exp(self)))").derives(["const C t = tanh(log1p(exp(self))); gradient = grad * (t + self * sigmoid(self) * (1 - t * t));"]),
    Row::with_operands(&["aten.prelu.default"], &["self", "weight"]).casts(Casts::Low).forward(Forward::Prelu).together(BOTH, prelu).computes("self > 0 ? self : weight * self").derives(["self > 0 ? grad : weight * grad", "self > 0 ? 0 : self * grad"]),
    Row::unary(&["aten.relu.default", "aten.relu_.default"]).gradients([ordered(&[Read::Result], Order::Read)]).tuned(Tuned::Unary(|_| Some(Unary::Relu))).computes("maximum(self, 0.0)").derives(["result <= 0 ? 0 : grad"]),
    Row::unary(&["aten.relu6.default", "aten.relu6_.default"]).saves_operand(&[]).tuned(Tuned::Unary(|_| Some(Unary::Relu6))).computes("minimum(maximum(self, 0.0), 6.0)").derives(["self <= 0 || self >= 6 ? 0 : grad"]),
    Row::unary(&["aten.selu.default", "aten.selu_.default"]).saves_operand(&[]).in_place(new_tensor(&[Read::Result], &[]), Gradient::None).computes("self > 0 ? self * 1.0507009873554805 : expm1(self) * 1.7580993408473766").derives(["self > 0 ? grad * 1.0507009873554805 : grad * 1.7580993408473766 * exp(self)"]).derives_in_place("result > 0 ? grad * 1.0507009873554805 : grad * (result + 1.7580993408473766)"),
    Row::unary(&["aten.sigmoid.default", "aten.sigmoid_.default", "aten.special_expit.default"]).real().saves_result(&[]).tuned(Tuned::Unary(|_| Some(Unary::Sigmoid))).computes("sigmoid(self)").derives(["grad * (1 - result) * result"]),
    Row::unary(&["aten.silu.default", "aten.silu_.default"]).saves_operand(&[]).tuned(Tuned::Unary(|_| Some(Unary::Silu))).computes("self / (1 + exp(-self))").derives(["const C s = sigmoid(self); gradient = grad * s * (1 + self * (1 - s));"]),
    Row::unary(&["aten.softplus.default"]).attributes(&["beta", "threshold"]).high().saves_operand(&[]).computes("self * beta > threshold ? self : log1p(exp(self * beta)) / beta").derives(["self * beta > threshold ? grad : grad * sigmoid(self * beta)"]),
    Row::unary(&["aten.softshrink.default"]).attributes(&["lambd"]).saves_operand(&[]).computes("self > lambd ? self - lambd : self < -lambd ? self + lambd : self * 0").derives(["self >= -lambd && self <= lambd ? 0 : grad"]),
    Row::unary(&["aten.tanh.default", "aten.tanh_.default"]).real().saves_result(&[]).tuned(Tuned::Unary(|_| Some(Unary::Tanh))).computes("tanh(self)").derives(["grad * (1 - result * result)"]),
    Row::unary(&["aten.threshold.default", "aten.threshold_.default"]).attributes(&["threshold", "value"]).saves_operand(&[]).computes("self <= threshold ? value : self").derives(["self <= threshold ? 0 : grad"]),
];
