//! Reductions and products, as methods.

use super::argument::Argument;
use super::operands::Tensors;
use super::tracer::Tensor;
use crate::shape::DType;

/// What makes fewer elements, or products.
pub(crate) trait Reductions: Tensors {
    /// `x.mean(dims, keepdim)`
    fn mean(self, dims: &[i64], keepdim: bool) -> Tensor {
        self.apply("aten.mean.dim", &reduced(dims, keepdim))
    }

    /// `x.sum(dims, keepdim)`
    fn sum(self, dims: &[i64], keepdim: bool) -> Tensor {
        self.apply("aten.sum.dim_IntList", &reduced(dims, keepdim))
    }

    /// `x.max()`
    fn maximum_of_all(self) -> Tensor {
        self.apply("aten.max.default", &[])
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

    /// `F.adaptive_avg_pool1d(x, length)`
    fn adaptive_average_1d(self, length: i64) -> Tensor {
        let size = [("output_size", Argument::Ints(vec![length]))];
        self.apply("aten.adaptive_avg_pool1d.default", &size)
    }

    /// `x.sum()`
    fn sum_all(self) -> Tensor {
        self.apply("aten.sum.default", &[])
    }

    /// `x.argmax(dim)`
    fn argmax(self, dim: i64) -> Tensor {
        self.apply("aten.argmax.default", &[("dim", Argument::Int(dim))])
    }

    /// `x.all()`
    fn all(self) -> Tensor {
        self.apply("aten.all.default", &[])
    }

    /// `x.any()`
    fn any(self) -> Tensor {
        self.apply("aten.any.default", &[])
    }

    /// `x.any(dim)`
    fn any_of(self, dim: i64) -> Tensor {
        self.apply("aten.any.dim", &[("dim", Argument::Int(dim))])
    }

    /// `torch.multinomial(x, num_samples=count)`
    fn multinomial(self, count: i64) -> Tensor {
        self.apply(
            "aten.multinomial.default",
            &[("num_samples", Argument::Int(count))],
        )
    }

    /// `x.cumsum(dim)`
    fn cumsum(self, dim: i64) -> Tensor {
        self.apply("aten.cumsum.default", &[("dim", Argument::Int(dim))])
    }

    /// `x.cumsum(dim, dtype)`
    fn cumsum_in(self, dim: i64, dtype: DType) -> Tensor {
        let how = [
            ("dim", Argument::Int(dim)),
            ("dtype", Argument::DType(dtype)),
        ];
        self.apply("aten.cumsum.default", &how)
    }

    /// `x.topk(count)`: values and where they were.
    fn largest(self, count: u64) -> [Tensor; 2] {
        let how = [("k", Argument::Size(count.into()))];
        two(self.apply_many("aten.topk.default", &how))
    }

    /// `x.topk(count, sorted=False)`
    fn largest_unsorted(self, count: u64) -> [Tensor; 2] {
        let how = [
            ("k", Argument::Size(count.into())),
            ("dim", Argument::Int(-1)),
            ("largest", Argument::Bool(true)),
            ("sorted", Argument::Bool(false)),
        ];
        two(self.apply_many("aten.topk.default", &how))
    }

    /// `torch.sort(x)`: values and where they were.
    fn sort(self) -> [Tensor; 2] {
        two(self.apply_many("aten.sort.default", &[]))
    }

    /// `torch.histc(x, bins, 0, last)` of whole numbers
    fn histogram(self, bins: u64, last: i64) -> Tensor {
        let how = [
            ("bins", Argument::Size(bins.into())),
            ("min", Argument::Int(0)),
            ("max", Argument::Int(last)),
        ];
        self.apply("aten.histc.default", &how)
    }

    /// `softmax(x, dim, dtype)`
    fn softmax(self, dim: i64, dtype: Option<DType>) -> Tensor {
        let mut how = vec![("dim", Argument::Int(dim))];
        how.extend(dtype.map(|dtype| ("dtype", Argument::DType(dtype))));
        self.apply("aten.softmax.int", &how)
    }

    /// `a @ b`
    fn matmul(self, other: impl Tensors) -> Tensor {
        self.apply_with("aten.matmul.default", "other", other, &[])
    }

    /// `x.baddbmm(a, b, beta=beta, alpha=alpha)`
    fn baddbmm(self, a: &Tensor, b: &Tensor, [beta, alpha]: [f64; 2]) -> Tensor {
        self.apply(
            "aten.baddbmm.default",
            &[
                ("batch1", Argument::Tensor(a)),
                ("batch2", Argument::Tensor(b)),
                ("beta", Argument::Float(beta)),
                ("alpha", Argument::Float(alpha)),
            ],
        )
    }

    /// `torch.bmm(a, b)`
    fn bmm(self, other: impl Tensors) -> Tensor {
        self.apply_with("aten.bmm.default", "mat2", other, &[])
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
