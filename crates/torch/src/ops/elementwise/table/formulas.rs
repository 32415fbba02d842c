//! Gradients that depend on the call, by the names that rows have for them.

use super::super::Elementwise;
use super::super::row::{
    Gradient, Order, Read, Step,
    Temporary::{self, Like, Mask, MaskOf, Number, Of},
};
use crate::aten::Constant;

/// Those of one operand.
pub(super) const GRADIENTS: &[(&str, fn(&Elementwise) -> Gradient)] = &[
    ("clamp", clamp),
    ("minus_alpha", minus_alpha),
    ("power", power),
    ("rounded_dividend", rounded_dividend),
    ("rounded_divisor", rounded_divisor),
    ("times_alpha", times_alpha),
    ("xlogy", xlogy),
    ("zeta", zeta),
];

/// Statements that give several, by which are wanted.
pub(in super::super) type Together = fn(&Elementwise, [bool; 3]) -> Vec<Step>;

/// Those.
pub(super) const TOGETHER: &[(&str, Together)] = &[
    ("atan2", atan2),
    ("clamp_by_tensors", clamp_by_tensors),
    ("prelu", prelu),
];

const FIRST: Read = Read::Operand(0);
const SECOND: Read = Read::Operand(1);
const BOTH: &[Read] = &[FIRST, SECOND];

/// A new tensor, after these temporaries.
const fn new_tensor(reads: &'static [Read], before: &'static [Temporary]) -> Gradient {
    Gradient::Made {
        reads,
        before,
        after: &[],
        order: Order::Gradient,
    }
}

/// The gradient of an operand times a number: the incoming one where the number is one.
fn times_alpha(op: &Elementwise) -> Gradient {
    if op.is("alpha", 1.0) {
        Gradient::Pass
    } else {
        new_tensor(&[], &[])
    }
}

/// `-grad * alpha`: the negation, and a product where `alpha` is not one.
fn minus_alpha(op: &Elementwise) -> Gradient {
    if op.is("alpha", 1.0) {
        new_tensor(&[], &[])
    } else {
        new_tensor(&[], &[Like])
    }
}

/// A quotient that is rounded has zeros for a derivative (`div_tensor_self_backward`).
fn rounded_dividend(op: &Elementwise) -> Gradient {
    match op.attribute("rounding_mode") {
        Some(_) => new_tensor(&[], &[]),
        None => new_tensor(&[SECOND], &[]),
    }
}

/// The same of the divisor, which saves both operands.
fn rounded_divisor(op: &Elementwise) -> Gradient {
    match op.attribute("rounding_mode") {
        Some(_) => new_tensor(BOTH, &[]),
        None => new_tensor(BOTH, &[Like, Like, Like]),
    }
}

/// `pow_backward`: `grad * (exponent * self ** (exponent - 1))`, zeros where the exponent is zero.
fn power(op: &Elementwise) -> Gradient {
    let exponent = op.number(1).and_then(Constant::real);
    if exponent.is_some_and(|exponent| exponent.abs() < f64::MIN_POSITIVE) {
        new_tensor(&[FIRST], &[])
    } else {
        new_tensor(&[FIRST], &[Like, Like])
    }
}

/// `grad * at::xlogy(self != 0, other)` of a tensor, `grad * other.log()` of a number.
fn xlogy(op: &Elementwise) -> Gradient {
    match op.number(1) {
        Some(_) => new_tensor(&[FIRST], &[]),
        None => new_tensor(BOTH, &[Like, MaskOf(1), MaskOf(0), Mask]),
    }
}

/// `grad * -self * special_zeta(self + 1, other)`: what is of a number alone is one.
fn zeta(op: &Elementwise) -> Gradient {
    match op.number(0) {
        Some(_) => new_tensor(BOTH, &[Like, Like]),
        None => new_tensor(BOTH, &[Like, Like, Like, Like]),
    }
}

/// `clamp_backward` of numbers: a mask for each bound, and their conjunction.
fn clamp(op: &Elementwise) -> Gradient {
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
fn clamp_by_tensors(op: &Elementwise, wanted: [bool; 3]) -> Vec<Step> {
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
fn atan2(_: &Elementwise, wanted: [bool; 3]) -> Vec<Step> {
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

/// `prelu_kernel_backward` makes both gradients; one that is not wanted goes at once.
fn prelu(_: &Elementwise, wanted: [bool; 3]) -> Vec<Step> {
    let unwanted = [0, 1].into_iter().filter(|position| !wanted[*position]);
    let both = [Step::Give(0), Step::Give(1)];
    both.into_iter().chain(unwanted.map(Step::Free)).collect()
}
