use super::*;

#[test]
fn the_exporter_knows_which_operators_have_rules() {
    let listed = include_str!("../../../../clients/python/src/batchfit/export/operators.txt");

    // After a change: batchfit operators > clients/python/src/batchfit/export/operators.txt
    // Rows that only tests have are in no release.
    let known = known_operators();
    let known: Vec<&str> = known
        .lines()
        .filter(|name| !name.contains("test_only"))
        .collect();
    assert_eq!(listed.lines().collect::<Vec<_>>(), known);
}

use crate::shape::{Extent, Window};

/// What fits is seen in the graphs of `tests/golden`.
#[test]
fn what_does_not_fit_is_refused_with_both_sizes() {
    let batched = |rest: &[u64]| {
        let fixed = rest.iter().map(|n| Extent::fixed(*n));
        let shape: Vec<Extent> = [Extent::BATCH].into_iter().chain(fixed).collect();
        (DType::Float32, shape)
    };
    let weight = |shape: &[u64]| {
        let shape = shape.iter().map(|n| Extent::fixed(*n)).collect();
        (DType::Float32, shape)
    };
    let plain = |side: u64| Op::from(Convolution::Plain(Window::of([side, side])));
    let six = View::Reshape(vec![Extent::per_sample(4), Extent::fixed(6)]);
    for (op, operands, expected) in [
        (
            plain(5),
            vec![batched(&[3, 4, 4]), weight(&[8, 3, 5, 5])],
            "a kernel of 5 with padding 0 does not fit a height of 4",
        ),
        (
            plain(1),
            vec![batched(&[4, 8, 8]), weight(&[8, 3, 1, 1])],
            "the input has 4 channels, the weight takes 3 in each of 1 groups",
        ),
        (
            Loss::CROSS_ENTROPY.into(),
            vec![batched(&[10]), batched(&[10])],
            "targets [b, 10] do not fit predictions [b, 10]",
        ),
        (
            six.into(),
            vec![batched(&[5, 6])],
            "[b, 5, 6] has other elements than [4b, 6]",
        ),
    ] {
        assert_eq!(infer(&op, &operands), Err(expected.to_owned()));
    }
}
