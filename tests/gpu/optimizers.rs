//! Optimizers and the gradient scaler.

use batchfit::program::Kernel;
use batchfit::shape::DType;

use super::card::{Card, compare};
use super::numbers::{rounded, scattered, tolerance};

const COUNT: usize = 1027;

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn optimizers_take_their_steps() {
    let mut card = Card::open();
    for dtype in [DType::Float32, DType::BFloat16] {
        let shape = [COUNT as u64];
        let grad = rounded(dtype, &scattered(COUNT, 27));
        // Small, so that the updates are not rounded away.
        let start = rounded(
            dtype,
            &scattered(COUNT, 28)
                .iter()
                .map(|x| x * 1e-3)
                .collect::<Vec<_>>(),
        );
        let grad_on_card = card.tensor(dtype, &shape, &grad);
        let zero = card.tensor(DType::Float32, &[1], &[0.0]);
        let one = card.tensor(DType::Float32, &[1], &[1.0]);

        let parameter = card.tensor(dtype, &shape, &start);
        card.run(Kernel::Sgd, &[&grad_on_card, &one], &[&parameter]);
        compare(
            &format!("Sgd skipped {dtype}"),
            &card.read(&parameter),
            &start,
            0.0,
        );
        card.run(Kernel::Sgd, &[&grad_on_card, &zero], &[&parameter]);
        let expected: Vec<f64> = start.iter().zip(&grad).map(|(p, g)| p - 1e-4 * g).collect();
        compare(
            &format!("Sgd {dtype}"),
            &card.read(&parameter),
            &expected,
            tolerance(dtype),
        );

        let parameter = card.tensor(dtype, &shape, &start);
        let momentum = card.empty(dtype, &shape);
        card.run(
            Kernel::SgdMomentum { first: true },
            &[&grad_on_card],
            &[&parameter, &momentum],
        );
        card.run(
            Kernel::SgdMomentum { first: false },
            &[&grad_on_card],
            &[&parameter, &momentum],
        );
        let expected: Vec<f64> = start
            .iter()
            .zip(&grad)
            .map(|(p, g)| p - 1e-4 * 2.9 * g)
            .collect();
        compare(
            &format!("SgdMomentum {dtype}"),
            &card.read(&parameter),
            &expected,
            tolerance(dtype) * 2.0,
        );

        for decoupled in [false, true] {
            let parameter = card.tensor(dtype, &shape, &start);
            let first = card.tensor(dtype, &shape, &vec![0.0; COUNT]);
            let second = card.tensor(dtype, &shape, &vec![0.0; COUNT]);
            let mut expected = start.clone();
            let (mut m, mut v) = (vec![0.0; COUNT], vec![0.0; COUNT]);
            for step in 1..=3 {
                card.run(
                    Kernel::Adam { decoupled },
                    &[&grad_on_card],
                    &[&parameter, &first, &second],
                );
                for i in 0..COUNT {
                    m[i] = 0.9 * m[i] + 0.1 * grad[i];
                    v[i] = 0.999 * v[i] + 0.001 * grad[i] * grad[i];
                    let corrected = m[i] / (1.0 - 0.9_f64.powi(step));
                    let size = (v[i] / (1.0 - 0.999_f64.powi(step))).sqrt() + 1e-8;
                    let decay = if decoupled { 1e-5 * 0.01 } else { 0.0 };
                    expected[i] = expected[i] * (1.0 - decay) - 1e-5 * corrected / size;
                }
            }
            compare(
                &format!("Adam {decoupled} {dtype}"),
                &card.read(&parameter),
                &expected,
                tolerance(dtype) * 2.0,
            );
            compare(
                "  first moment",
                &card.read(&first),
                &m,
                tolerance(dtype) * 2.0,
            );
            compare(
                "  second moment",
                &card.read(&second),
                &v,
                tolerance(dtype) * 3.0,
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_scaler_unscales_and_notices_infinities() {
    let mut card = Card::open();
    let shape = [COUNT as u64];
    let grad = rounded(DType::Float32, &scattered(COUNT, 29));
    let mut broken = grad.clone();
    broken[COUNT - 1] = f64::INFINITY;
    let scale = card.tensor(DType::Float32, &[1], &[8.0]);
    let tracker = card.tensor(DType::Int32, &[1], &[1998.0]);
    let found = card.tensor(DType::Float32, &[1], &[0.0]);
    let a = card.tensor(DType::Float32, &shape, &grad);
    let b = card.tensor(DType::Float32, &shape, &grad);
    let expected: Vec<f64> = grad.iter().map(|g| g / 8.0).collect();

    card.run(Kernel::Unscale, &[&scale, &a, &b], &[&found, &a, &b]);
    card.run(Kernel::ScalerUpdate, &[&found], &[&scale, &tracker]);
    assert_eq!(card.read(&scale), [8.0]);
    card.run(Kernel::ScalerUpdate, &[&found], &[&scale, &tracker]);

    compare("Unscale", &card.read(&a), &expected, 0.0);
    compare("Unscale", &card.read(&b), &expected, 0.0);
    assert_eq!(
        (card.read(&scale), card.read(&tracker), card.read(&found)),
        (vec![16.0], vec![0.0], vec![0.0])
    );

    let c = card.tensor(DType::Float32, &shape, &broken);
    card.run(Kernel::Unscale, &[&scale, &c], &[&found, &c]);
    card.run(Kernel::ScalerUpdate, &[&found], &[&scale, &tracker]);

    assert_eq!(
        (card.read(&found), card.read(&scale)),
        (vec![1.0], vec![8.0])
    );
}
