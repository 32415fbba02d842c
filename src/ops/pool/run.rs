//! Pooling.

use crate::eager::{Draft, Eager, Stop, Tensor};
use crate::ops::{Pool, Resample};
use crate::program::Kernel;
use crate::shape::{DType, Extent, MemoryFormat, Window, numel};

impl Eager {
    /// `max_pool2d`: saves its input and one int64 index for each result.
    pub(crate) fn max_pool2d(&mut self, window: Window, x: &Tensor) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let side = |axis: usize| {
            let output = x.shape[2 + axis]
                .as_fixed()
                .and_then(|n| window.output(axis, n));
            Extent::fixed(output.expect("checked when the graph was built"))
        };
        let shape = [x.shape[0], x.shape[1], side(0), side(1)];
        let format = x.suggested_format();
        let y = self.empty_strided(&shape, format.strides(&shape), x.dtype);
        let indices = Tensor::new(self.empty_strided(&shape, format.strides(&shape), DType::Int64));
        // An operand in no simple order is copied for the kernel, here and in the backward pass.
        let dense = self.copy_in(x, format);
        self.launch(Kernel::MaxPool(window), &[&dense], &[&y, &indices]);
        drop(dense);
        draft.save(self, "indices", &indices)?;
        drop(indices);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let x = saved.get("self");
            let strides = format.strides(&x.shape);
            let grad_x = eager.empty_strided(&x.shape, strides, gradient.dtype);
            let dense = eager.copy_in(x, format);
            let gradient = eager.copy_in(gradient, format);
            let inputs = [&*gradient, saved.get("indices")];
            eager.launch(Kernel::MaxPoolGrad(window), &inputs, &[&grad_x]);
            drop(gradient);
            drop(dense);
            vec![Some(Tensor::new(grad_x))]
        });
        Ok(y)
    }

    /// `adaptive_avg_pool2d`: to one by one it is a mean, which saves nothing.
    pub(crate) fn adaptive_avg_pool2d(
        &mut self,
        output: [u64; 2],
        x: &Tensor,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        let x_shape = x.shape.clone();
        let format = x.suggested_format();
        if output == [1, 1] {
            let y = self.plane_mean(x);
            let plane = numel(&x_shape[2..]).at(1) as f64;
            let [y] = draft.finish(self, [y], move |eager, gradients, _| {
                let Some(gradient) = &gradients[0] else {
                    return vec![None];
                };
                // A channels-last result was seen under other strides, which takes a copy to undo.
                if format == MemoryFormat::ChannelsLast {
                    drop(eager.empty(&gradient.shape, gradient.dtype));
                }
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
        let dense = self.copy_in(x, format);
        let y = self.empty_strided(&shape, format.strides(&shape), x.dtype);
        self.launch(Kernel::AdaptiveAvgPool, &[&dense], &[&y]);
        drop(dense);
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            // The channels-last kernel takes a gradient in any order.
            let gradient = match format {
                MemoryFormat::Contiguous => eager.dense_copy(gradient),
                MemoryFormat::ChannelsLast => Tensor::clone(gradient),
            };
            let grad_x = eager.empty_strided(&x_shape, format.strides(&x_shape), gradient.dtype);
            eager.launch(Kernel::AdaptiveAvgPoolGrad, &[&gradient], &[&grad_x]);
            vec![Some(Tensor::new(grad_x))]
        });
        Ok(y)
    }

    /// A pool of planes one high.
    pub(crate) fn pool1d(
        &mut self,
        pool: Pool,
        x: &Tensor,
        shape: &[Extent],
    ) -> Result<Tensor, Stop> {
        let plane = self.unsqueeze(x, 2);
        let y = match pool {
            Pool::AdaptiveAverage1d(output) => self.adaptive_avg_pool2d([1, output], &plane)?,
            Pool::AdaptiveAverage(output) => self.adaptive_avg_pool2d(output, &plane)?,
            Pool::Max1d(window) | Pool::Max(window) => self.max_pool2d(window, &plane)?,
            Pool::Average1d(window) => {
                let high = [shape[0], shape[1], Extent::ONE, shape[2]];
                let all = self.resample(&Resample::AvgPool(window), &plane, &high)?;
                all.into_iter().next().expect("a pool has a result")
            }
        };
        drop(plane);
        Ok(self.reshape(&y, shape))
    }
}
