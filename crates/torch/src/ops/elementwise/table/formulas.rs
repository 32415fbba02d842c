//! Formulas that give several gradients, by the names that rows have for them.

use super::super::Elementwise;
use super::super::row::Step;
use super::super::row::Temporary::{Like, Mask, Number, Of};

/// Statements that give several, by which are wanted.
pub(in super::super) type Together = fn(&Elementwise, [bool; 3]) -> Vec<Step>;

/// All of them.
pub(super) const TOGETHER: &[(&str, Together)] = &[
    ("atan2", atan2),
    ("clamp_by_tensors", clamp_by_tensors),
    ("prelu", prelu),
];

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
