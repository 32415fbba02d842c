//! Reductions and products, as methods.

use super::argument::Argument;
use super::tracer::{Tensor, Tensors};
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

    /// `x.all()`
    fn all(self) -> Tensor {
        self.apply("aten.all.default", &[])
    }

    /// `x.any()`
    fn any(self) -> Tensor {
        self.apply("aten.any.default", &[])
    }

    /// `x.cumsum(dim)`
    fn cumsum(self, dim: i64) -> Tensor {
        self.apply("aten.cumsum.default", &[("dim", Argument::Int(dim))])
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

    /// `torch.bmm(a, b)`
    fn bmm(self, other: impl Tensors) -> Tensor {
        self.apply_with("aten.bmm.default", "mat2", other, &[])
    }
}

impl<T: Tensors> Reductions for T {}

fn reduced(dims: &[i64], keepdim: bool) -> Vec<(&'static str, Argument<'static>)> {
    let mut how = vec![("dim", Argument::Ints(dims.to_vec()))];
    if keepdim {
        how.push(("keepdim", Argument::Bool(true)));
    }
    how
}
