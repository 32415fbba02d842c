//! Comparisons, and functions of truth values and bits. None has a derivative.

use super::super::row::{
    Forward, Gradient, Row, Step,
    Temporary::{MaskOf, Of},
};
use super::choices::has_sign;

/// `(self == self) * (self.abs() != inf)` (`isfinite` in `TensorCompare.cpp`).
const IS_FINITE: &[Step] = &[
    Step::Make(Of(0)),
    Step::Make(MaskOf(0)),
    Step::Make(MaskOf(0)),
    Step::Give(0),
    Step::Free(2),
    Step::Free(1),
    Step::Free(0),
];

/// `self.abs() == inf` (`isinf` in `UnaryOps.cpp`).
const IS_INF: &[Step] = &[Step::Make(Of(0)), Step::Give(0), Step::Free(0)];

#[rustfmt::skip] // A row a line.
pub(super) const ROWS: &[Row] = &[
    Row::binary(&["aten.eq.Tensor", "aten.eq.Scalar", "aten.eq_.Scalar", "aten.eq_.Tensor"]).truth().in_place(Gradient::Zeros(&[]), Gradient::Zeros(&[])).computes("self == other"),
    Row::binary(&["aten.ne.Tensor", "aten.ne.Scalar", "aten.ne_.Scalar", "aten.ne_.Tensor", "aten.not_equal.Tensor", "aten.not_equal.Scalar", "aten.not_equal_.Scalar", "aten.not_equal_.Tensor"]).truth().in_place(Gradient::Zeros(&[]), Gradient::Zeros(&[])).computes("self != other"),
    Row::binary(&["aten.lt.Tensor", "aten.lt.Scalar", "aten.lt_.Scalar", "aten.lt_.Tensor", "aten.less.Tensor", "aten.less.Scalar", "aten.less_.Scalar", "aten.less_.Tensor"]).truth().in_place(Gradient::Zeros(&[]), Gradient::Zeros(&[])).computes("self < other"),
    Row::binary(&["aten.le.Tensor", "aten.le.Scalar", "aten.le_.Scalar", "aten.le_.Tensor", "aten.less_equal.Tensor", "aten.less_equal.Scalar", "aten.less_equal_.Scalar", "aten.less_equal_.Tensor"]).truth().in_place(Gradient::Zeros(&[]), Gradient::Zeros(&[])).computes("self <= other"),
    Row::binary(&["aten.gt.Tensor", "aten.gt.Scalar", "aten.gt_.Scalar", "aten.gt_.Tensor", "aten.greater.Tensor", "aten.greater.Scalar", "aten.greater_.Scalar", "aten.greater_.Tensor"]).truth().in_place(Gradient::Zeros(&[]), Gradient::Zeros(&[])).computes("self > other"),
    Row::binary(&["aten.ge.Tensor", "aten.ge.Scalar", "aten.ge_.Scalar", "aten.ge_.Tensor", "aten.greater_equal.Tensor", "aten.greater_equal.Scalar", "aten.greater_equal_.Scalar", "aten.greater_equal_.Tensor"]).truth().in_place(Gradient::Zeros(&[]), Gradient::Zeros(&[])).computes("self >= other"),
    Row::binary(&["aten.logical_and.default", "aten.logical_and_.default"]).truth().computes("self != 0 && other != 0"),
    Row::binary(&["aten.logical_or.default", "aten.logical_or_.default"]).truth().computes("self != 0 || other != 0"),
    Row::binary(&["aten.logical_xor.default", "aten.logical_xor_.default"]).truth().computes("(self != 0) != (other != 0)"),
    Row::unary(&["aten.logical_not.default", "aten.logical_not_.default"]).truth().computes("self == 0"),
    Row::unary(&["aten.isnan.default"]).truth().computes("is_nan(self)"),
    Row::unary(&["aten.isneginf.default"]).truth().computes("self == -INFINITY"),
    Row::unary(&["aten.isposinf.default"]).truth().computes("self == INFINITY"),
    Row::unary(&["aten.isreal.default"]).truth().computes("true"),
    Row::unary(&["aten.signbit.default"]).truth().computes_by(has_sign),
    Row::unary(&["aten.isfinite.default"]).truth().forward(Forward::OfFractions(IS_FINITE)).computes("self - self == 0"),
    Row::unary(&["aten.isinf.default"]).truth().forward(Forward::OfFractions(IS_INF)).computes("self == INFINITY || self == -INFINITY"),
    Row::unary(&["aten.bitwise_not.default", "aten.bitwise_not_.default"]).computes("inverted(self)"),
    Row::binary(&["aten.bitwise_and.Tensor", "aten.bitwise_and.Scalar", "aten.bitwise_and.Scalar_Tensor", "aten.bitwise_and_.Tensor", "aten.bitwise_and_.Scalar", "aten.__and__.Scalar", "aten.__and__.Tensor", "aten.__iand__.Tensor", "aten.__iand__.Scalar"]).computes("self & other"),
    Row::binary(&["aten.bitwise_or.Tensor", "aten.bitwise_or.Scalar", "aten.bitwise_or.Scalar_Tensor", "aten.bitwise_or_.Tensor", "aten.bitwise_or_.Scalar", "aten.__or__.Tensor", "aten.__or__.Scalar", "aten.__ior__.Tensor", "aten.__ior__.Scalar"]).computes("self | other"),
    Row::binary(&["aten.bitwise_xor.Tensor", "aten.bitwise_xor.Scalar", "aten.bitwise_xor.Scalar_Tensor", "aten.bitwise_xor_.Tensor", "aten.bitwise_xor_.Scalar", "aten.__xor__.Tensor", "aten.__xor__.Scalar", "aten.__ixor__.Tensor", "aten.__ixor__.Scalar"]).computes("self ^ other"),
    Row::binary(&["aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar", "aten.bitwise_left_shift.Scalar_Tensor", "aten.bitwise_left_shift_.Tensor_Scalar", "aten.bitwise_left_shift_.Tensor", "aten.__lshift__.Tensor", "aten.__lshift__.Scalar", "aten.__ilshift__.Tensor", "aten.__ilshift__.Scalar"]).computes("shifted_left(self, other)"),
    Row::binary(&["aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar", "aten.bitwise_right_shift.Scalar_Tensor", "aten.bitwise_right_shift_.Tensor_Scalar", "aten.bitwise_right_shift_.Tensor", "aten.__rshift__.Tensor", "aten.__rshift__.Scalar", "aten.__irshift__.Tensor", "aten.__irshift__.Scalar"]).computes("shifted_right(self, other)"),
];
