//! Products of stacks of matrices: `matmul` of any rank, `bmm` and `baddbmm`.

use super::kernel;
use crate::ops::prelude::*;

impl Eager {
    /// `matmul(a, b)`, which is made of views, copies and one product. Autocast casts `b` first.
    pub fn matmul(&mut self, a: &Tensor, b: &Tensor) -> Output {
        let b = self.low(b);
        let a = self.low(a);
        match (a.shape.len(), b.shape.len()) {
            (2, 2) => self.mm(&a, &b),
            (2, 1) => self.matrix_vector(None, [&a, &b]),
            // A vector is a matrix of one column, if that takes no copy or its gradient would.
            (3.., 1) if folds(&a, &b) => {
                let (last, lead) = a.shape.split_last().expect("three dimensions or more");
                let flat = self.reshape(&a, &[numel(lead), *last]);
                let product = self.matrix_vector(None, [&flat, &b])?;
                Ok(self.reshape(&product, lead))
            }
            (1, 3..) if a.requires_grad() => {
                let turned = self.transposed_last(&b);
                let (last, lead) = turned.shape.split_last().expect("three dimensions or more");
                let flat = self.reshape(&turned, &[numel(lead), *last]);
                let product = self.matrix_vector(None, [&flat, &a])?;
                Ok(self.reshape(&product, lead))
            }
            (_, 1) => {
                let column = self.unsqueeze(&b, 1);
                let product = self.matmul(&a, &column)?;
                Ok(self.drop_dim(&product, product.shape.len() - 1))
            }
            (1, _) => {
                let row = self.unsqueeze(&a, 0);
                let product = self.matmul(&row, &b)?;
                Ok(self.drop_dim(&product, product.shape.len() - 2))
            }
            (3.., 2) if folds(&a, &b) => {
                let inner = a.shape[a.shape.len() - 1];
                let shape = product_shape(&a.shape[..a.shape.len() - 2], &a, &b);
                let flat = self.reshape(&a, &[rows(&a), inner]);
                let product = self.mm(&flat, &b)?;
                Ok(self.reshape(&product, &shape))
            }
            // The other way round the larger one is turned, and the result turned back and copied.
            (2, 3..) if a.requires_grad() => {
                let (left, right) = (self.transposed_last(&b), self.transposed_last(&a));
                let product = self.matmul(&left, &right)?;
                let product = self.transposed_last(&product);
                Ok(self.contiguous(&product))
            }
            _ => self.stacked(&a, &b),
        }
    }

    /// Both operands are expanded to a common stack, flattened to three dimensions (a copy where the
    /// strides ask for one) and multiplied.
    fn stacked(&mut self, a: &Tensor, b: &Tensor) -> Output {
        let stack = |tensor: &Tensor| tensor.shape[..tensor.shape.len() - 2].to_vec();
        let common = broadcast(&stack(a), &stack(b)).expect("checked when the graph was built");
        let mut flat = |tensor: &Tensor| {
            let matrix = &tensor.shape[tensor.shape.len() - 2..];
            let whole = [&common[..], matrix].concat();
            let expanded = self.expand(tensor, &whole);
            let stacked = [&[numel(&common)][..], matrix].concat();
            self.reshape(&expanded, &stacked)
        };
        let (left, right) = (flat(a), flat(b));
        let product = self.bmm(&left, &right)?;
        drop((right, left));
        let shape = product_shape(&common, a, b);
        Ok(self.reshape(&product, &shape))
    }

    /// `mm(a, b)`.
    fn mm(&mut self, a: &Tensor, b: &Tensor) -> Output {
        self.product_of(a, b, None)
    }

    /// `bmm(a, b)`. Autocast casts `b` first.
    pub fn bmm(&mut self, a: &Tensor, b: &Tensor) -> Output {
        let b = self.low(b);
        let a = self.low(a);
        self.product_of(&a, &b, None)
    }

    /// `baddbmm(c, a, b, beta, alpha)`: the summand is copied into the result by the product itself.
    pub fn baddbmm(&mut self, [c, a, b]: [&Tensor; 3], factors: [f64; 2]) -> Output {
        let b = self.low(b);
        let a = self.low(a);
        let c = self.low(c);
        self.product_of(&a, &b, Some((&c, factors)))
    }

    /// A product that saves each operand for the gradient of the other. `mm` and `bmm` make the gradient
    /// of `mat2` before that of `self`; `baddbmm` that of `batch1` first, each scaled by a copy.
    fn product_of(
        &mut self,
        a: &Tensor,
        b: &Tensor,
        summand: Option<(&Tensor, [f64; 2])>,
    ) -> Output {
        let mut draft = OpRecord::new(self, &[Some(a), Some(b), summand.map(|(c, _)| c)]);
        let wants = [a.requires_grad(), b.requires_grad()];
        let wants_c = summand.is_some_and(|(c, _)| c.requires_grad());
        let [beta, alpha] = summand.map_or([1.0; 2], |(_, factors)| factors);
        let saved = [(wants[0], "b", b), (wants[1], "a", a)];
        let in_order = if summand.is_some() {
            [saved[1], saved[0]]
        } else {
            saved
        };
        for (_, name, tensor) in in_order.into_iter().filter(|(wanted, ..)| *wanted) {
            draft.save(self, name, tensor)?;
        }
        let shape = product_shape(&a.shape[..a.shape.len() - 2], a, b);
        let y = self.empty(&shape, a.dtype);
        let copies = [a, b].map(|factor| self.blas_copy(factor));
        self.use_blas();
        let read = [
            copies[0].as_ref().unwrap_or(a),
            copies[1].as_ref().unwrap_or(b),
        ];
        self.launch(Kernel::MatMul, &read, &[&y]);
        if let Some((c, factors)) = summand {
            self.launch(kernel::scaled_sum(factors), &[c, &y], &[&y]);
        }
        drop(copies);
        let is_sum = summand.is_some();
        // `mm_mat1_backward` and `mm_mat2_backward` of `FunctionsManual.cpp`: the gradient of a matrix that lies by columns does
        // so too. Others always lie by rows.
        let by_columns = [a, b].map(|factor| !is_sum && lies_by_columns(factor));
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let by = |eager: &mut Eager, left: &TensorBody, right: &TensorBody| {
                let shape = product_shape(&left.shape[..left.shape.len() - 2], left, right);
                let result = eager.empty(&shape, gradient.dtype);
                let copies = [left, right].map(|factor| eager.blas_copy(factor));
                eager.use_blas();
                let [first, second] = &copies;
                let read = [
                    first.as_ref().unwrap_or(left),
                    second.as_ref().unwrap_or(right),
                ];
                eager.computed(result, Kernel::MatMul, &read)
            };
            let scale = |eager: &mut Eager, product: Tensor| {
                if is_one(alpha) {
                    product
                } else {
                    eager.mul_scalar(&product, alpha)
                }
            };
            let grad_a = |eager: &mut Eager| {
                if by_columns[0] {
                    return turned_back(by(eager, saved.get("b"), &turned(gradient)));
                }
                let product = by(eager, gradient, &turned(saved.get("b")));
                scale(eager, product)
            };
            let grad_b = |eager: &mut Eager| {
                if by_columns[1] {
                    return turned_back(by(eager, &turned(gradient), saved.get("a")));
                }
                let product = by(eager, &turned(saved.get("a")), gradient);
                scale(eager, product)
            };
            let (a, b) = if is_sum {
                let a = wants[0].then(|| grad_a(eager));
                (a, wants[1].then(|| grad_b(eager)))
            } else {
                let b = wants[1].then(|| grad_b(eager));
                (wants[0].then(|| grad_a(eager)), b)
            };
            let c = wants_c.then(|| {
                if is_one(beta) {
                    Tensor::clone(gradient)
                } else {
                    eager.mul_scalar(gradient, beta)
                }
            });
            vec![a, b, c]
        }))
    }

    /// `grouped_mm(x, weights, offsets)`, which autocast leaves alone. Hugging Face takes a loop over the
    /// groups on cards before compute capability 8.0, where the gradient of the input comes first.
    pub fn grouped_matmul(&mut self, [x, weights, offsets]: [&Tensor; 3]) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x), Some(weights)]);
        let wants = [x.requires_grad(), weights.requires_grad()];
        if wants[0] {
            draft.save(self, "mat_b", weights)?;
        }
        if wants[1] {
            draft.save(self, "mat_a", x)?;
        }
        draft.save(self, "offs", offsets)?;
        let y = self.empty(&[x.shape[0], weights.shape[2]], x.dtype);
        self.grouped_scratch(weights);
        self.launch(kernel::grouped(), &[x, weights, offsets], &[&y]);
        let (x_shape, shape) = (x.shape.clone(), weights.shape.clone());
        let strides = weights.strides.clone();
        let groups = weights.shape[0];
        let loops = self.capability.compute.0 < 8;
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let dtype = gradient.dtype;
            let offsets = saved.get("offs");
            let make = |eager: &mut Eager, result: TensorBody, kernel: Generated, other: &str| {
                eager.grouped_scratch_of(groups, dtype);
                eager.computed(result, kernel, &[gradient, saved.get(other), offsets])
            };
            let grad_x = |eager: &mut Eager| {
                let result = eager.empty(&x_shape, dtype);
                make(eager, result, kernel::grouped_grad(), "mat_b")
            };
            let grad_weights = |eager: &mut Eager| {
                let result = eager.empty_strided(&shape, strides.clone(), dtype);
                make(eager, result, kernel::grouped_weight_grad(), "mat_a")
            };
            if loops {
                let x = wants[0].then(|| grad_x(eager));
                return vec![x, wants[1].then(|| grad_weights(eager))];
            }
            let weights = wants[1].then(|| grad_weights(eager));
            vec![wants[0].then(|| grad_x(eager)), weights]
        }))
    }

    fn grouped_scratch(&mut self, weights: &Tensor) {
        self.grouped_scratch_of(weights.shape[0], weights.dtype);
    }

    /// Hopper's kernel for bfloat16 keeps 60 bytes for each group and 512 for each multiprocessor.
    fn grouped_scratch_of(&mut self, groups: Extent, dtype: DType) {
        if self.capability.compute.0 != 9 || dtype != DType::BFloat16 {
            return;
        }
        let pointers = self.scratch(60 * groups.as_fixed().unwrap_or(1));
        drop(self.scratch(512 * self.capability.multiprocessors));
        drop(pointers);
    }

    /// A copy of a factor that cuBLAS cannot read where it is, such as an expanded gradient: neither its
    /// rows nor its columns lie in one piece.
    pub fn blas_copy(&mut self, factor: &TensorBody) -> Option<TensorBody> {
        let last = factor.shape.len() - 1;
        let runs = |inner: usize, outer: usize| {
            let rows_apart =
                factor.strides[outer] != Extent::ZERO || factor.shape[outer] == Extent::ONE;
            let neighbours =
                factor.strides[inner] == Extent::ONE || factor.shape[inner] == Extent::ONE;
            neighbours && rows_apart
        };
        if runs(last, last - 1) || runs(last - 1, last) {
            return None;
        }
        let copy = self.empty(&factor.shape, factor.dtype);
        self.launch(Kernel::Copy, &[factor], &[&copy]);
        Some(copy)
    }

    pub fn transposed_last(&mut self, tensor: &Tensor) -> Tensor {
        let last = tensor.shape.len() - 1;
        let mut order: Vec<usize> = (0..=last).collect();
        order.swap(last - 1, last);
        self.permute(tensor, &order)
    }

    fn drop_dim(&mut self, tensor: &Tensor, dim: usize) -> Tensor {
        let mut shape = tensor.shape.to_vec();
        shape.remove(dim);
        self.reshape(tensor, &shape)
    }
}

#[expect(clippy::float_cmp, reason = "factors are written in the model's code")]
fn is_one(factor: f64) -> bool {
    factor == 1.0
}

/// Whether a matrix lies by columns, as a transposed weight does. It may lie by rows as well, if it has but one.
fn lies_by_columns(matrix: &Tensor) -> bool {
    matches!(
        (&matrix.shape[..], &matrix.strides[..]),
        ([rows, _], [Extent::ONE, column]) if column == rows
    )
}

/// A gradient seen transposed: a view, to which another gradient is not added in place.
fn turned_back(product: Tensor) -> Tensor {
    let mut view = turned(&product);
    view.base = Some(product);
    Tensor::new(view)
}

/// Rows of all matrices together.
fn rows(tensor: &Tensor) -> Extent {
    numel(&tensor.shape[..tensor.shape.len() - 1])
}

/// `at::native::should_fold`: a stack times one matrix becomes one product of matrices if the matrix is
/// trained, so that its gradient is not made once for each of the stack, or if the stack is a view away.
fn folds(stack: &Tensor, matrix: &Tensor) -> bool {
    if matrix.requires_grad() {
        return true;
    }
    let leading = stack.shape.len() - 2;
    (0..leading).all(|i| stack.strides[i] == stack.strides[i + 1] * stack.shape[i + 1])
}

fn product_shape(stack: &[Extent], a: &TensorBody, b: &TensorBody) -> Vec<Extent> {
    let height = a.shape[a.shape.len() - 2];
    let width = b.shape[b.shape.len() - 1];
    [stack, &[height, width]].concat()
}

/// The matrices with their last two dimensions exchanged.
pub(in crate::ops) fn turned(matrices: &TensorBody) -> TensorBody {
    let (mut shape, mut strides) = (matrices.shape.to_vec(), matrices.strides.to_vec());
    let last = shape.len() - 1;
    shape.swap(last - 1, last);
    strides.swap(last - 1, last);
    matrices.alias(shape, strides)
}
