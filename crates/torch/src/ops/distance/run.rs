//! Distances in the order of their C++ statements (`Distance.cpp`).

use crate::ops::Reduction;
use crate::ops::prelude::*;

impl Eager {
    /// `at::norm(x1 - x2 + eps, p, innermost_dim, keepdim)`.
    pub(in crate::ops) fn pairwise_distance(
        &mut self,
        a: &Tensor,
        b: &Tensor,
        (order, eps): (f64, f64),
        keep: bool,
    ) -> Output {
        let difference = self.apply("aten.sub.Tensor", &[a, b])?;
        let shifted = self.add_scalar(&difference, eps, Placement::New);
        let last = [shifted.shape.len().saturating_sub(1)];
        self.norm_along(&shifted, (&last, keep), (order, true))
    }

    /// `cosine_similarity`: both are divided by their norms, which autocast makes of float32 copies.
    pub(super) fn cosine_similarity(&mut self, a: &Tensor, b: &Tensor, dim: usize) -> Output {
        let b = self.high(b);
        let a = self.high(a);
        self.without_autocast(|eager| eager.cosine_of(&a, &b, dim))
    }

    fn cosine_of(&mut self, a: &Tensor, b: &Tensor, dim: usize) -> Output {
        let dtype = DType::promote(a.dtype, b.dtype);
        let shape = broadcast(&a.shape, &b.shape).expect("checked when the graph was built");
        let mut seen = |x: &Tensor| {
            let x = self.cast(x, dtype);
            self.expand(&x, &shape)
        };
        // The arguments of a C++ call, from the last to the first.
        let b = seen(b);
        let a = seen(a);
        let length = |eager: &mut Eager, x: &Tensor| {
            let norm = eager.norm_along(x, (&[dim], true), (2.0, false))?;
            let copy = eager.clone_of(&norm);
            Ok(copy)
        };
        let of_a = length(self, &a)?;
        let of_b = length(self, &b)?;
        let _least = self.empty(&[], dtype);
        let right = self.apply("aten.div.Tensor", &[&b, &of_b])?;
        let left = self.apply("aten.div.Tensor", &[&a, &of_a])?;
        let product = self.mul(&left, &right)?;
        let sum = self.reduction(Reduction::Sum, &product, &[dim], false);
        Ok(sum)
    }
}
