//! Pooling.

use batchfit::program::Kernel;
use batchfit::shape::{DType, Window};

use super::card::{Card, compare};
use super::numbers::{rounded, scattered, tolerance};

fn window(kernel: u64, stride: u64, padding: u64, dilation: u64, ceil_mode: bool) -> Window {
    Window {
        stride: [1, stride, stride],
        padding: [0, padding, padding],
        dilation: [1, dilation, dilation],
        ceil_mode,
        ..Window::of([kernel; 2])
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn max_pool_and_its_gradient() {
    let mut card = Card::open();
    let windows = [
        (window(2, 2, 0, 1, false), 17_u64),
        (window(2, 2, 0, 1, false), 16),
        (window(3, 2, 1, 1, false), 17),
        (window(3, 2, 0, 1, true), 17),
        (window(3, 1, 1, 2, false), 17),
    ];
    for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
        for (window, height) in windows {
            let (planes, height, width) = (6_u64, height, 14_u64);
            let (rows, columns) = (
                window.output(1, height).unwrap(),
                window.output(2, width).unwrap(),
            );
            let x = rounded(dtype, &scattered((planes * height * width) as usize, 19));
            let grad = rounded(dtype, &scattered((planes * rows * columns) as usize, 20));
            let mut expected = Vec::new();
            let mut indices = Vec::new();
            let mut grad_x = vec![0.0; x.len()];
            for plane in 0..planes {
                for row in 0..rows {
                    for column in 0..columns {
                        let mut best = (f64::NEG_INFINITY, 0);
                        for i in 0..window.kernel[1] {
                            for j in 0..window.kernel[2] {
                                let h = row * window.stride[1] + i * window.dilation[1];
                                let w = column * window.stride[2] + j * window.dilation[2];
                                let (Some(h), Some(w)) = (
                                    h.checked_sub(window.padding[1]),
                                    w.checked_sub(window.padding[2]),
                                ) else {
                                    continue;
                                };
                                if h < height && w < width {
                                    let value = x[((plane * height + h) * width + w) as usize];
                                    if value > best.0 {
                                        best = (value, h * width + w);
                                    }
                                }
                            }
                        }
                        grad_x[(plane * height * width + best.1) as usize] += grad[expected.len()];
                        expected.push(best.0);
                        indices.push(best.1 as f64);
                    }
                }
            }
            let on_card = card.tensor(dtype, &[2, 3, height, width], &x);
            let y = card.empty(dtype, &[2, 3, rows, columns]);
            let indices_on_card = card.empty(DType::Int64, &[2, 3, rows, columns]);
            card.run(
                Kernel::MaxPool(window),
                &[&on_card],
                &[&y, &indices_on_card],
            );
            compare(&format!("MaxPool {dtype}"), &card.read(&y), &expected, 0.0);
            compare("  indices", &card.read(&indices_on_card), &indices, 0.0);
            let grad_on_card = card.tensor(dtype, &[2, 3, rows, columns], &grad);
            card.run(
                Kernel::MaxPoolGrad(window),
                &[&grad_on_card, &indices_on_card],
                &[&on_card],
            );
            compare(
                &format!("MaxPoolGrad {dtype}"),
                &card.read(&on_card),
                &grad_x,
                tolerance(dtype),
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn adaptive_average_pool_and_its_gradient() {
    let mut card = Card::open();
    for dtype in [DType::Float32, DType::Float16, DType::BFloat16] {
        for (height, width, rows, columns) in [
            (7_u64, 7_u64, 1_u64, 1_u64),
            (7, 9, 3, 4),
            (5, 4, 7, 7),
            (8, 8, 4, 4),
        ] {
            let planes = 12;
            let x = rounded(dtype, &scattered((planes * height * width) as usize, 21));
            let grad = rounded(dtype, &scattered((planes * rows * columns) as usize, 22));
            let mut expected = Vec::new();
            let mut grad_x = vec![0.0; x.len()];
            for plane in 0..planes {
                for row in 0..rows {
                    for column in 0..columns {
                        let hs = row * height / rows..((row + 1) * height).div_ceil(rows);
                        let ws = column * width / columns..((column + 1) * width).div_ceil(columns);
                        let size = (hs.clone().count() * ws.clone().count()) as f64;
                        let mut sum = 0.0;
                        for h in hs {
                            for w in ws.clone() {
                                let at = ((plane * height + h) * width + w) as usize;
                                sum += x[at];
                                grad_x[at] += grad[expected.len()] / size;
                            }
                        }
                        expected.push(sum / size);
                    }
                }
            }
            let on_card = card.tensor(dtype, &[3, 4, height, width], &x);
            let y = card.empty(dtype, &[3, 4, rows, columns]);
            card.run(Kernel::AdaptiveAvgPool, &[&on_card], &[&y]);
            compare(
                &format!("AdaptiveAvgPool {dtype}"),
                &card.read(&y),
                &expected,
                tolerance(dtype),
            );
            let grad_on_card = card.tensor(dtype, &[3, 4, rows, columns], &grad);
            card.run(Kernel::AdaptiveAvgPoolGrad, &[&grad_on_card], &[&on_card]);
            compare(
                &format!("AdaptiveAvgPoolGrad {dtype}"),
                &card.read(&on_card),
                &grad_x,
                tolerance(dtype),
            );
        }
    }
}
