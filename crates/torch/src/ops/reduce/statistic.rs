//! Products, sums of numbers, variances and `logsumexp`.

use super::run::{Kind, squeezed};
use super::vector_norm::kept_shape;
use super::{ReduceDims, kernel};
use crate::ops::elementwise::expanded;
use crate::ops::prelude::*;
use crate::program::Binary;

impl Eager {
    /// `count_nonzero`: a sum of `self != 0`.
    pub(super) fn count_nonzero(&mut self, x: &Tensor, over: ReduceDims<'_>) -> Tensor {
        let mask = Tensor::new(self.empty_like(x, DType::Bool));
        self.launch(kernel::nonzero(), &[x], &[&mask]);
        let by = (kernel::count(over.dims), Kind::Sum);
        Tensor::new(self.reduced_over(&mask, over, DType::Int64, by))
    }

    /// `nansum`, whose gradient is `grad * self.isnan().logical_not()`.
    pub(super) fn nansum(
        &mut self,
        x: &Tensor,
        over: ReduceDims<'_>,
        dtype: Option<DType>,
    ) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let dtype = dtype.unwrap_or(if x.dtype.is_float() {
            x.dtype
        } else {
            DType::Int64
        });
        let by = (kernel::nansum(over.dims), Kind::Sum);
        let y = self.reduced_over(x, over, dtype, by);
        let kept = kept_shape(&x.shape, over.dims);
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let x = saved.get("self");
            let shown = eager.reshape(gradient, &kept);
            let _missing = eager.empty_like(x, DType::Bool);
            let _there = eager.empty_like(x, DType::Bool);
            let grad_x = eager.empty_like(x, gradient.dtype);
            eager.computed(grad_x, kernel::nansum_grad(), &[&shown, x])
        }))
    }

    /// `prod`; autocast makes it in float32. Its gradient counts zeros first (`prod_backward`).
    pub(super) fn prod(
        &mut self,
        x: &Tensor,
        over: ReduceDims<'_>,
        dtype: Option<DType>,
    ) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let dtype = dtype.unwrap_or(match self.autocast {
            Some(_) if x.dtype.is_half() => DType::Float32,
            _ if !x.dtype.is_float() => DType::Int64,
            _ => x.dtype,
        });
        let by = (kernel::prod(over.dims), Kind::Sum);
        let y = self.reduced_over(x, over, dtype, by);
        draft.save(self, "result", &y.detached())?;
        let (dims, named) = (over.dims.to_vec(), over.named);
        let kept = kept_shape(&x.shape, over.dims);
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let x = saved.get("self");
            // In the type of the gradient.
            let cast = (x.dtype != gradient.dtype).then(|| eager.copy_as(x, gradient.dtype));
            let x = cast.as_ref().unwrap_or(x);
            let zeros = Tensor::new(eager.empty_like(x, DType::Bool));
            eager.launch(kernel::is_zero(), &[x], &[&zeros]);
            let _counts = named.then(|| {
                let by = (kernel::count(&dims), Kind::Sum);
                let counts = Tensor::new(eager.reduced_by(&zeros, &dims, DType::Int64, by));
                let all: Vec<usize> = (0..counts.shape.len()).collect();
                let by = (kernel::extreme(&all, true), Kind::Extreme);
                drop(eager.reduced_by(&counts, &all, DType::Int64, by));
                counts
            });
            let _ratio = eager.empty_like(x, gradient.dtype);
            let grad_x = eager.empty_like(x, gradient.dtype);
            let shown = eager.reshape(gradient, &kept);
            let result = eager.reshape(saved.get("result"), &kept);
            let inputs: [&TensorBody; 3] = [x, &shown, &result];
            eager.computed(grad_x, kernel::prod_grad(&dims), &inputs)
        }))
    }

    /// `var`, `std`, and those with a mean as a second result.
    pub(super) fn spread(
        &mut self,
        x: &Tensor,
        over: ReduceDims<'_>,
        (root, with_mean): (bool, bool),
        correction: f64,
    ) -> Outputs {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let kept = kept_shape(&x.shape, over.dims);
        let whole = self.empty(&kept, x.dtype);
        let mean = with_mean.then(|| self.empty(&kept, x.dtype));
        let mut outputs = vec![&whole];
        outputs.extend(&mean);
        let kernel = kernel::spread(over.dims, root, with_mean, correction);
        self.reduce_to_all(x, &outputs, over.dims, (kernel, Kind::Welford));
        let mut results = vec![squeezed(&whole, over.dims, over.keep)];
        results.extend(mean.iter().map(|mean| squeezed(mean, over.dims, over.keep)));
        drop((whole, mean));
        if root {
            draft.save(self, "result", &results[0].detached())?;
        }
        let (dims, count) = (over.dims.to_vec(), over.count(&x.shape));
        Ok(
            draft.finish_many(self, results, move |eager, gradients, saved| {
                let x = saved.get("self");
                let of_spread = gradients[0].as_ref().map(|gradient| {
                    let gradient = eager.reshape(gradient, &kept);
                    let of_variance = root.then(|| {
                        let result = eager.reshape(saved.get("result"), &kept);
                        eager.of_variance(&gradient, &result)
                    });
                    let gradient = of_variance.as_ref().unwrap_or(&gradient);
                    let kernel = kernel::variance_grad(count, correction);
                    eager.variance_gradient(x, &dims, gradient, kernel)
                });
                let of_mean = gradients.get(1).and_then(Option::as_ref).map(|gradient| {
                    let gradient = eager.reshape(gradient, &kept);
                    let everywhere = expanded(&gradient, &x.shape);
                    let grad_x = eager.empty(&x.shape, gradient.dtype);
                    eager.computed(grad_x, kernel::mean_grad(count), &[&everywhere])
                });
                vec![match (of_spread, of_mean) {
                    (Some(of_spread), Some(of_mean)) => {
                        let sum = eager.empty_like(&of_spread, of_spread.dtype);
                        let kernel = Kernel::Binary(Binary::Add);
                        eager.launch(kernel, &[&of_spread, &of_mean], &[&sum]);
                        drop((of_spread, of_mean));
                        Some(Tensor::new(sum))
                    }
                    (of_spread, of_mean) => of_spread.or(of_mean),
                }]
            }),
        )
    }

    /// `std_backward`: `(grad / (result * 2)).masked_fill_(result == 0, 0)`.
    fn of_variance(&mut self, gradient: &Tensor, result: &Tensor) -> Tensor {
        let _double = self.empty_like(result, result.dtype);
        let quotient = self.empty_like(result, gradient.dtype);
        let _mask = self.empty_like(result, DType::Bool);
        self.computed(quotient, kernel::of_variance(), &[gradient, result])
    }

    /// `var_backward`: `(2 / (n - correction)) * grad * (self - self.mean(dim))`.
    fn variance_gradient(
        &mut self,
        x: &Tensor,
        dims: &[usize],
        gradient: &Tensor,
        kernel: Generated,
    ) -> Tensor {
        let mean = self.reduced_by(x, dims, x.dtype, (kernel::mean(dims), Kind::Sum));
        let _centred = self.empty_like(x, x.dtype);
        let _scaled = self.empty_like(gradient, gradient.dtype);
        let grad_x = self.empty_like(x, gradient.dtype);
        self.computed(grad_x, kernel, &[gradient, x, &mean])
    }

    /// `logsumexp`, which autocast makes in float32 of a copy (`logsumexp_out_impl` in `ReduceOps.cpp`).
    pub(super) fn logsumexp(&mut self, x: &Tensor, over: ReduceDims<'_>) -> Output {
        let x = if x.dtype.is_float() {
            self.high(x)
        } else {
            self.cast(x, DType::Float32)
        };
        let mut draft = OpRecord::new(self, &[Some(&x)]);
        draft.save(self, "self", &x)?;
        let by = (kernel::extreme(over.dims, true), Kind::Extreme);
        let largest = self.reduced_by(&x, over.dims, x.dtype, by);
        let magnitudes = self.empty_like(&largest, x.dtype);
        let infinite = self.empty_like(&largest, DType::Bool);
        drop((infinite, magnitudes));
        let powers = Tensor::new(self.empty_like(&x, x.dtype));
        // Of the operand itself: the exponentials are there for their memory alone.
        let whole = self.empty(kept_shape(&x.shape, over.dims), x.dtype);
        let scratch = self.scratch_of_sum(&powers, &whole, over.dims);
        self.launch(kernel::logsumexp(over.dims), &[&x], &[&whole]);
        drop(scratch);
        let y = squeezed(&whole, over.dims, over.keep);
        drop((whole, powers, largest));
        draft.save(self, "result", &y.detached())?;
        let kept: Vec<Extent> = kept_shape(&x.shape, over.dims);
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            // `grad * (self - result).exp()`.
            let x = saved.get("self");
            let gradient = eager.reshape(gradient, &kept);
            let _difference = eager.empty_like(x, x.dtype);
            let _power = eager.empty_like(x, x.dtype);
            let grad_x = eager.empty_like(x, gradient.dtype);
            let result = eager.reshape(saved.get("result"), &kept);
            eager.computed(grad_x, kernel::logsumexp_grad(), &[&gradient, x, &result])
        }))
    }
}
