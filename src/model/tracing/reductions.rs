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

    /// `x.sum()`
    fn sum_all(self) -> Tensor {
        self.apply("aten.sum.default", &[])
    }

    /// `x.argmax(dim)`
    fn argmax(self, dim: i64) -> Tensor {
        self.apply("aten.argmax.default", &[("dim", Argument::Int(dim))])
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

fn reduced(dims: &[i64], keepdim: bool) -> Vec<(&'static str, Argument<'static>)> {
    let mut how = vec![("dim", Argument::Ints(dims.to_vec()))];
    if keepdim {
        how.push(("keepdim", Argument::Bool(true)));
    }
    how
}
