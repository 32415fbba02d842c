//! Formulas of several statements, and those that depend on attributes.

use super::super::Elementwise;
use super::super::row::{
    BOTH, FIRST, Gradient, Order, Read, SECOND, Step, Temporary,
    Temporary::{Bytes, Like, Mask, MaskOf, Number, Of},
    new_tensor,
};
use crate::aten::Constant;

/// `self / other`, as large as the result.
pub(super) const OF_QUOTIENT: Temporary = Like;

/// `maximum`, `minimum`: `(grad / 2).masked_fill_(self != other, grad)` and the mask of the other.
pub(super) const EXTREME: Gradient = Gradient::Made {
    reads: BOTH,
    before: &[Like, Mask],
    after: &[Mask],
    order: Order::Gradient,
};

/// `pow_backward_self`: `where(exponent == 0, 0, grad * (exponent * self.pow(exponent - 1)))`.
pub(super) const POWER_OF_BASE: Gradient =
    new_tensor(BOTH, &[Of(1), Like, Like, Like, Number, MaskOf(1)]);

/// `pow_backward_exponent`.
pub(super) const POWER_OF_EXPONENT: Gradient = Gradient::Steps {
    reads: &[FIRST, SECOND, Read::Result],
    steps: &[
        Step::Make(MaskOf(1)),
        Step::Make(MaskOf(0)),
        Step::Make(Mask),
        Step::Free(1),
        Step::Free(0),
        Step::Make(Of(0)),
        Step::Make(Like),
        Step::Make(Number),
        Step::Make(Like),
        Step::Give(1),
        Step::Free(6),
        Step::Free(5),
        Step::Free(4),
        Step::Free(3),
        Step::Free(2),
    ],
};

/// `pow(number, exponent)`: the number becomes a tensor once the result is there.
pub(super) const POWER_OF_NUMBER: &[Step] = &[Step::Give(0), Step::Make(Bytes(8)), Step::Free(1)];

/// `copysign_tensor_self_backward`: `grad * (result / self).masked_fill_(self == 0, 0)`.
pub(super) const COPYSIGN: &[Step] = &[
    Step::Make(Like),
    Step::Make(Mask),
    Step::Free(1),
    Step::Give(0),
    Step::Free(0),
];

/// `grad / (1 + pow(2, other - self))`.
pub(super) const LOGADDEXP2_FIRST: &[Step] = &logaddexp2(0);
/// The same of the other operand.
pub(super) const LOGADDEXP2_SECOND: &[Step] = &logaddexp2(1);

const fn logaddexp2(position: usize) -> [Step; 9] {
    [
        Step::Make(Like),
        Step::Make(Like),
        Step::Make(Bytes(8)),
        Step::Free(2),
        Step::Make(Like),
        Step::Give(position),
        Step::Free(3),
        Step::Free(1),
        Step::Free(0),
    ]
}

/// `-grad * alpha`: the negation, and a product where `alpha` is not one.
pub(super) fn minus_alpha(op: &Elementwise) -> Gradient {
    if op.is("alpha", 1.0) {
        new_tensor(&[], &[])
    } else {
        new_tensor(&[], &[Like])
    }
}

/// A quotient that is rounded has zeros for a derivative (`div_tensor_self_backward`).
pub(super) fn rounded_dividend(op: &Elementwise) -> Gradient {
    match op.attribute("rounding_mode") {
        Some(_) => new_tensor(&[], &[]),
        None => new_tensor(&[SECOND], &[]),
    }
}

/// The same of the divisor, which saves both operands.
pub(super) fn rounded_divisor(op: &Elementwise) -> Gradient {
    match op.attribute("rounding_mode") {
        Some(_) => new_tensor(BOTH, &[]),
        None => new_tensor(BOTH, &[Like, Like, Like]),
    }
}

/// `pow_backward`: `grad * (exponent * self ** (exponent - 1))`, zeros where the exponent is zero.
pub(super) fn power(op: &Elementwise) -> Gradient {
    let exponent = op.number(1).and_then(Constant::real);
    if exponent.is_some_and(|exponent| exponent.abs() < f64::MIN_POSITIVE) {
        new_tensor(&[FIRST], &[])
    } else {
        new_tensor(&[FIRST], &[Like, Like])
    }
}

/// `grad * at::xlogy(self != 0, other)` of a tensor, `grad * other.log()` of a number.
pub(super) fn xlogy(op: &Elementwise) -> Gradient {
    match op.number(1) {
        Some(_) => new_tensor(&[FIRST], &[]),
        None => new_tensor(BOTH, &[Like, MaskOf(1), MaskOf(0), Mask]),
    }
}

/// `grad * -self * special_zeta(self + 1, other)`: what is of a number alone is one.
pub(super) fn zeta(op: &Elementwise) -> Gradient {
    match op.number(0) {
        Some(_) => new_tensor(BOTH, &[Like, Like]),
        None => new_tensor(BOTH, &[Like, Like, Like, Like]),
    }
}

/// `clamp_backward` of numbers: a mask for each bound, and their conjunction.
pub(super) fn clamp(op: &Elementwise) -> Gradient {
    Gradient::Made {
        reads: &[FIRST],
        before: if op.given_operands() == 3 {
            &[Number, Mask, Mask]
        } else {
            &[Number, Mask]
        },
        after: &[],
        order: Order::Read,
    }
}

/// `clamp_backward_min_max` for the bounds that want a gradient, then `clamp_backward` for the operand.
pub(super) fn clamp_by_tensors(op: &Elementwise, wanted: [bool; 3]) -> Vec<Step> {
    let masks = op.given_operands() - 1;
    let mut steps = Vec::new();
    let mut made = 0;
    let mut take = |steps: &mut Vec<Step>, step: Step| {
        steps.push(step);
        made += 1;
        made - 1
    };
    let bounds: Vec<usize> = [1, 2].into_iter().filter(|bound| wanted[*bound]).collect();
    for group in [bounds.as_slice(), if wanted[0] { &[0] } else { &[] }] {
        if group.is_empty() {
            continue;
        }
        let zero = take(&mut steps, Step::Make(Number));
        for position in group {
            let held: Vec<usize> = (0..masks)
                .map(|_| take(&mut steps, Step::Make(Mask)))
                .collect();
            take(&mut steps, Step::Give(*position));
            steps.extend(held.into_iter().rev().map(Step::Free));
        }
        steps.push(Step::Free(zero));
    }
    steps
}

/// `atan2_backward`: one reciprocal of the squared length for both gradients.
pub(super) fn atan2(_: &Elementwise, wanted: [bool; 3]) -> Vec<Step> {
    let mut steps = vec![
        Step::Make(Of(1)),
        Step::Make(Of(0)),
        Step::Make(Like),
        Step::Free(1),
        Step::Free(0),
        Step::Make(Like),
        Step::Make(Mask),
        Step::Free(4),
    ];
    let mut made = 5;
    let mut held = Vec::new();
    // `grad * (other * recip)`, and `grad * (-self * recip)`.
    for (position, temporaries) in [(0, 1), (1, 2)] {
        if !wanted[position] {
            continue;
        }
        for _ in 0..temporaries {
            steps.push(Step::Make(Like));
            held.push(made);
            made += 1;
        }
        steps.push(Step::Give(position));
        made += 1;
    }
    steps.extend(held.into_iter().rev().map(Step::Free));
    steps.extend([Step::Free(3), Step::Free(2)]);
    steps
}
