//! Batch and layer normalization.

use batchfit::program::Kernel;
use batchfit::shape::DType;

use super::card::{Card, compare};
use super::numbers::{rounded, scattered, tolerance};

/// Mean and variance of each group of elements.
fn moments(x: &[f64], groups: usize, group_of: impl Fn(usize) -> usize) -> (Vec<f64>, Vec<f64>) {
    let size = (x.len() / groups) as f64;
    let mut mean = vec![0.0; groups];
    let mut variance = vec![0.0; groups];
    for (i, x) in x.iter().enumerate() {
        mean[group_of(i)] += x / size;
    }
    for (i, x) in x.iter().enumerate() {
        variance[group_of(i)] += (x - mean[group_of(i)]).powi(2) / size;
    }
    (mean, variance)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn batch_norm_and_its_gradient() {
    let mut card = Card::open();
    for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
        for shape in [
            [8_u64, 5, 6, 6],
            [16, 33, 7, 7],
            [3, 4, 112, 112],
            [64, 512, 1, 1],
        ] {
            let [_, channels, height, width] = shape;
            let count = shape.iter().product::<u64>() as usize;
            let area = (height * width) as usize;
            let groups = channels as usize;
            let group_of = |i: usize| i / area % groups;
            // A mean far from zero, as behind a relu.
            let values: Vec<f64> = scattered(count, 11)
                .iter()
                .enumerate()
                .map(|(i, x)| x + group_of(i) as f64 * 0.1 + 3.0)
                .collect();
            let x = rounded(dtype, &values);
            let weight = rounded(DType::Float32, &scattered(groups, 12));
            let bias = rounded(DType::Float32, &scattered(groups, 13));
            let per_channel = [channels];
            let on_card = card.tensor(dtype, &shape, &x);
            let weight_on_card = card.tensor(DType::Float32, &per_channel, &weight);
            let bias_on_card = card.tensor(DType::Float32, &per_channel, &bias);
            let y = card.empty(dtype, &shape);
            let mean_on_card = card.empty(DType::Float32, &per_channel);
            let inverse_on_card = card.empty(DType::Float32, &per_channel);
            let running_mean = card.tensor(DType::Float32, &per_channel, &vec![0.5; groups]);
            let running_var = card.tensor(DType::Float32, &per_channel, &vec![1.0; groups]);
            let name = format!("{shape:?} {dtype}");

            card.run(
                Kernel::BatchNorm {
                    momentum: 0.1,
                    eps: 1e-5,
                },
                &[&on_card, &weight_on_card, &bias_on_card],
                &[
                    &y,
                    &mean_on_card,
                    &inverse_on_card,
                    &running_mean,
                    &running_var,
                ],
            );

            let (mean, variance) = moments(&x, groups, group_of);
            let inverse: Vec<f64> = variance.iter().map(|v| 1.0 / (v + 1e-5).sqrt()).collect();
            let normal: Vec<f64> = x
                .iter()
                .enumerate()
                .map(|(i, x)| (x - mean[group_of(i)]) * inverse[group_of(i)])
                .collect();
            let expected: Vec<f64> = normal
                .iter()
                .enumerate()
                .map(|(i, x)| x * weight[group_of(i)] + bias[group_of(i)])
                .collect();
            compare(
                &format!("BatchNorm {name}"),
                &card.read(&y),
                &expected,
                tolerance(dtype),
            );
            compare("  mean", &card.read(&mean_on_card), &mean, 5e-6);
            compare(
                "  inverse std",
                &card.read(&inverse_on_card),
                &inverse,
                5e-6,
            );
            let per_group = (count / groups) as f64;
            let unbiased = per_group / (per_group - 1.0);
            let running: Vec<f64> = mean.iter().map(|m| 0.45 + 0.1 * m).collect();
            compare("  running mean", &card.read(&running_mean), &running, 5e-6);
            let running: Vec<f64> = variance.iter().map(|v| 0.9 + 0.1 * v * unbiased).collect();
            compare("  running var", &card.read(&running_var), &running, 5e-6);

            let grad = rounded(dtype, &scattered(count, 14));
            let grad_on_card = card.tensor(dtype, &shape, &grad);
            let grad_weight = card.empty(DType::Float32, &per_channel);
            let grad_bias = card.empty(DType::Float32, &per_channel);
            card.run(
                Kernel::BatchNormGrad,
                &[
                    &grad_on_card,
                    &on_card,
                    &weight_on_card,
                    &mean_on_card,
                    &inverse_on_card,
                ],
                &[&y, &grad_weight, &grad_bias],
            );
            let mut of_grad = vec![0.0; groups];
            let mut of_product = vec![0.0; groups];
            for (i, grad) in grad.iter().enumerate() {
                of_grad[group_of(i)] += grad;
                of_product[group_of(i)] += grad * normal[i];
            }
            let expected: Vec<f64> = grad
                .iter()
                .enumerate()
                .map(|(i, grad)| {
                    let g = group_of(i);
                    (grad - of_grad[g] / per_group - normal[i] * of_product[g] / per_group)
                        * inverse[g]
                        * weight[g]
                })
                .collect();
            compare(
                &format!("BatchNormGrad {name}"),
                &card.read(&y),
                &expected,
                tolerance(dtype) * 2.0,
            );
            compare("  weight", &card.read(&grad_weight), &of_product, 2e-5);
            compare("  bias", &card.read(&grad_bias), &of_grad, 2e-5);

            let variance_on_card = card.tensor(DType::Float32, &per_channel, &variance);
            card.run(
                Kernel::BatchNormInference { eps: 1e-5 },
                &[
                    &on_card,
                    &weight_on_card,
                    &bias_on_card,
                    &mean_on_card,
                    &variance_on_card,
                ],
                &[&y],
            );
            let expected: Vec<f64> = normal
                .iter()
                .enumerate()
                .map(|(i, x)| x * weight[group_of(i)] + bias[group_of(i)])
                .collect();
            compare(
                &format!("BatchNormInference {name}"),
                &card.read(&y),
                &expected,
                tolerance(dtype),
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn layer_norm_and_its_gradient() {
    let mut card = Card::open();
    for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
        for (rows, width) in [(50_u64, 768_u64), (700, 33)] {
            let count = (rows * width) as usize;
            let row_of = |i: usize| i / width as usize;
            let column_of = |i: usize| i % width as usize;
            let x = rounded(dtype, &scattered(count, 15));
            let weight = rounded(dtype, &scattered(width as usize, 16));
            let bias = rounded(dtype, &scattered(width as usize, 17));
            let grad = rounded(dtype, &scattered(count, 18));
            let on_card = card.tensor(dtype, &[rows, width], &x);
            let weight_on_card = card.tensor(dtype, &[width], &weight);
            let bias_on_card = card.tensor(dtype, &[width], &bias);
            let grad_on_card = card.tensor(dtype, &[rows, width], &grad);
            let y = card.empty(dtype, &[rows, width]);
            let mean_on_card = card.empty(DType::Float32, &[rows]);
            let inverse_on_card = card.empty(DType::Float32, &[rows]);

            card.run(
                Kernel::LayerNorm { eps: 1e-5 },
                &[&on_card, &weight_on_card, &bias_on_card],
                &[&y, &mean_on_card, &inverse_on_card],
            );

            let (mean, variance) = moments(&x, rows as usize, row_of);
            let inverse: Vec<f64> = variance.iter().map(|v| 1.0 / (v + 1e-5).sqrt()).collect();
            let normal: Vec<f64> = x
                .iter()
                .enumerate()
                .map(|(i, x)| (x - mean[row_of(i)]) * inverse[row_of(i)])
                .collect();
            let expected: Vec<f64> = normal
                .iter()
                .enumerate()
                .map(|(i, x)| x * weight[column_of(i)] + bias[column_of(i)])
                .collect();
            compare(
                &format!("LayerNorm {rows}x{width} {dtype}"),
                &card.read(&y),
                &expected,
                tolerance(dtype),
            );

            let grad_weight = card.empty(dtype, &[width]);
            let grad_bias = card.empty(dtype, &[width]);
            card.run(
                Kernel::LayerNormGrad,
                &[
                    &grad_on_card,
                    &on_card,
                    &weight_on_card,
                    &mean_on_card,
                    &inverse_on_card,
                ],
                &[&y, &grad_weight, &grad_bias],
            );
            let mut of_grad = vec![0.0; rows as usize];
            let mut of_product = vec![0.0; rows as usize];
            let mut weight_sum = vec![0.0; width as usize];
            let mut bias_sum = vec![0.0; width as usize];
            for (i, grad) in grad.iter().enumerate() {
                let scaled = grad * weight[column_of(i)];
                of_grad[row_of(i)] += scaled / width as f64;
                of_product[row_of(i)] += scaled * normal[i] / width as f64;
                weight_sum[column_of(i)] += grad * normal[i];
                bias_sum[column_of(i)] += grad;
            }
            let expected: Vec<f64> = grad
                .iter()
                .enumerate()
                .map(|(i, grad)| {
                    let r = row_of(i);
                    (grad * weight[column_of(i)] - of_grad[r] - normal[i] * of_product[r])
                        * inverse[r]
                })
                .collect();
            compare(
                &format!("LayerNormGrad {rows}x{width} {dtype}"),
                &card.read(&y),
                &expected,
                tolerance(dtype),
            );
            compare(
                "  weight",
                &card.read(&grad_weight),
                &weight_sum,
                tolerance(dtype).max(2e-5),
            );
            compare(
                "  bias",
                &card.read(&grad_bias),
                &bias_sum,
                tolerance(dtype).max(2e-5),
            );
        }
    }
}
