//! Maps, casts, random values and dropout.

use batchfit::program::{Binary, Initial, Kernel};
use batchfit::shape::DType;

use super::arithmetic::{UNARY, saved, unary, unary_slope};
use super::card::{Card, compare, strided};
use super::numbers::{rounded, scattered, tolerance};

const FLOATS: [DType; 3] = [DType::Float32, DType::Float16, DType::BFloat16];

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn unary_functions_and_their_gradients() {
    let mut card = Card::open();
    for dtype in FLOATS {
        for count in [1021, 4096] {
            let values: Vec<f64> = scattered(count, 1).iter().map(|x| x * 4.0).collect();
            let x = rounded(dtype, &values);
            let grad = rounded(dtype, &scattered(count, 2));
            let on_card = card.tensor(dtype, &[count as u64], &x);
            let out = card.empty(dtype, &[count as u64]);
            let grad_on_card = card.tensor(dtype, &[count as u64], &grad);
            for function in UNARY {
                card.run(Kernel::Unary(function), &[&on_card], &[&out]);
                let expected: Vec<f64> = x.iter().map(|x| unary(function, *x)).collect();
                compare(
                    &format!("{function:?} {dtype}"),
                    &card.read(&out),
                    &expected,
                    tolerance(dtype),
                );

                let kept = rounded(
                    dtype,
                    &x.iter().map(|x| saved(function, *x)).collect::<Vec<_>>(),
                );
                let kept_on_card = card.tensor(dtype, &[count as u64], &kept);
                card.run(
                    Kernel::UnaryGrad(function),
                    &[&grad_on_card, &kept_on_card],
                    &[&out],
                );
                let expected: Vec<f64> = x
                    .iter()
                    .zip(&grad)
                    .map(|(x, g)| g * unary_slope(function, *x))
                    .collect();
                // The saved output of a half type is rounded, which its derivative amplifies.
                compare(
                    &format!("{function:?} gradient {dtype}"),
                    &card.read(&out),
                    &expected,
                    tolerance(dtype) * 4.0,
                );
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn arithmetic_with_numbers() {
    let mut card = Card::open();
    for dtype in FLOATS {
        let x = rounded(dtype, &scattered(777, 3));
        let grad = rounded(dtype, &scattered(777, 4));
        let on_card = card.tensor(dtype, &[777], &x);
        let grad_on_card = card.tensor(dtype, &[777], &grad);
        let out = card.empty(dtype, &[777]);
        let cases: [(Kernel, fn(f64) -> f64); 5] = [
            (Kernel::Scale(0.3), |x| x * 0.3),
            (Kernel::Shift(-1.25), |x| x - 1.25),
            (Kernel::Power(3.0), |x| x * x * x),
            (Kernel::Power(2.0), |x| x * x),
            (Kernel::Copy, |x| x),
        ];
        for (kernel, function) in cases {
            let name = format!("{kernel:?} {dtype}");
            card.run(kernel, &[&on_card], &[&out]);
            let expected: Vec<f64> = x.iter().map(|x| function(*x)).collect();
            compare(&name, &card.read(&out), &expected, tolerance(dtype));
        }
        card.run(Kernel::PowerGrad(3.0), &[&grad_on_card, &on_card], &[&out]);
        let expected: Vec<f64> = x.iter().zip(&grad).map(|(x, g)| g * 3.0 * x * x).collect();
        compare(
            &format!("PowerGrad {dtype}"),
            &card.read(&out),
            &expected,
            tolerance(dtype),
        );
        card.run(Kernel::Fill(0.1), &[], &[&out]);
        compare(
            &format!("Fill {dtype}"),
            &card.read(&out),
            &vec![0.1; 777],
            tolerance(dtype),
        );
    }
    let out = card.empty(DType::Int64, &[3, 1000]);
    card.run(Kernel::Arange, &[], &[&out]);
    card.run(Kernel::Shift(1e10), &[&out], &[&out]);
    let expected: Vec<f64> = (0..3000).map(|i| 1e10 + f64::from(i)).collect();
    compare("Arange and Shift int64", &card.read(&out), &expected, 0.0);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn binary_operations_broadcast() {
    let mut card = Card::open();
    for dtype in FLOATS {
        for area in [20_u64, 21] {
            let (samples, channels) = (5_u64, 7_u64);
            let count = (samples * channels * area) as usize;
            let a = rounded(dtype, &scattered(count, 5));
            let bias = rounded(dtype, &scattered(channels as usize, 6));
            let shape = [samples, channels, area];
            let a_on_card = card.tensor(dtype, &shape, &a);
            let bias_on_card = card.tensor(dtype, &[channels], &bias);
            let spread = strided(&bias_on_card, 0, &shape, &[0, 1, 0]);
            let out = card.empty(dtype, &shape);
            let of_channel = |i: usize| bias[i / area as usize % channels as usize];
            card.run(Kernel::Binary(Binary::Mul), &[&a_on_card, &spread], &[&out]);
            let expected: Vec<f64> = a
                .iter()
                .enumerate()
                .map(|(i, a)| a * of_channel(i))
                .collect();
            compare(
                &format!("Mul broadcast {dtype}"),
                &card.read(&out),
                &expected,
                tolerance(dtype),
            );
            card.run(
                Kernel::Binary(Binary::Add),
                &[&a_on_card, &spread],
                &[&a_on_card],
            );
            let expected: Vec<f64> = a
                .iter()
                .enumerate()
                .map(|(i, a)| a + of_channel(i))
                .collect();
            compare(
                &format!("Add in place {dtype}"),
                &card.read(&a_on_card),
                &expected,
                tolerance(dtype),
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn copies_change_type_and_layout() {
    let mut card = Card::open();
    let values = scattered(6 * 35 * 12, 7);
    for from in FLOATS {
        for to in FLOATS {
            let x = rounded(from, &values);
            let on_card = card.tensor(from, &[6, 35, 12], &x);
            let out = card.empty(to, &[12, 35, 6]);
            let turned = strided(&on_card, 0, &[12, 35, 6], &[1, 12, 420]);
            card.run(Kernel::Copy, &[&turned], &[&out]);
            let expected = rounded(to, &card.read(&turned));
            compare(
                &format!("Copy transposed {from} to {to}"),
                &card.read(&out),
                &expected,
                0.0,
            );

            let out = card.empty(to, &[6, 35, 12]);
            card.run(Kernel::Copy, &[&on_card], &[&out]);
            compare(
                &format!("Copy {from} to {to}"),
                &card.read(&out),
                &rounded(to, &x),
                0.0,
            );

            // Rows cut out of a larger matrix, at an odd offset, and written to another's middle.
            let part = strided(&on_card, 5, &[200, 7], &[12, 1]);
            let target = card.tensor(to, &[200, 9], &vec![0.0; 1800]);
            let middle = strided(&target, 1, &[200, 7], &[9, 1]);
            card.run(Kernel::Copy, &[&part], &[&middle]);
            let expected = rounded(to, &card.read(&part));
            compare(
                &format!("Copy of a part {from} to {to}"),
                &card.read(&middle),
                &expected,
                0.0,
            );
            let edge: f64 = card.read(&strided(&target, 0, &[200], &[9])).iter().sum();
            assert_eq!(edge, 0.0, "the copy wrote outside of its target");
        }
    }
    let indices: Vec<f64> = (0..999).map(|i| f64::from(i) * 1e12).collect();
    let on_card = card.tensor(DType::Int64, &[999], &indices);
    let out = card.empty(DType::Int64, &[999]);
    card.run(Kernel::Copy, &[&on_card], &[&out]);
    compare("Copy int64", &card.read(&out), &indices, 0.0);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_values_have_their_distribution() {
    let mut card = Card::open();
    let count = 1_000_003_u64;
    for dtype in [DType::Float32, DType::BFloat16] {
        let out = card.empty(dtype, &[count]);
        card.run(Kernel::RandomNormal, &[], &[&out]);
        let values = card.read(&out);
        let mean = values.iter().sum::<f64>() / count as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count as f64;
        eprintln!("RandomNormal {dtype}: mean {mean:.4}, variance {variance:.4}");
        assert!(mean.abs() < 0.005 && (variance - 1.0).abs() < 0.01);
        card.run(
            Kernel::Initialize(Initial::Uniform { bound: 0.25 }),
            &[],
            &[&out],
        );
        let values = card.read(&out);
        let mean = values.iter().sum::<f64>() / count as f64;
        let largest = values
            .iter()
            .fold(0.0_f64, |largest, x| largest.max(x.abs()));
        assert!(mean.abs() < 0.001 && largest <= 0.25 && largest > 0.249);
    }
    let out = card.empty(DType::Int64, &[count]);
    card.run(Kernel::RandomBelow(10), &[], &[&out]);
    let values = card.read(&out);
    for digit in 0..10 {
        let share = values.iter().filter(|x| **x == f64::from(digit)).count() as f64 / count as f64;
        assert!(
            (share - 0.1).abs() < 0.003,
            "{digit} has a share of {share}"
        );
    }
    let first = values;
    card.run(Kernel::RandomBelow(10), &[], &[&out]);
    assert_ne!(card.read(&out), first, "two draws are alike");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn dropout_drops_its_share_and_its_gradient_follows() {
    let mut card = Card::open();
    for dtype in FLOATS {
        let count = 100_003;
        let x = rounded(dtype, &scattered(count, 8));
        let on_card = card.tensor(dtype, &[count as u64], &x);
        let out = card.empty(dtype, &[count as u64]);
        let mask = card.empty(DType::Bool, &[count as u64]);
        card.run(Kernel::Dropout { p: 0.25 }, &[&on_card], &[&out, &mask]);
        let kept = card.read(&mask);
        let share = kept.iter().sum::<f64>() / count as f64;
        assert!(
            (share - 0.75).abs() < 0.01,
            "{share} of the elements are kept"
        );
        let expected: Vec<f64> = x
            .iter()
            .zip(&kept)
            .map(|(x, keep)| x * keep / 0.75)
            .collect();
        compare(
            &format!("Dropout {dtype}"),
            &card.read(&out),
            &expected,
            tolerance(dtype),
        );
        card.run(Kernel::DropoutGrad { p: 0.25 }, &[&on_card, &mask], &[&out]);
        compare(
            &format!("DropoutGrad {dtype}"),
            &card.read(&out),
            &expected,
            tolerance(dtype),
        );
    }
}
