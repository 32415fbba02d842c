//! Sums over dimensions.

use batchfit::program::Kernel;
use batchfit::shape::DType;

use super::card::{Card, compare, strided};
use super::numbers::{rounded, scattered, tolerance};

/// The sum of a row-major tensor over all dimensions but those kept.
fn expected(x: &[f64], shape: &[u64], keep: &[usize], scale: f64) -> Vec<f64> {
    let kept: u64 = keep.iter().map(|d| shape[*d]).product();
    let mut sums = vec![0.0; kept as usize];
    for (i, x) in x.iter().enumerate() {
        let mut rest = i as u64;
        let mut index = vec![0; shape.len()];
        for d in (0..shape.len()).rev() {
            index[d] = rest % shape[d];
            rest /= shape[d];
        }
        let at = keep.iter().fold(0, |at, d| at * shape[*d] + index[*d]);
        sums[at as usize] += x * scale;
    }
    sums
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn sums_keep_the_dimensions_of_their_result() {
    let mut card = Card::open();
    let cases: [(&[u64], &[usize], &[u64]); 9] = [
        (&[16, 13, 9, 9], &[1], &[1, 13, 1, 1]),
        (&[40, 64, 17, 16], &[1], &[1, 64, 1, 1]),
        (&[40, 64, 16, 16], &[1], &[1, 64, 1, 1]),
        (&[3000, 65], &[1], &[65]),
        (&[70000, 10], &[1], &[10]),
        (&[5, 300, 7], &[2], &[7]),
        (&[123_457], &[], &[]),
        (&[6, 33, 20], &[0, 1], &[6, 33, 1]),
        (&[6, 33, 20], &[0, 2], &[6, 1, 20]),
    ];
    for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
        for (shape, keep, out_shape) in cases {
            let x = rounded(dtype, &scattered(shape.iter().product::<u64>() as usize, 9));
            let on_card = card.tensor(dtype, shape, &x);
            let out = card.empty(dtype, out_shape);
            card.run(Kernel::Sum { scale: 0.5 }, &[&on_card], &[&out]);
            let expected = expected(&x, shape, keep, 0.5);
            compare(
                &format!("Sum {shape:?} to {out_shape:?} {dtype}"),
                &card.read(&out),
                &expected,
                tolerance(dtype),
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_sum_reads_strided_views() {
    let mut card = Card::open();
    let x = scattered(50 * 60, 10);
    let on_card = card.tensor(DType::Float32, &[50, 60], &x);
    let turned = strided(&on_card, 0, &[60, 50], &[1, 60]);
    let out = card.empty(DType::Float32, &[50]);
    card.run(Kernel::Sum { scale: 1.0 }, &[&turned], &[&out]);
    let x = rounded(DType::Float32, &x);
    compare(
        "Sum of a transposed view",
        &card.read(&out),
        &expected(&x, &[50, 60], &[0], 1.0),
        5e-6,
    );

    let one = card.tensor(DType::Float32, &[1], &[1.5]);
    let spread = strided(&one, 0, &[8, 100], &[0, 0]);
    let out = card.empty(DType::Float32, &[100]);
    card.run(Kernel::Sum { scale: 1.0 }, &[&spread], &[&out]);
    compare(
        "Sum of an expanded view",
        &card.read(&out),
        &[12.0; 100],
        0.0,
    );
}
