//! Scaled dot-product attention.

use batchfit::program::{Kernel, View};
use batchfit::shape::DType;

use super::card::{Card, compare, places, strided};
use super::numbers::{rounded, scattered, tolerance};

/// Samples, query heads, key heads, queries, keys, features.
type Lengths = [u64; 6];

/// What attention gives for row-major `[sample, head, position, feature]` operands.
struct Expected {
    out: Vec<f64>,
    log_sum_exp: Vec<f64>,
    grad_query: Vec<f64>,
    grad_key: Vec<f64>,
    grad_value: Vec<f64>,
    /// Row-major `[sample, head, query, key]`.
    grad_bias: Vec<f64>,
}

/// `factors` multiplies the probabilities and `bias` is added to scaled scores, both row-major
/// `[sample, head, query, key]`.
fn expected(
    lengths: Lengths,
    causal: bool,
    [q, k, v, grad]: [&[f64]; 4],
    [factors, bias]: [&[f64]; 2],
) -> Expected {
    let [samples, heads, key_heads, queries, keys, width] = lengths.map(|length| length as usize);
    let scale = 1.0 / (width as f64).sqrt();
    let mut result = Expected {
        out: vec![0.0; q.len()],
        log_sum_exp: vec![0.0; samples * heads * queries],
        grad_query: vec![0.0; q.len()],
        grad_key: vec![0.0; k.len()],
        grad_value: vec![0.0; v.len()],
        grad_bias: vec![0.0; bias.len()],
    };
    for n in 0..samples {
        for h in 0..heads {
            let at_q = |i: usize| ((n * heads + h) * queries + i) * width;
            let at_k = |j: usize| ((n * key_heads + h / (heads / key_heads)) * keys + j) * width;
            for i in 0..queries {
                let seen = if causal { keys.min(i + 1) } else { keys };
                let dot = |a: &[f64], at: usize, b: &[f64], bt: usize| -> f64 {
                    (0..width).map(|d| a[at + d] * b[bt + d]).sum()
                };
                let row = ((n * heads + h) * queries + i) * keys;
                let scores: Vec<f64> = (0..seen)
                    .map(|j| dot(q, at_q(i), k, at_k(j)) * scale + bias[row + j])
                    .collect();
                let total: f64 = scores.iter().map(|s| s.exp()).sum();
                result.log_sum_exp[(n * heads + h) * queries + i] = total.ln();
                let p: Vec<f64> = scores.iter().map(|s| s.exp() / total).collect();
                for j in 0..seen {
                    for d in 0..width {
                        result.out[at_q(i) + d] += p[j] * factors[row + j] * v[at_k(j) + d];
                    }
                }
                let delta = dot(grad, at_q(i), &result.out, at_q(i));
                for j in 0..seen {
                    let slope = dot(grad, at_q(i), v, at_k(j)) * factors[row + j];
                    result.grad_bias[row + j] = p[j] * (slope - delta);
                    let of_score = p[j] * (slope - delta) * scale;
                    for d in 0..width {
                        result.grad_query[at_q(i) + d] += of_score * k[at_k(j) + d];
                        result.grad_key[at_k(j) + d] += of_score * q[at_q(i) + d];
                        result.grad_value[at_k(j) + d] +=
                            p[j] * factors[row + j] * grad[at_q(i) + d];
                    }
                }
            }
        }
    }
    result
}

/// A tensor of these row-major values, stored `[sample, position, head, feature]` as projections leave it.
fn projected(card: &mut Card, dtype: DType, shape: [u64; 4], values: &[f64]) -> View {
    let [samples, heads, positions, width] = shape;
    let memory = card.empty(dtype, &[samples, positions, heads, width]);
    let seen = strided(
        &memory,
        0,
        &shape,
        &[positions * heads * width, width, heads * width, 1],
    );
    let mut stored = vec![0.0; values.len()];
    for (place, value) in places(&seen).into_iter().zip(values) {
        stored[place as usize] = *value;
    }
    let filled = card.tensor(dtype, &[samples, positions, heads, width], &stored);
    View {
        tensor: filled.tensor,
        ..seen
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn attention_and_its_gradients() {
    let mut card = Card::open();
    let cases: [(Lengths, bool); 8] = [
        ([2, 3, 3, 70, 70, 64], true),
        ([2, 2, 1, 197, 197, 32], true),
        ([1, 2, 2, 49, 131, 32], false),
        ([1, 2, 2, 66, 3, 7], false),
        ([2, 2, 2, 64, 130, 40], false),
        ([1, 4, 2, 150, 150, 128], true),
        ([3, 2, 1, 5, 67, 33], false),
        ([1, 1, 1, 257, 257, 80], true),
    ];
    for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
        for (lengths, causal) in cases {
            let [samples, heads, key_heads, queries, keys, width] = lengths;
            let query_shape = [samples, heads, queries, width];
            let key_shape = [samples, key_heads, keys, width];
            let values = |shape: [u64; 4], seed| {
                rounded(
                    dtype,
                    &scattered(shape.iter().product::<u64>() as usize, seed),
                )
            };
            let (q, k) = (values(query_shape, 50), values(key_shape, 51));
            let (v, grad) = (values(key_shape, 52), values(query_shape, 53));
            let ones = vec![1.0; (samples * heads * queries * keys) as usize];
            let zeros = vec![0.0; ones.len()];
            let expected = expected(lengths, causal, [&q, &k, &v, &grad], [&ones, &zeros]);
            let q = projected(&mut card, dtype, query_shape, &q);
            let k = projected(&mut card, dtype, key_shape, &k);
            let v = card.tensor(dtype, &key_shape, &v);
            let grad = projected(&mut card, dtype, query_shape, &grad);
            let out = projected(
                &mut card,
                dtype,
                query_shape,
                &vec![0.0; expected.out.len()],
            );
            let padded = queries.next_multiple_of(32);
            let rows = card.empty(DType::Float32, &[samples, heads, padded]);
            let seen_rows = strided(
                &rows,
                0,
                &[samples, heads, queries],
                &[heads * padded, padded, 1],
            );
            let what = format!("{lengths:?} {dtype}");

            card.run(
                Kernel::Attention {
                    causal,
                    dropout: 0.0,
                    scale: 1.0 / (lengths[5] as f64).sqrt(),
                },
                &[&q, &k, &v],
                &[&out, &rows],
            );

            compare(
                &format!("Attention {what}"),
                &card.read(&out),
                &expected.out,
                tolerance(dtype),
            );
            compare(
                "  log sum exp",
                &card.read(&seen_rows),
                &expected.log_sum_exp,
                5e-6,
            );

            let grad_query = card.empty(dtype, &query_shape);
            let grad_key = projected(
                &mut card,
                dtype,
                key_shape,
                &vec![0.0; expected.grad_key.len()],
            );
            let grad_value = card.empty(dtype, &key_shape);
            card.run(
                Kernel::AttentionGrad {
                    causal,
                    dropout: 0.0,
                    scale: 1.0 / (lengths[5] as f64).sqrt(),
                },
                &[&grad, &q, &k, &v, &out, &rows],
                &[&grad_query, &grad_key, &grad_value],
            );

            // The result is rounded before the gradient uses it.
            let limit = tolerance(dtype) * 4.0;
            compare(
                "  query",
                &card.read(&grad_query),
                &expected.grad_query,
                limit,
            );
            compare("  key", &card.read(&grad_key), &expected.grad_key, limit);
            compare(
                "  value",
                &card.read(&grad_value),
                &expected.grad_value,
                limit,
            );
        }
    }
}

/// With a trained bias, half types must not be dropped by cuDNN in the forward pass: it has no backward one for them.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn attention_drops_the_same_weights_in_both_passes() {
    for (dtype, width, is_biased) in [
        (DType::Float32, 64, false),
        (DType::Float32, 32, true),
        (DType::Float32, 128, true),
        (DType::Float16, 64, true),
        (DType::BFloat16, 64, true),
        (DType::BFloat16, 32, true),
        (DType::Float16, 128, true),
    ] {
        drops_the_same_weights(dtype, width, is_biased);
    }
}

fn drops_the_same_weights(dtype: DType, width: u64, is_biased: bool) {
    let mut card = Card::open();
    let lengths: Lengths = [2, 2, 2, 64, width, width];
    let (shape, key_shape) = ([2, 2, 64, width], [2, 2, width, width]);
    let values = |shape: &[u64], seed| {
        let count: u64 = shape.iter().product();
        rounded(dtype, &scattered(count as usize, seed))
    };
    let (q, k, grad) = (
        values(&shape, 54),
        values(&key_shape, 55),
        values(&shape, 56),
    );
    // With the identity for values, the result is the matrix of weights.
    let identity: Vec<f64> = (0..4 * width * width)
        .map(|i| f64::from(u8::from(i / width % width == i % width)))
        .collect();
    let bias = if is_biased {
        values(&shape, 57)
    } else {
        vec![0.0; q.len()]
    };
    let [q_on, grad_on, bias_on] = [&q, &grad, &bias].map(|x| card.tensor(dtype, &shape, x));
    let [k_on, v_on] = [&k, &identity].map(|x| card.tensor(dtype, &key_shape, x));
    let out = card.empty(dtype, &shape);
    let rows = card.empty(DType::Float32, &[2, 2, 64]);
    let [of_query, of_bias] = [(); 2].map(|()| card.empty(dtype, &shape));
    let [of_key, of_value] = [(); 2].map(|()| card.empty(dtype, &key_shape));
    let (causal, dropout, scale) = (false, 0.25, 1.0 / (width as f64).sqrt());
    let forward = Kernel::Attention {
        causal,
        dropout,
        scale,
    };
    let backward = Kernel::AttentionGrad {
        causal,
        dropout,
        scale,
    };

    let call = |kernel: Kernel, inputs: &[&View], outputs: &[&View]| batchfit::program::Call {
        kernel,
        inputs: inputs.iter().map(|view| (*view).clone()).collect(),
        outputs: outputs.iter().map(|view| (*view).clone()).collect(),
        workspace: None,
    };
    // In one step, as a program runs them.
    let mut inputs = vec![&q_on, &k_on, &v_on];
    inputs.extend(is_biased.then_some(&bias_on));
    card.launch(&call(forward, &inputs, &[&out, &rows]))
        .unwrap();
    let mut inputs = vec![&grad_on, &q_on, &k_on, &v_on, &out, &rows];
    inputs.extend(is_biased.then_some(&bias_on));
    let mut outputs = vec![&of_query, &of_key, &of_value];
    outputs.extend(is_biased.then_some(&of_bias));
    card.launch(&call(backward, &inputs, &outputs)).unwrap();

    let weights = card.read(&out);
    let kept = weights.iter().filter(|weight| **weight != 0.0).count();
    let share = kept as f64 / weights.len() as f64;
    assert!(
        (share - 0.75).abs() < 0.02,
        "{share} of the weights are kept"
    );
    let factors: Vec<f64> = weights
        .iter()
        .map(|weight| if *weight == 0.0 { 0.0 } else { 1.0 / 0.75 })
        .collect();
    let expected = expected(
        lengths,
        false,
        [&q, &k, &identity, &grad],
        [&factors, &bias],
    );
    let limit = tolerance(dtype) * 4.0;
    let what = format!("Attention with dropout {dtype} {width}");
    compare(&what, &weights, &expected.out, tolerance(dtype) * 2.0);
    compare(
        "  query",
        &card.read(&of_query),
        &expected.grad_query,
        limit,
    );
    compare("  key", &card.read(&of_key), &expected.grad_key, limit);
    compare(
        "  value",
        &card.read(&of_value),
        &expected.grad_value,
        limit,
    );
    if is_biased {
        compare("  bias", &card.read(&of_bias), &expected.grad_bias, limit);
    }
}

/// A bias for each head, the same for all samples, with its own gradient or without: without, half types may run in
/// cuDNN.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn attention_with_a_bias() {
    let mut card = Card::open();
    // And the multiple that a bias's rows begin at: eight, as PyTorch's aligned masks do, or anywhere.
    let cases: [(Lengths, u64); 8] = [
        ([2, 3, 3, 70, 70, 64], 8),
        ([2, 2, 2, 64, 136, 40], 8),
        ([1, 4, 2, 33, 64, 128], 8),
        ([3, 4, 4, 49, 49, 32], 8),
        ([2, 4, 2, 196, 196, 32], 8),
        ([2, 4, 1, 65, 131, 48], 1),
        ([1, 3, 3, 129, 5, 64], 1),
        ([1, 2, 2, 67, 67, 96], 1),
    ];
    for (dtype, is_trained) in [DType::Float32, DType::Float16, DType::BFloat16]
        .into_iter()
        .flat_map(|dtype| [(dtype, true), (dtype, false)])
    {
        for (lengths, step) in cases {
            let [samples, heads, key_heads, queries, keys, width] = lengths;
            let (shape, key_shape) = (
                [samples, heads, queries, width],
                [samples, key_heads, keys, width],
            );
            let values = |count: u64, seed| rounded(dtype, &scattered(count as usize, seed));
            let [q, grad] = [60, 61].map(|seed| values(shape.iter().product(), seed));
            let [k, v] = [62, 63].map(|seed| values(key_shape.iter().product(), seed));
            let one_bias = values(heads * queries * keys, 64);
            let bias = one_bias.repeat(samples as usize);
            let ones = vec![1.0; bias.len()];
            let expected = expected(lengths, false, [&q, &k, &v, &grad], [&ones, &bias]);
            let [q, grad] = [&q, &grad].map(|x| card.tensor(dtype, &shape, x));
            let [k, v] = [&k, &v].map(|x| card.tensor(dtype, &key_shape, x));
            let pitch = keys.next_multiple_of(step);
            let padded: Vec<f64> = one_bias
                .chunks(keys as usize)
                .flat_map(|row| [row, &vec![0.0; (pitch - keys) as usize]].concat())
                .collect();
            let stored = card.tensor(dtype, &[heads, queries, pitch], &padded);
            let bias = strided(
                &stored,
                0,
                &[samples, heads, queries, keys],
                &[0, queries * pitch, pitch, 1],
            );
            let out = card.empty(dtype, &shape);
            let rows = card.empty(DType::Float32, &[samples, heads, queries]);
            let (causal, dropout, scale) = (false, 0.0, 1.0 / (width as f64).sqrt());
            let forward = Kernel::Attention {
                causal,
                dropout,
                scale,
            };
            card.run(forward, &[&q, &k, &v, &bias], &[&out, &rows]);

            let what = format!("Attention with a bias {lengths:?} {dtype} {is_trained}");
            compare(
                &what,
                &card.read(&out),
                &expected.out,
                tolerance(dtype) * 2.0,
            );
            compare(
                "  log sum exp",
                &card.read(&rows),
                &expected.log_sum_exp,
                5e-6,
            );

            let grad_query = card.empty(dtype, &shape);
            let [grad_key, grad_value] = [(); 2].map(|()| card.empty(dtype, &key_shape));
            let grad_bias = card.empty(dtype, &[samples, heads, queries, keys]);
            let mut outputs = vec![&grad_query, &grad_key, &grad_value];
            if is_trained {
                outputs.push(&grad_bias);
            }
            let backward = Kernel::AttentionGrad {
                causal,
                dropout,
                scale,
            };
            card.run(backward, &[&grad, &q, &k, &v, &out, &rows, &bias], &outputs);

            let limit = tolerance(dtype) * 4.0;
            compare(
                "  query",
                &card.read(&grad_query),
                &expected.grad_query,
                limit,
            );
            compare("  key", &card.read(&grad_key), &expected.grad_key, limit);
            compare(
                "  value",
                &card.read(&grad_value),
                &expected.grad_value,
                limit,
            );
            if is_trained {
                compare("  bias", &card.read(&grad_bias), &expected.grad_bias, limit);
            }
        }
    }
}
