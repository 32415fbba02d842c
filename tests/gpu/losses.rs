//! Softmax, losses, what a probe reads of them, and embedding tables.

use batchfit::program::Kernel;
use batchfit::shape::DType;

use super::card::{Card, compare};
use super::numbers::{rounded, scattered, tolerance};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cross_entropy_and_its_gradient() {
    let mut card = Card::open();
    for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
        for shape in [vec![300_u64, 10], vec![37, 1003], vec![3, 21, 13, 11]] {
            let (outer, classes) = (shape[0] as usize, shape[1] as usize);
            let inner = shape[2..].iter().product::<u64>() as usize;
            let at = |n: usize, c: usize, i: usize| (n * classes + c) * inner + i;
            let x = rounded(dtype, &scattered(outer * classes * inner, 23));
            let grad = rounded(dtype, &scattered(outer * classes * inner, 24));
            let targets: Vec<f64> = (0..outer * inner)
                .map(|i| {
                    if i % 11 == 3 {
                        -100.0
                    } else {
                        (i * 7 % classes) as f64
                    }
                })
                .collect();
            let counted = targets.iter().filter(|t| **t >= 0.0).count() as f64;
            let mut log_p = vec![0.0; x.len()];
            let mut grad_x = vec![0.0; x.len()];
            let mut loss = 0.0;
            for n in 0..outer {
                for i in 0..inner {
                    let total: f64 = (0..classes).map(|c| x[at(n, c, i)].exp()).sum();
                    for c in 0..classes {
                        log_p[at(n, c, i)] = x[at(n, c, i)] - total.ln();
                    }
                    let target = targets[n * inner + i];
                    if target >= 0.0 {
                        loss -= rounded(dtype, &[log_p[at(n, target as usize, i)]])[0] / counted;
                    }
                }
            }
            let kept = rounded(dtype, &log_p);
            for n in 0..outer {
                for i in 0..inner {
                    let sum: f64 = (0..classes).map(|c| grad[at(n, c, i)]).sum();
                    for c in 0..classes {
                        grad_x[at(n, c, i)] = grad[at(n, c, i)] - kept[at(n, c, i)].exp() * sum;
                    }
                }
            }
            let name = format!("{shape:?} {dtype}");
            let on_card = card.tensor(dtype, &shape, &x);
            let y = card.empty(dtype, &shape);
            card.run(Kernel::Softmax { dim: 1, log: true }, &[&on_card], &[&y]);
            compare(
                &format!("LogSoftmax {name}"),
                &card.read(&y),
                &log_p,
                tolerance(dtype),
            );

            let kept_on_card = card.tensor(dtype, &shape, &kept);
            let grad_on_card = card.tensor(dtype, &shape, &grad);
            card.run(
                Kernel::SoftmaxGrad { dim: 1, log: true },
                &[&grad_on_card, &kept_on_card],
                &[&y],
            );
            compare(
                &format!("LogSoftmaxGrad {name}"),
                &card.read(&y),
                &grad_x,
                tolerance(dtype),
            );

            let target_shape: Vec<u64> = [&shape[..1], &shape[2..]].concat();
            let targets_on_card = card.tensor(DType::Int64, &target_shape, &targets);
            let loss_on_card = card.empty(dtype, &[]);
            let weight_on_card = card.empty(dtype, &[]);
            card.run(
                Kernel::NllLoss,
                &[&kept_on_card, &targets_on_card],
                &[&loss_on_card, &weight_on_card],
            );
            compare(
                &format!("NllLoss {name}"),
                &card.read(&loss_on_card),
                &[loss],
                tolerance(dtype),
            );
            let weight = rounded(dtype, &[counted])[0];
            compare(
                "  total weight",
                &card.read(&weight_on_card),
                &[weight],
                0.0,
            );

            let one = card.tensor(dtype, &[], &[1.0]);
            card.run(
                Kernel::NllLossGrad,
                &[&one, &targets_on_card, &weight_on_card],
                &[&y],
            );
            let mut expected = vec![0.0; x.len()];
            for n in 0..outer {
                for i in 0..inner {
                    if targets[n * inner + i] >= 0.0 {
                        expected[at(n, targets[n * inner + i] as usize, i)] = -1.0 / weight;
                    }
                }
            }
            compare(
                &format!("NllLossGrad {name}"),
                &card.read(&y),
                &expected,
                tolerance(dtype),
            );

            let report = card.run(Kernel::ObserveLoss, &[&loss_on_card], &[]);
            assert_eq!(report.losses, card.read(&loss_on_card));
            assert_eq!(report.launches, 1);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn embedding_and_its_gradient() {
    let mut card = Card::open();
    for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
        let (entries, width, count) = (13_u64, 31_u64, 9_u64);
        let table = rounded(dtype, &scattered((entries * width) as usize, 25));
        let indices: Vec<f64> = (0..count).map(|i| (i * 5 % entries) as f64).collect();
        let grad = rounded(dtype, &scattered((count * width) as usize, 26));
        let table_on_card = card.tensor(dtype, &[entries, width], &table);
        let indices_on_card = card.tensor(DType::Int64, &[count], &indices);
        let rows = card.empty(dtype, &[count, width]);
        card.run(
            Kernel::Embedding,
            &[&table_on_card, &indices_on_card],
            &[&rows],
        );
        let row = |i: f64| table[i as usize * width as usize..][..width as usize].to_vec();
        let expected: Vec<f64> = indices.iter().flat_map(|i| row(*i)).collect();
        compare(
            &format!("Embedding {dtype}"),
            &card.read(&rows),
            &expected,
            0.0,
        );
        let grad_on_card = card.tensor(dtype, &[count, width], &grad);
        card.run(
            Kernel::EmbeddingGrad { padding: None },
            &[&grad_on_card, &indices_on_card],
            &[&table_on_card],
        );
        let mut expected = vec![0.0; table.len()];
        for (i, grad) in grad.iter().enumerate() {
            let entry = indices[i / width as usize] as usize;
            expected[entry * width as usize + i % width as usize] += grad;
        }
        compare(
            &format!("EmbeddingGrad {dtype}"),
            &card.read(&table_on_card),
            &expected,
            tolerance(dtype) * 2.0,
        );
    }
}
