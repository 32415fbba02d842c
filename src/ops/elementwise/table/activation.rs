//! Activations: what `torch.nn.functional` has of functions of one tensor.

use super::super::Elementwise;
use super::super::kernel::{gelu, hardtanh};
use super::super::row::{
    BOTH, Casts, Computes, FIRST, Forward, Gradient, Order, Read, Row, Step, made, ordered,
};
use crate::program::Unary;

/// `prelu_kernel_backward` makes both gradients; one that nobody wants goes at once.
fn prelu(_: &Elementwise, wanted: [bool; 3]) -> Vec<Step> {
    let unwanted = [0, 1].into_iter().filter(|position| !wanted[*position]);
    let both = [Step::Give(0), Step::Give(1)];
    both.into_iter().chain(unwanted.map(Step::Free)).collect()
}

#[rustfmt::skip] // A row a line.
pub(super) const ROWS: &[Row] = &[
    Row::unary(&["aten.celu.default", "aten.celu_.default"]).attributes(&["alpha"]).saves_operand(&[]).in_place(made(&[Read::Result], &[]), Gradient::None),
    Row::unary(&["aten.elu.default", "aten.elu_.default"]).attributes(&["alpha", "scale", "input_scale"]).saves_operand(&[]).in_place(made(&[Read::Result], &[]), Gradient::None),
    Row::unary(&["aten.gelu.default", "aten.gelu_.default"]).attributes(&["approximate"]).saves_operand(&[]).computes(Computes::Unary(gelu)),
    Row::unary(&["aten.hardshrink.default"]).attributes(&["lambd"]).saves_operand(&[]),
    Row::unary(&["aten.hardsigmoid.default", "aten.hardsigmoid_.default"]).saves_operand(&[]),
    Row::unary(&["aten.hardswish.default", "aten.hardswish_.default"]).saves_operand(&[]),
    Row::unary(&["aten.hardtanh.default", "aten.hardtanh_.default"]).attributes(&["min_val", "max_val"]).saves_operand(&[]).computes(Computes::Unary(hardtanh)),
    Row::unary(&["aten.leaky_relu.default", "aten.leaky_relu_.default"]).attributes(&["negative_slope"]).gradients([ordered(&[FIRST], Order::Read)]).in_place(ordered(&[Read::Result], Order::Read), Gradient::None),
    Row::unary(&["aten.log_sigmoid.default"]).saves_operand(&[]),
    Row::unary(&["aten.mish.default", "aten.mish_.default"]).saves_operand(&[]),
    Row::with_operands(&["aten.prelu.default"], &["self", "weight"]).casts(Casts::Low).forward(Forward::Prelu).together(BOTH, prelu),
    Row::unary(&["aten.relu.default", "aten.relu_.default"]).gradients([ordered(&[Read::Result], Order::Read)]).computes(Computes::Unary(|_| Some(Unary::Relu))),
    Row::unary(&["aten.relu6.default", "aten.relu6_.default"]).saves_operand(&[]).computes(Computes::Unary(|_| Some(Unary::Relu6))),
    Row::unary(&["aten.selu.default", "aten.selu_.default"]).saves_operand(&[]).in_place(made(&[Read::Result], &[]), Gradient::None),
    Row::unary(&["aten.sigmoid.default", "aten.sigmoid_.default", "aten.special_expit.default"]).real().saves_result(&[]).computes(Computes::Unary(|_| Some(Unary::Sigmoid))),
    Row::unary(&["aten.silu.default", "aten.silu_.default"]).saves_operand(&[]).computes(Computes::Unary(|_| Some(Unary::Silu))),
    Row::unary(&["aten.softplus.default"]).attributes(&["beta", "threshold"]).high().saves_operand(&[]),
    Row::unary(&["aten.softshrink.default"]).attributes(&["lambd"]).saves_operand(&[]),
    Row::unary(&["aten.tanh.default", "aten.tanh_.default"]).real().saves_result(&[]).computes(Computes::Unary(|_| Some(Unary::Tanh))),
    Row::unary(&["aten.threshold.default", "aten.threshold_.default"]).attributes(&["threshold", "value"]).saves_operand(&[]),
];
