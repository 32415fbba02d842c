//! Choosing among values, and writing over them.

use super::super::row::{
    FIRST, Forward, Gradient, Order, ResultType, Row, SECOND, Step,
    Temporary::{Float, Number, Of},
    new_tensor, ordered,
};
use super::choices::random;

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
    Row::with_operands(&["aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar"], &["condition", "self", "other"]).result(ResultType::Branches).forward(Forward::Where).gradients([Gradient::None, BRANCH, BRANCH]).computes("condition ? self : other").derives(["0", "condition ? grad : 0", "condition ? 0 : grad"]),
    Row::with_operands(&["aten.masked_fill.Scalar", "aten.masked_fill.Tensor", "aten.masked_fill_.Scalar", "aten.masked_fill_.Tensor"], &["self", "mask", "value"]).result(ResultType::First).gradients([ordered(&[SECOND], Order::Contiguous)]).computes("mask ? value : self").derives(["mask ? 0 : grad"]),
    Row::with_operands(&["aten.fill.Scalar", "aten.fill.Tensor", "aten.fill_.Scalar", "aten.fill_.Tensor"], &["self", "value"]).result(ResultType::First).saves_nothing().computes("value").derives(["0"]),
    Row::unary(&["aten.zero.default", "aten.zero_.default"]).result(ResultType::First).saves_nothing().computes("0").derives(["0"]),
    Row::with_operands(&["aten.copy.default", "aten.copy_.default"], &["self", "src"]).result(ResultType::First).gradients([new_tensor(&[], &[]), Gradient::Converted]).computes("src").derives(["0"]),
    Row::binary(&["aten.copy_.Tensor"]).result(ResultType::First).gradients([new_tensor(&[], &[]), Gradient::Converted]).computes("other").derives(["0"]),
    Row::unary(&["aten.bernoulli.default"]).result(ResultType::First).forward(Forward::Steps(OF_SELF)).saves_nothing().computes("uniform(seed, index) < self").derives(["0"]),
    Row::with_operands(&["aten.bernoulli.Tensor", "aten.bernoulli_.Tensor"], &["self", "p"]).result(ResultType::First).forward(Forward::Steps(OF_CHANCES)).saves_nothing().computes("uniform(seed, index) < p").derives(["0"]),
    Row::with_operands(&["aten.bernoulli_.float"], &["self", "p"]).result(ResultType::First).saves_nothing().computes("uniform(seed, index) < p").derives(["0"]),
    Row::with_operands(&["aten.bernoulli.p"], &["self", "p"]).result(ResultType::First).computes("uniform(seed, index) < p"),
    Row::unary(&["aten.uniform.default", "aten.uniform_.default"]).attributes(&["from", "to"]).result(ResultType::First).saves_nothing().computes("from + (to - from) * uniform(seed, index)").derives(["0"]),
    Row::unary(&["aten.normal_.default", "aten.normal_functional.default"]).attributes(&["mean", "std"]).result(ResultType::First).saves_nothing().computes("mean + std * normal(seed, index)").derives(["0"]),
    Row::with_operands(&["aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor"], &["mean", "std"]).real().forward(Forward::Steps(NORMAL)).gradients([new_tensor(&[], &[]), new_tensor(&[], &[])]).computes("mean + std * normal(seed, index)").derives(["0", "0"]),
    Row::unary(&["aten.exponential.default", "aten.exponential_.default"]).attributes(&["lambd"]).result(ResultType::First).saves_nothing().computes("-log(uniform(seed, index)) / lambd").derives(["0"]),
    Row::unary(&["aten.log_normal.default", "aten.log_normal_.default"]).attributes(&["mean", "std"]).result(ResultType::First).saves_nothing().computes("exp(mean + std * normal(seed, index))").derives(["0"]),
    Row::unary(&["aten.cauchy.default", "aten.cauchy_.default"]).attributes(&["median", "sigma"]).result(ResultType::First).saves_nothing().computes("median + sigma * tan(3.141592653589793 * (uniform(seed, index) - 0.5))").derives(["0"]),
    Row::unary(&["aten.geometric.default", "aten.geometric_.default"]).attributes(&["p"]).result(ResultType::First).saves_nothing().computes("ceil(log(uniform(seed, index)) / log1p(-p))").derives(["0"]),
    Row::unary(&["aten.random.from", "aten.random.to", "aten.random.default", "aten.random_.from", "aten.random_.to", "aten.random_.default"]).attributes(&["from", "to"]).result(ResultType::First).saves_nothing().computes_by(random).derives(["0"]),
];
