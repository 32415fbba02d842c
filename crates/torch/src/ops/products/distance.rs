//! `cdist`: `cdist_impl` in `Distance.cpp`.

use std::rc::Rc;

use super::kernel;
use crate::ops::prelude::*;

/// Euclidean distances between more rows than these are made of a product of matrices.
const FEW: u64 = 25;

impl Eager {
    /// `cdist(a, b)`. Autocast runs it in float32.
    pub(super) fn distances(&mut self, [a, b]: [&Tensor; 2], norm: f64) -> Output {
        let b = self.high(b);
        let a = self.high(a);
        let rows = [&a, &b].map(|tensor| tensor.shape[tensor.shape.len() - 2]);
        let many = rows
            .iter()
            .any(|rows| rows.as_fixed().is_none_or(|rows| rows > FEW));
        let stack = |tensor: &Tensor| tensor.shape[..tensor.shape.len() - 2].to_vec();
        let common = broadcast(&stack(&a), &stack(&b)).expect("checked when built");
        let shape = [&common[..], &rows].concat();
        if many && (norm - 2.0).abs() < f64::EPSILON {
            let whole = |tensor: &Tensor| {
                let matrix = &tensor.shape[tensor.shape.len() - 2..];
                [&common[..], matrix].concat()
            };
            let (of_a, of_b) = (whole(&a), whole(&b));
            let (a, b) = (self.expand_to(&a, &of_a), self.expand_to(&b, &of_b));
            return self.euclidean([&a, &b], &shape);
        }
        self.pairwise([&a, &b], &common, &shape, norm)
    }

    /// `_euclidean_dist`: squares, products and a root.
    fn euclidean(&mut self, [a, b]: [&Tensor; 2], shape: &[Extent]) -> Output {
        let mut draft = OpRecord::new(self, &[Some(a), Some(b)]);
        draft.save(self, "x1", a)?;
        draft.save(self, "x2", b)?;
        let dtype = a.dtype;
        let column = |tensor: &Tensor| {
            let mut shape = tensor.shape.clone();
            let last = shape.len() - 1;
            shape[last] = Extent::ONE;
            shape
        };
        let norms = |eager: &mut Eager, tensor: &Tensor| {
            let squares = eager.empty(&tensor.shape, dtype);
            let norms = eager.empty(column(tensor), dtype);
            drop(squares);
            let ones = eager.empty(column(tensor), dtype);
            (norms, ones)
        };
        let (a_norms, a_ones) = norms(self, a);
        let (b_norms, b_ones) = norms(self, b);
        let wider = |tensor: &Tensor| {
            let mut shape = tensor.shape.clone();
            let last = shape.len() - 1;
            shape[last] = shape[last] + Extent::fixed(2);
            shape
        };
        let doubled = self.empty(&a.shape, dtype);
        let left = self.empty(wider(a), dtype);
        drop((a_ones, a_norms, doubled));
        let right = self.empty(wider(b), dtype);
        drop((b_norms, b_ones));
        let y = self.empty(shape, dtype);
        self.use_blas();
        // The product's factors are there for their memory alone: differences tell more than it.
        self.launch(kernel::distances(shape.len(), 2.0), &[a, b], &[&y]);
        drop((right, left));
        draft.save(self, "result", &y.detached())?;
        let y = draft.finish_single(self, y, Eager::euclidean_grad);
        Ok(y)
    }

    /// `_euclidean_dist_backward`.
    fn euclidean_grad(&mut self, gradient: &Tensor, saved: &Saved) -> Vec<Option<Tensor>> {
        let dtype = gradient.dtype;
        let _ratio = self.empty(&gradient.shape, dtype);
        drop(self.empty(&gradient.shape, DType::Bool));
        let last = gradient.shape.len() - 1;
        let inputs: [&TensorBody; 4] = [
            gradient,
            saved.get("result"),
            saved.get("x1"),
            saved.get("x2"),
        ];
        let mut of = |of_second: bool, row: Extent| {
            let shape = inputs[2 + usize::from(of_second)].shape.clone();
            let product = self.empty(&shape, dtype);
            self.use_blas();
            let count = numel(&gradient.shape[..last - 1]) * row;
            let sums = self.scratch_of(count, DType::Float32);
            let scaled = self.empty(&shape, dtype);
            let result = Rc::new(self.empty(&shape, dtype));
            let kernel = kernel::distances_grad(last + 1, 2.0, of_second);
            self.launch(kernel, &inputs, &[&result]);
            (result, (scaled, sums, product))
        };
        let (of_a, _temporaries_of_a) = of(false, gradient.shape[last - 1]);
        let (of_b, _temporaries_of_b) = of(true, gradient.shape[last]);
        vec![Some(of_a), Some(of_b)]
    }

    /// `_cdist_forward`, and its derivative once for each operand, with a buffer of every difference.
    fn pairwise(
        &mut self,
        [a, b]: [&Tensor; 2],
        common: &[Extent],
        shape: &[Extent],
        norm: f64,
    ) -> Output {
        let whole = |tensor: &Tensor| {
            let matrix = &tensor.shape[tensor.shape.len() - 2..];
            [common, matrix].concat()
        };
        let wholes = [whole(a), whole(b)];
        let mut draft = OpRecord::new(self, &[Some(a), Some(b)]);
        let wants = [a.requires_grad(), b.requires_grad()];
        draft.save(self, "x1", a)?;
        draft.save(self, "x2", b)?;
        let dense = |eager: &mut Eager, tensor: &Tensor, whole: &[Extent]| {
            let seen = Tensor::new(crate::ops::elementwise::expanded(tensor, whole));
            eager.dense_copy(&seen)
        };
        let left = dense(self, a, &wholes[0]);
        let right = dense(self, b, &wholes[1]);
        let y = self.empty(shape, a.dtype);
        let kernel = kernel::distances(shape.len(), norm);
        self.launch(kernel, &[&left, &right], &[&y]);
        drop((right, left));
        draft.save(self, "result", &y.detached())?;
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let last = gradient.shape.len() - 1;
            let width = wholes[0][wholes[0].len() - 1];
            let pairs = numel(&gradient.shape) * width;
            let mut of = |own: usize, turned: bool| {
                let mut shape = gradient.shape.clone();
                shape.swap(last - 1, last);
                let _copies = turned.then(|| [(); 2].map(|()| eager.empty(&shape, gradient.dtype)));
                let _dense = (!turned).then(|| eager.dense_copy(gradient));
                let operands = [own, 1 - own].map(|at| {
                    let tensor = saved.get(if at == 0 { "x1" } else { "x2" });
                    let seen = crate::ops::elementwise::expanded(tensor, &wholes[at]);
                    eager.dense_copy(&Tensor::new(seen))
                });
                let result = Rc::new(eager.empty(&wholes[own], gradient.dtype));
                let _differences = eager.scratch_of(pairs, gradient.dtype);
                let kernel = kernel::distances_grad(last + 1, norm, turned);
                let [first, second] = &operands;
                let [a, b] = if turned {
                    [second, first]
                } else {
                    [first, second]
                };
                eager.launch(kernel, &[gradient, saved.get("result"), a, b], &[&result]);
                result
            };
            let of_a = wants[0].then(|| of(0, false));
            vec![of_a, wants[1].then(|| of(1, true))]
        }))
    }
}
