//! What products of vectors take.

use std::rc::Rc;

use crate::eager::{Draft, Eager, Stop, Tensor};
use crate::program::Kernel;
use crate::shape::{Extent, broadcast, numel};

impl Eager {
    /// `dot(a, b)`, each kept for the other's gradient.
    pub(super) fn dot(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor, Stop> {
        let [a, b] = &self.alike([a, b]);
        let mut draft = Draft::new(self, &[Some(a), Some(b)]);
        let wants = [a.requires_grad(), b.requires_grad()];
        if wants[1] {
            draft.save(self, "self", a)?;
        }
        if wants[0] {
            draft.save(self, "tensor", b)?;
        }
        let y = self.empty(&[], a.dtype);
        self.use_blas();
        self.launch(Kernel::MemoryOnly("dot"), &[a, b], &[&y]);
        let like = (a.shape.clone(), a.dtype);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None];
            };
            let mut times = |name: &str| {
                let product = eager.empty(&like.0, like.1);
                eager.launch(
                    Kernel::MemoryOnly("mul"),
                    &[gradient, saved.get(name)],
                    &[&product],
                );
                Rc::new(product)
            };
            let of_a = wants[0].then(|| times("tensor"));
            vec![of_a, wants[1].then(|| times("self"))]
        });
        Ok(y)
    }

    /// `mv`, and `addmv` with a summand. The gradient of the matrix is an outer product. Autocast casts operands,
    /// the last first.
    pub(crate) fn matrix_vector(
        &mut self,
        summand: Option<&Tensor>,
        [matrix, vector]: [&Tensor; 2],
        scaled: bool,
    ) -> Result<Tensor, Stop> {
        let vector = self.low(vector);
        let matrix = self.low(matrix);
        let summand = summand.map(|summand| self.low(summand));
        let inputs = [Some(&matrix), Some(&vector), summand.as_ref()];
        let mut draft = Draft::new(self, &inputs);
        let wants = inputs.map(|input| input.is_some_and(|input| input.requires_grad()));
        if wants[1] {
            draft.save(self, "mat", &matrix)?;
        }
        if wants[0] {
            draft.save(self, "vec", &vector)?;
        }
        let y = self.empty(&matrix.shape[..1], matrix.dtype);
        self.use_blas();
        self.launch(Kernel::MemoryOnly("mv"), &[&matrix, &vector], &[&y]);
        let shapes = [matrix.shape.clone(), vector.shape.clone()];
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None, None];
            };
            let of_matrix = wants[0].then(|| {
                let outer = eager.empty(&shapes[0], gradient.dtype);
                eager.launch(
                    Kernel::MemoryOnly("outer"),
                    &[gradient, saved.get("vec")],
                    &[&outer],
                );
                Rc::new(outer)
            });
            let of_vector = wants[1].then(|| {
                let product = eager.empty(&shapes[1], gradient.dtype);
                eager.use_blas();
                eager.launch(
                    Kernel::MemoryOnly("mv"),
                    &[saved.get("mat"), gradient],
                    &[&product],
                );
                Rc::new(product)
            });
            let of_summand = wants[2].then(|| {
                if scaled {
                    eager.mul_scalar(gradient, 1.0)
                } else {
                    Tensor::clone(gradient)
                }
            });
            vec![of_matrix, of_vector, of_summand]
        });
        Ok(y)
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
    ) -> Result<Tensor, Stop> {
        let [a, b] = &self.alike([a, b]);
        let autocast = self.autocast.take();
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
        let product = self.matmul(&first, &second);
        self.autocast = autocast;
        let product = product?;
        Ok(self.reshape(&product, &[rows, columns].concat()))
    }

    /// `linalg_cross`.
    pub(super) fn cross(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor, Stop> {
        let [a, b] = &self.alike([a, b]);
        let shape = broadcast(&a.shape, &b.shape).expect("checked when built");
        let (a, b) = (self.expand_to(a, &shape), self.expand_to(b, &shape));
        let mut draft = Draft::new(self, &[Some(&a), Some(&b)]);
        let wants = [a.requires_grad(), b.requires_grad()];
        if wants[0] {
            draft.save(self, "other", &b)?;
        }
        if wants[1] {
            draft.save(self, "self", &a)?;
        }
        let y = self.empty(&shape, a.dtype);
        self.launch(Kernel::MemoryOnly("linalg_cross"), &[&a, &b], &[&y]);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None];
            };
            let mut with = |name: &str| {
                let product = eager.empty(&shape, gradient.dtype);
                let inputs = [&**gradient, saved.get(name)];
                eager.launch(Kernel::MemoryOnly("linalg_cross"), &inputs, &[&product]);
                Rc::new(product)
            };
            let of_a = wants[0].then(|| with("other"));
            vec![of_a, wants[1].then(|| with("self"))]
        });
        Ok(y)
    }
}
