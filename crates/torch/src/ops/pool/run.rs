//! Pooling.
//!
//! Read off the allocator's history of PyTorch 2.11, forward and backward, for operands in row-major order, in
//! channels-last order and in neither.

use crate::ops::Pool;
use crate::ops::prelude::*;

use super::kernel as pooling;
use crate::shape::{MemoryFormat, Window};

impl Eager {
    /// A pool, with as many results as it has. One along a single dimension is one of planes one high.
    pub fn pool(
        &mut self,
        pool: Pool,
        x: &Tensor,
        second: Option<&Tensor>,
        shape: &[Extent],
    ) -> Outputs {
        if let [n, channels, length] = shape {
            let plane = self.unsqueeze(x, 2);
            let high = [*n, *channels, Extent::ONE, *length];
            let results = self.pool(pool, &plane, second, &high)?;
            drop(plane);
            let flat = results.iter().map(|result| self.reshape(result, shape));
            return Ok(flat.collect());
        }
        match pool {
            Pool::Max(window) => {
                let mut results = self.max_pool(window, x, shape)?;
                // Where the maxima were was not asked for.
                results.truncate(1);
                Ok(results)
            }
            Pool::MaxWithIndices(window) => self.max_pool(window, x, shape),
            Pool::Average {
                window,
                count_include_pad,
                divisor,
            } => {
                let of = (count_include_pad, divisor);
                Ok(vec![self.avg_pool((window, of), x, shape)?])
            }
            Pool::AdaptiveAverage([1, 1, 1]) => Ok(vec![self.mean_pool(x)]),
            Pool::AdaptiveAverage(_) => Ok(vec![self.adaptive_avg_pool(x, shape)?]),
            Pool::AdaptiveMax(_) => self.adaptive_max_pool(x, shape),
            Pool::FractionalMax { kernel, .. } => {
                let samples = second.expect("a fractional pool has two operands");
                self.fractional_max_pool(kernel, [x, samples], shape)
            }
            Pool::MaxUnpool(_) => {
                let indices = second.expect("an unpool has two operands");
                Ok(vec![self.max_unpool(x, indices, shape)?])
            }
        }
    }

    /// `max_pool2d` and `max_pool3d`: save the input and one int64 index for each result. An operand in no simple order
    /// is copied for the kernel.
    fn max_pool(&mut self, window: Window, x: &Tensor, shape: &[Extent]) -> Outputs {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let format = x.suggested_format();
        let y = self.empty_strided(shape, format.strides(shape), x.dtype);
        let indices = Tensor::new(self.empty_strided(shape, format.strides(shape), DType::Int64));
        let dense = self.copy_in(x, format);
        let planes = shape.len() == 4;
        let kernels = if planes {
            [Kernel::MaxPool(window), Kernel::MaxPoolGrad(window)]
        } else {
            let sides = shape.len() - 2;
            [
                pooling::max(&window, sides).into(),
                pooling::max_backward(&window, sides).into(),
            ]
        };
        let [forward, backward] = kernels;
        self.launch(forward, &[&dense], &[&y, &indices]);
        drop(dense);
        draft.save(self, "indices", &indices)?;
        let y = draft.finish_one(self, y, move |eager, gradient, saved| {
            eager.window_pool_grad(backward, format, gradient, saved)
        });
        Ok(vec![y, indices])
    }

    /// `avg_pool2d` and `avg_pool3d`, which save their input. Results of volumes are row-major.
    fn avg_pool(
        &mut self,
        (window, of): (Window, (bool, Option<i64>)),
        x: &Tensor,
        shape: &[Extent],
    ) -> Output {
        let sides = shape.len() - 2;
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let format = pooled_format(x);
        let y = self.empty_strided(shape, format.strides(shape), x.dtype);
        let dense = self.copy_in(x, format);
        self.launch(pooling::avg(&window, of, sides), &[&dense], &[&y]);
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let backward = pooling::avg_backward(&window, of, sides).into();
            eager.window_pool_grad(backward, format, gradient, saved)
        }))
    }

    /// The gradient of a pool with a window. Kernels for planes copy an operand in no simple order again; all copy the
    /// gradient, once its result exists.
    fn window_pool_grad(
        &mut self,
        kernel: Kernel,
        format: MemoryFormat,
        gradient: &Tensor,
        saved: &Saved,
    ) -> Tensor {
        let x = saved.get("self");
        let grad_x = self.empty_strided(&x.shape, format.strides(&x.shape), gradient.dtype);
        let _dense = (x.shape.len() == 4).then(|| self.copy_in(x, format));
        let gradient = self.copy_in(gradient, format);
        let mut inputs = vec![&*gradient];
        inputs.extend(saved.find("indices").map(|indices| &**indices));
        self.computed(grad_x, kernel, &inputs)
    }

    /// An adaptive average to one element: a mean, which saves nothing.
    fn mean_pool(&mut self, x: &Tensor) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let x_shape = x.shape.clone();
        let format = x.suggested_format();
        let y = self.plane_mean(x);
        let plane = numel(&x_shape[2..]).at(1) as f64;
        draft.finish_one(self, y, move |eager, gradient, _| {
            // A channels-last result was seen under other strides, which takes a copy to undo.
            if format == MemoryFormat::ChannelsLast {
                drop(eager.empty(&gradient.shape, gradient.dtype));
            }
            let grad_x = eager.empty(&x_shape, gradient.dtype);
            let mut strides = gradient.strides.clone();
            strides[2..].fill(Extent::ZERO);
            let everywhere = gradient.alias(x_shape, strides);
            eager.computed(grad_x, Kernel::Scale(1.0 / plane), &[&everywhere])
        })
    }

    /// `adaptive_avg_pool2d` and `3d` to more than one element. The kernels for volumes are row-major.
    fn adaptive_avg_pool(&mut self, x: &Tensor, shape: &[Extent]) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let x_shape = x.shape.clone();
        let planes = shape.len() == 4;
        let format = pooled_format(x);
        let kernels = if planes {
            [Kernel::AdaptiveAvgPool, Kernel::AdaptiveAvgPoolGrad]
        } else {
            let sides = shape.len() - 2;
            [
                pooling::adaptive_avg(sides).into(),
                pooling::adaptive_avg_backward(sides).into(),
            ]
        };
        let [forward, backward] = kernels;
        let dense = self.copy_in(x, format);
        let y = self.empty_strided(shape, format.strides(shape), x.dtype);
        self.launch(forward, &[&dense], &[&y]);
        Ok(draft.finish_one(self, y, move |eager, gradient, _| {
            // The channels-last kernel takes a gradient in any order.
            let early = match format {
                MemoryFormat::Contiguous if planes => eager.dense_copy(gradient),
                MemoryFormat::Contiguous | MemoryFormat::ChannelsLast => Tensor::clone(gradient),
            };
            let grad_x = eager.empty_strided(&x_shape, format.strides(&x_shape), early.dtype);
            let gradient = if planes {
                early
            } else {
                eager.dense_copy(&early)
            };
            eager.computed(grad_x, backward, &[&gradient])
        }))
    }

    /// `adaptive_max_pool2d` and `3d`. Results of volumes are row-major; channels-last planes are pooled in
    /// row-major copies of operand and results.
    fn adaptive_max_pool(&mut self, x: &Tensor, shape: &[Extent]) -> Outputs {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let format = pooled_format(x);
        let indirect = format == MemoryFormat::ChannelsLast;
        let y = self.empty_strided(shape, format.strides(shape), x.dtype);
        let indices = Tensor::new(self.empty_strided(shape, format.strides(shape), DType::Int64));
        let row_major: Option<[TensorBody; 2]> =
            indirect.then(|| [x.dtype, DType::Int64].map(|dtype| self.empty(shape, dtype)));
        let dense = self.dense_copy(x);
        let sides = shape.len() - 2;
        let kernel = pooling::adaptive_max(sides);
        self.launch(kernel, &[&dense], &[&y, &indices]);
        drop(dense);
        drop_in_reverse(row_major);
        draft.save(self, "indices", &indices)?;
        let y = draft.finish_one(self, y, move |eager, gradient, saved| {
            let x = saved.get("self");
            let grad_x = eager.empty_strided(&x.shape, format.strides(&x.shape), gradient.dtype);
            let gradient = eager.dense_copy(gradient);
            let indices = eager.dense_copy(saved.get("indices"));
            let _row_major = indirect.then(|| eager.empty(&x.shape, gradient.dtype));
            let kernel = pooling::adaptive_max_backward(sides);
            eager.computed(grad_x, kernel, &[&gradient, &indices])
        });
        Ok(vec![y, indices])
    }

    /// `fractional_max_pool2d` and `3d`: row-major, with places.
    fn fractional_max_pool(
        &mut self,
        kernel: [u64; 3],
        [x, samples]: [&Tensor; 2],
        shape: &[Extent],
    ) -> Outputs {
        let sides = shape.len() - 2;
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let y = self.empty(shape, x.dtype);
        let indices = Tensor::new(self.empty(shape, DType::Int64));
        let kernel = pooling::fractional_max(kernel, sides);
        self.launch(kernel, &[x, samples], &[&y, &indices]);
        draft.save(self, "indices", &indices)?;
        let y = draft.finish_one(self, y, move |eager, gradient, saved| {
            let kernel = pooling::placed("fractional_max_pool", sides);
            eager.placed_grad(kernel, &saved.get("self").shape, gradient, saved)
        });
        Ok(vec![y, indices])
    }

    /// `max_unpool2d` and `3d`: zeros with the operand's elements at their places; the gradient is a look-up.
    fn max_unpool(&mut self, x: &Tensor, indices: &Tensor, shape: &[Extent]) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "indices", indices)?;
        let y = self.empty(shape, x.dtype);
        let sides = shape.len() - 2;
        self.launch(Kernel::Fill(0.0), &[], &[&y]);
        let kernel = pooling::put("max_unpool", sides);
        self.launch(kernel, &[x, indices], &[&y]);
        let from = x.shape.clone();
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let kernel = pooling::taken("max_unpool", sides);
            eager.placed_grad(kernel, &from, gradient, saved)
        }))
    }

    /// A row-major gradient from places that were saved.
    fn placed_grad(
        &mut self,
        kernel: Generated,
        shape: &[Extent],
        gradient: &Tensor,
        saved: &Saved,
    ) -> Tensor {
        let grad_x = self.empty(shape, gradient.dtype);
        let inputs = [&**gradient, saved.get("indices")];
        self.computed(grad_x, kernel, &inputs)
    }
}

/// The order of what most pools make: for volumes it is row-major.
fn pooled_format(x: &Tensor) -> MemoryFormat {
    if x.shape.len() == 4 {
        x.suggested_format()
    } else {
        MemoryFormat::Contiguous
    }
}

/// Variables go in the reverse of the order in which they were made.
fn drop_in_reverse(tensors: Option<[TensorBody; 2]>) {
    for tensor in tensors.into_iter().flatten().rev() {
        drop(tensor);
    }
}
