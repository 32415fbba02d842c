//! Matrix products.

use batchfit::program::Kernel;
use batchfit::shape::DType;

use super::card::{Card, compare, strided};
use super::numbers::{rounded, scattered, tolerance};

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn matrix_products_of_all_layouts() {
    let mut card = Card::open();
    for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
        for (m, k, n) in [
            (64_u64, 512_u64, 512_u64),
            (37, 129, 10),
            (10, 1000, 77),
            (1, 33, 5),
            (5, 33, 1),
        ] {
            let a = rounded(dtype, &scattered((m * k) as usize, 30));
            let b = rounded(dtype, &scattered((k * n) as usize, 31));
            let bias = rounded(dtype, &scattered(n as usize, 32));
            let mut product = vec![0.0; (m * n) as usize];
            for i in 0..m as usize {
                for j in 0..n as usize {
                    for l in 0..k as usize {
                        product[i * n as usize + j] +=
                            a[i * k as usize + l] * b[l * n as usize + j];
                    }
                }
            }
            let shifted: Vec<f64> = product
                .iter()
                .enumerate()
                .map(|(i, x)| x + bias[i % n as usize])
                .collect();
            let transposed = |x: &[f64], rows: u64, columns: u64| -> Vec<f64> {
                (0..rows * columns)
                    .map(|i| x[((i % rows) * columns + i / rows) as usize])
                    .collect()
            };
            let a_plain = card.tensor(dtype, &[m, k], &a);
            let a_turned = card.tensor(dtype, &[k, m], &transposed(&a, m, k));
            let a_turned = strided(&a_turned, 0, &[m, k], &[1, m]);
            let b_plain = card.tensor(dtype, &[k, n], &b);
            let b_turned = card.tensor(dtype, &[n, k], &transposed(&b, k, n));
            let b_turned = strided(&b_turned, 0, &[k, n], &[1, k]);
            let bias_on_card = card.tensor(dtype, &[n], &bias);
            let out = card.empty(dtype, &[m, n]);
            for (a, b, layout) in [
                (&a_plain, &b_plain, "nn"),
                (&a_plain, &b_turned, "nt"),
                (&a_turned, &b_plain, "tn"),
                (&a_turned, &b_turned, "tt"),
            ] {
                card.run(Kernel::MatMul, &[a, b], &[&out]);
                compare(
                    &format!("MatMul {layout} {m}x{k}x{n} {dtype}"),
                    &card.read(&out),
                    &product,
                    tolerance(dtype),
                );
                card.run(Kernel::MatMul, &[a, b, &bias_on_card], &[&out]);
                compare("  with bias", &card.read(&out), &shifted, tolerance(dtype));
            }
        }
    }
}
