//! Pooling.

use super::super::autograd::Draft;
use super::super::eager::{Eager, Stop};
use super::super::tensor::Tensor;
use crate::graph::{DType, Extent, Window, numel};
use crate::program::Kernel;

impl Eager {
    /// `max_pool2d`: saves its input and one int64 index for each result.
    pub(in super::super) fn max_pool2d(
        &mut self,
        window: Window,
        x: &Tensor,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let side = |axis: usize| {
            let output = x.shape[2 + axis]
                .as_fixed()
                .and_then(|n| window.output(axis, n));
            Extent::fixed(output.expect("checked when the graph was built"))
        };
        let shape = [x.shape[0], x.shape[1], side(0), side(1)];
        let y = self.empty(&shape, x.dtype);
        let indices = Tensor::new(self.empty(&shape, DType::Int64));
        self.launch(Kernel::MaxPool(window), &[x], &[&y, &indices]);
        draft.save(self, "indices", &indices)?;
        drop(indices);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let gradient = eager.dense_copy(gradient);
            let grad_x = eager.empty(&saved.get("self").shape, gradient.dtype);
            let inputs = [&*gradient, saved.get("indices")];
            eager.launch(Kernel::MaxPoolGrad(window), &inputs, &[&grad_x]);
            vec![Some(Tensor::new(grad_x))]
        });
        Ok(y)
    }

    /// `adaptive_avg_pool2d`: to one by one it is a mean, which saves nothing.
    pub(in super::super) fn adaptive_avg_pool2d(
        &mut self,
        output: [u64; 2],
        x: &Tensor,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        let x_shape = x.shape.clone();
        if output == [1, 1] {
            let y = self.plane_mean(x);
            let plane = numel(&x_shape[2..]).at(1) as f64;
            let [y] = draft.finish(self, [y], move |eager, gradients, _| {
                let Some(gradient) = &gradients[0] else {
                    return vec![None];
                };
                let grad_x = eager.empty(&x_shape, gradient.dtype);
                let mut strides = gradient.strides.clone();
                strides[2..].fill(Extent::ZERO);
                let everywhere = gradient.alias(x_shape, strides);
                eager.launch(Kernel::Scale(1.0 / plane), &[&everywhere], &[&grad_x]);
                vec![Some(Tensor::new(grad_x))]
            });
            return Ok(y);
        }
        draft.save(self, "self", x)?;
        let shape = [x.shape[0], x.shape[1], output[0].into(), output[1].into()];
        let y = self.empty(&shape, x.dtype);
        self.launch(Kernel::AdaptiveAvgPool, &[x], &[&y]);
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let gradient = eager.dense_copy(gradient);
            let grad_x = eager.empty(&x_shape, gradient.dtype);
            eager.launch(Kernel::AdaptiveAvgPoolGrad, &[&gradient], &[&grad_x]);
            vec![Some(Tensor::new(grad_x))]
        });
        Ok(y)
    }
}
