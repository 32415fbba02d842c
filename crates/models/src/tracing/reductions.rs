//! Reductions and products, as methods.

use super::argument::Argument;
use super::operands::{Tensors, methods};
use super::tracer::Tensor;
use crate::shape::DType;

/// What makes fewer elements, or products.
pub(crate) trait Reductions: Tensors {
    methods! {
        /// `x.max()`
        maximum_of_all(): "aten.max.default" {}
        /// `F.adaptive_avg_pool1d(x, length)`
        adaptive_average_1d(length: i64): "aten.adaptive_avg_pool1d.default" { output_size: [length].as_slice() }
        /// `x.sum()`
        sum_all(): "aten.sum.default" {}
        /// `x.argmax(dim)`
        argmax(dim: i64): "aten.argmax.default" { dim: dim }
        /// `x.all()`
        all(): "aten.all.default" {}
        /// `x.any()`
        any(): "aten.any.default" {}
        /// `x.any(dim)`
        any_of(dim: i64): "aten.any.dim" { dim: dim }
        /// `torch.multinomial(x, num_samples=count)`
        multinomial(count: i64): "aten.multinomial.default" { num_samples: count }
        /// `x.cumsum(dim)`
        cumsum(dim: i64): "aten.cumsum.default" { dim: dim }
        /// `x.cumsum(dim, dtype)`
        cumsum_in(dim: i64, dtype: DType): "aten.cumsum.default" { dim: dim, dtype: dtype }
        /// `torch.histc(x, bins, 0, last)` of whole numbers
        histogram(bins: u64, last: i64): "aten.histc.default" { bins: bins, min: 0_i64, max: last }
        /// `x.baddbmm(a, b, beta=beta, alpha=alpha)` of the two `scales`
        baddbmm(a: &Tensor, b: &Tensor, scales: [f64; 2]): "aten.baddbmm.default" { batch1: a, batch2: b, beta: scales[0], alpha: scales[1] }
    }

    methods! {
        with other:
        /// `a @ b`
        matmul(): "aten.matmul.default" {}
        with mat2:
        /// `torch.bmm(a, b)`
        bmm(): "aten.bmm.default" {}
    }

    /// `x.mean(dims, keepdim)`
    fn mean(self, dims: &[i64], keepdim: bool) -> Tensor {
        self.apply("aten.mean.dim", &reduced(dims, keepdim))
    }

    /// `x.sum(dims, keepdim)`
    fn sum(self, dims: &[i64], keepdim: bool) -> Tensor {
        self.apply("aten.sum.dim_IntList", &reduced(dims, keepdim))
    }

    /// `x.max(dim)`: values and where they were.
    fn maximum(self, dim: i64) -> [Tensor; 2] {
        two(self.apply_many("aten.max.dim", &[("dim", Argument::Int(dim))]))
    }

    /// `torch.linalg.vector_norm(x, ord, dims, keepdim)`
    fn vector_norm(self, ord: i64, dims: &[i64], keepdim: bool) -> Tensor {
        let mut how = vec![("ord", Argument::Int(ord))];
        how.extend(reduced(dims, keepdim));
        self.apply("aten.linalg_vector_norm.default", &how)
    }

    /// `x.topk(count)`: values and where they were.
    fn largest(self, count: u64) -> [Tensor; 2] {
        let how = [("k", Argument::Size(count.into()))];
        two(self.apply_many("aten.topk.default", &how))
    }

    /// `x.topk(count, sorted=False)`
    fn largest_unsorted(self, count: u64) -> [Tensor; 2] {
        let mut how = vec![("k", Argument::from(count)), ("dim", Argument::Int(-1))];
        how.extend([("largest", true.into()), ("sorted", false.into())]);
        two(self.apply_many("aten.topk.default", &how))
    }

    /// `torch.sort(x)`: values and where they were.
    fn sort(self) -> [Tensor; 2] {
        two(self.apply_many("aten.sort.default", &[]))
    }

    /// `softmax(x, dim, dtype)`
    fn softmax(self, dim: i64, dtype: Option<DType>) -> Tensor {
        let mut how = vec![("dim", Argument::Int(dim))];
        how.extend(dtype.map(|dtype| ("dtype", Argument::DType(dtype))));
        self.apply("aten.softmax.int", &how)
    }
}

impl<T: Tensors> Reductions for T {}

fn two(results: Vec<Tensor>) -> [Tensor; 2] {
    let mut results = results.into_iter();
    match (results.next(), results.next()) {
        (Some(first), Some(second)) => [first, second],
        _ => unreachable!("these operators have two results"),
    }
}

fn reduced(dims: &[i64], keepdim: bool) -> Vec<(&'static str, Argument<'static>)> {
    let mut how = vec![("dim", Argument::Ints(dims.to_vec()))];
    if keepdim {
        how.push(("keepdim", Argument::Bool(true)));
    }
    how
}
