//! Choosing among values, and writing over them.

use super::super::row::{
    FIRST, Forward, Gradient, Order, ResultType, Row, SECOND, Step,
    Temporary::{Float, Number, Of},
    made, ordered,
};

/// Chances are read as float32 (`bernoulli_tensor_cuda_kernel` in `DistributionTemplates.h`): those of the operand.
const OF_SELF: &[Step] = &[Step::Give(0), Step::Make(Float(0)), Step::Free(1)];

/// The same, of another tensor.
const OF_CHANCES: &[Step] = &[Step::Give(0), Step::Make(Float(1)), Step::Free(1)];

/// `normal_out_impl`: deviations, once the result is there.
const NORMAL: &[Step] = &[Step::Give(0), Step::Make(Of(0)), Step::Free(1)];

/// `where(condition, grad, 0)`: the zero is a tensor; the order is the condition's.
const BRANCH: Gradient = Gradient::Made {
    reads: &[FIRST],
    before: &[Number],
    after: &[],
    order: Order::Read,
};

#[rustfmt::skip] // A row a line.
pub(super) const ROWS: &[Row] = &[
    Row::with_operands(&["aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar"], &["condition", "self", "other"]).result(ResultType::Branches).forward(Forward::Where).gradients([Gradient::None, BRANCH, BRANCH]),
    Row::with_operands(&["aten.masked_fill.Scalar", "aten.masked_fill.Tensor", "aten.masked_fill_.Scalar", "aten.masked_fill_.Tensor"], &["self", "mask", "value"]).result(ResultType::First).gradients([ordered(&[SECOND], Order::Contiguous)]),
    Row::with_operands(&["aten.fill.Scalar", "aten.fill.Tensor", "aten.fill_.Scalar", "aten.fill_.Tensor"], &["self", "value"]).result(ResultType::First).saves_nothing(),
    Row::unary(&["aten.zero.default", "aten.zero_.default"]).result(ResultType::First).saves_nothing(),
    Row::with_operands(&["aten.copy.default", "aten.copy_.default"], &["self", "src"]).result(ResultType::First).gradients([made(&[], &[]), Gradient::Converted]),
    Row::binary(&["aten.copy_.Tensor"]).result(ResultType::First).gradients([made(&[], &[]), Gradient::Converted]),
    Row::unary(&["aten.bernoulli.default"]).result(ResultType::First).forward(Forward::Steps(OF_SELF)).saves_nothing(),
    Row::with_operands(&["aten.bernoulli.Tensor", "aten.bernoulli_.Tensor"], &["self", "p"]).result(ResultType::First).forward(Forward::Steps(OF_CHANCES)).saves_nothing(),
    Row::with_operands(&["aten.bernoulli_.float"], &["self", "p"]).result(ResultType::First).saves_nothing(),
    Row::with_operands(&["aten.bernoulli.p"], &["self", "p"]).result(ResultType::First),
    Row::unary(&["aten.uniform.default", "aten.uniform_.default"]).attributes(&["from", "to"]).result(ResultType::First).saves_nothing(),
    Row::unary(&["aten.normal_.default", "aten.normal_functional.default"]).attributes(&["mean", "std"]).result(ResultType::First).saves_nothing(),
    Row::with_operands(&["aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor"], &["mean", "std"]).real().forward(Forward::Steps(NORMAL)).gradients([made(&[], &[]), made(&[], &[])]),
    Row::unary(&["aten.exponential.default", "aten.exponential_.default"]).attributes(&["lambd"]).result(ResultType::First).saves_nothing(),
    Row::unary(&["aten.log_normal.default", "aten.log_normal_.default"]).attributes(&["mean", "std"]).result(ResultType::First).saves_nothing(),
    Row::unary(&["aten.cauchy.default", "aten.cauchy_.default"]).attributes(&["median", "sigma"]).result(ResultType::First).saves_nothing(),
    Row::unary(&["aten.geometric.default", "aten.geometric_.default"]).attributes(&["p"]).result(ResultType::First).saves_nothing(),
    Row::unary(&["aten.random.from", "aten.random.to", "aten.random.default", "aten.random_.from", "aten.random_.to", "aten.random_.default"]).attributes(&["from", "to"]).result(ResultType::First).saves_nothing(),
];
