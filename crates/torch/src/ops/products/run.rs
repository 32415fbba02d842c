//! What products of vectors take.

use std::rc::Rc;

use super::kernel;
use crate::ops::elementwise::expanded;
use crate::ops::matmul::turned;
use crate::ops::prelude::*;

impl Eager {
    /// `dot(a, b)`, each kept for the other's gradient.
    pub(super) fn dot(&mut self, a: &Tensor, b: &Tensor) -> Output {
        let [a, b] = &self.alike([a, b]);
        let mut draft = OpRecord::new(self, &[Some(a), Some(b)]);
        let wants = [a.requires_grad(), b.requires_grad()];
        if wants[1] {
            draft.save(self, "self", a)?;
        }
        if wants[0] {
            draft.save(self, "tensor", b)?;
        }
        let y = self.empty(&[], a.dtype);
        self.use_blas();
        let shown = y.alias(&[Extent::ONE], &[Extent::ONE]);
        self.launch(kernel::dot(0), &[a, b], &[&shown]);
        drop(shown);
        let like = (a.shape.clone(), a.dtype);
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let mut times = |name: &str| {
                let product = eager.empty(&like.0, like.1);
                eager.computed(product, kernel::product(), &[gradient, saved.get(name)])
            };
            let of_a = wants[0].then(|| times("tensor"));
            vec![of_a, wants[1].then(|| times("self"))]
        }))
    }

    /// `mv`, and `addmv` with a summand. The gradient of the matrix is an outer product. Autocast casts operands,
    /// the last first.
    pub fn matrix_vector(
        &mut self,
        summand: Option<(&Tensor, f64)>,
        [matrix, vector]: [&Tensor; 2],
    ) -> Output {
        let beta = summand.map(|(_, beta)| beta);
        let vector = self.low(vector);
        let matrix = self.low(matrix);
        let summand = summand.map(|(summand, _)| self.low(summand));
        let inputs = [Some(&matrix), Some(&vector), summand.as_ref()];
        let mut draft = OpRecord::new(self, &inputs);
        let wants = inputs.map(|input| input.is_some_and(|input| input.requires_grad()));
        if wants[1] {
            draft.save(self, "mat", &matrix)?;
        }
        if wants[0] {
            draft.save(self, "vec", &vector)?;
        }
        let y = self.empty(&matrix.shape[..1], matrix.dtype);
        self.use_blas();
        {
            let of_summand = summand.as_ref().map(|summand| column(summand, &y.shape));
            let mut operands: Vec<&TensorBody> = vec![&matrix, &vector];
            operands.extend(&of_summand);
            let results = [&column(&y, &y.shape)];
            self.launch(kernel::matrix_vector(beta), &operands, &results);
        }
        let shapes = [matrix.shape.clone(), vector.shape.clone()];
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let of_matrix = wants[0].then(|| {
                let outer = eager.empty(&shapes[0], gradient.dtype);
                let rows = column(gradient, &gradient.shape);
                eager.computed(outer, kernel::product(), &[&rows, saved.get("vec")])
            });
            let of_vector = wants[1].then(|| {
                let product = eager.empty(&shapes[1], gradient.dtype);
                eager.use_blas();
                let matrix = turned(saved.get("mat"));
                let results = [&column(&product, &product.shape)];
                eager.launch(kernel::matrix_vector(None), &[&matrix, gradient], &results);
                Rc::new(product)
            });
            let of_summand = wants[2].then(|| match beta {
                Some(beta) if (beta - 1.0).abs() > 0.0 => eager.mul_scalar(gradient, beta),
                _ => Tensor::clone(gradient),
            });
            vec![of_matrix, of_vector, of_summand]
        }))
    }

    /// Two operands as autocast gives them to what it runs in the wider type of both.
    fn alike(&mut self, operands: [&Tensor; 2]) -> [Tensor; 2] {
        let widest = operands[0].dtype.promote(operands[1].dtype);
        match self.autocast {
            Some(_) => operands.map(|operand| self.cast(operand, widest)),
            None => operands.map(Tensor::clone),
        }
    }

    /// `tensordot`: both are arranged as matrices.
    pub(super) fn tensordot(
        &mut self,
        [a, b]: [&Tensor; 2],
        [left, right]: [&[usize]; 2],
    ) -> Output {
        let [a, b] = &self.alike([a, b]);
        let rest = |tensor: &Tensor, dims: &[usize]| -> Vec<usize> {
            (0..tensor.shape.len())
                .filter(|i| !dims.contains(i))
                .collect()
        };
        let lengths = |tensor: &Tensor, dims: &[usize]| -> Vec<Extent> {
            dims.iter().map(|i| tensor.shape[*i]).collect()
        };
        let (of_a, of_b) = (rest(a, left), rest(b, right));
        let (rows, columns) = (lengths(a, &of_a), lengths(b, &of_b));
        let inner = numel(&lengths(a, left));
        let first = self.permute(a, &[&of_a, left].concat());
        let first = self.reshape(&first, &[numel(&rows), inner]);
        let second = self.permute(b, &[right, &of_b].concat());
        let second = self.reshape(&second, &[inner, numel(&columns)]);
        let product = self.without_autocast(|eager| eager.matmul(&first, &second))?;
        Ok(self.reshape(&product, &[rows, columns].concat()))
    }

    /// `linalg_cross`.
    pub(super) fn cross(&mut self, a: &Tensor, b: &Tensor, dim: usize) -> Output {
        let [a, b] = &self.alike([a, b]);
        let shape = broadcast(&a.shape, &b.shape).expect("checked when built");
        let (a, b) = (self.expand_to(a, &shape), self.expand_to(b, &shape));
        let mut draft = OpRecord::new(self, &[Some(&a), Some(&b)]);
        let wants = [a.requires_grad(), b.requires_grad()];
        if wants[0] {
            draft.save(self, "other", &b)?;
        }
        if wants[1] {
            draft.save(self, "self", &a)?;
        }
        let y = self.empty(&shape, a.dtype);
        self.launch(kernel::cross(dim), &[&a, &b], &[&y]);
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let mut with = |first: &TensorBody, second: &TensorBody| {
                let product = eager.empty(&shape, gradient.dtype);
                eager.computed(product, kernel::cross(dim), &[first, second])
            };
            // `other x grad` and `grad x self`.
            let of_a = wants[0].then(|| with(saved.get("other"), gradient));
            vec![of_a, wants[1].then(|| with(gradient, saved.get("self")))]
        }))
    }
}

/// A vector as a column, broadcast to this many rows.
fn column(vector: &TensorBody, rows: &[Extent]) -> TensorBody {
    let seen = expanded(vector, rows);
    let step = seen.strides[0];
    seen.alias(&[rows[0], Extent::ONE], &[step, Extent::ZERO])
}
