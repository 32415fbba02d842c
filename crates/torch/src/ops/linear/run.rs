//! Matrix products: `linear` and `addmm`.

use crate::ops::prelude::*;

/// How the weight of a matrix product is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WeightLayout {
    /// `[out, in]`: `nn.Linear`.
    OutIn,
    /// `[in, out]`: `addmm`.
    InOut,
}

impl Eager {
    /// `linear(x, weight[, bias])`. Autocast casts bias, weight, input: last argument first.
    pub fn linear(&mut self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Output {
        let bias = bias.map(|bias| self.low(bias));
        let weight = self.low(weight);
        let x = self.low(x);
        let width = weight.shape[0];
        let mut shape = x.shape.to_vec();
        let features = shape
            .pop()
            .expect("a linear's input has a feature dimension");
        // Not the result's elements by its width: lengths such as half a batch do not come back from a quotient.
        let rows = numel(&shape);
        shape.push(width);
        let flat = if x.shape.len() == 2 {
            Tensor::clone(&x)
        } else {
            self.reshape(&x, &[rows, features])
        };
        // More than two dimensions that are not contiguous go through `matmul`, to which the bias is added.
        let added = bias
            .as_ref()
            .filter(|_| x.shape.len() > 2 && !x.is_contiguous());
        // Autocast holds what it has cast until the operation returns, also where a copy of it is multiplied.
        if let Some(bias) = added {
            let y = self.product(&flat, &weight, None, WeightLayout::OutIn)?;
            drop(flat);
            let y = self.reshape(&y, &shape);
            return Ok(self.add_in_place(&y, bias));
        }
        let y = self.product(&flat, &weight, bias.as_ref(), WeightLayout::OutIn)?;
        if shape.len() == 2 {
            return Ok(y);
        }
        let folded = self.reshape(&y, &shape);
        // What `addmm` made is seen in the operand's shape (`_flatten_nd_linear`); `matmul` hides that (`_unsafe_view`).
        Ok(if bias.is_some() {
            viewed(&y, folded)
        } else {
            folded
        })
    }

    /// `addmm(bias, x, weight)`. Autocast casts weight, input, bias: last argument first.
    pub fn addmm(&mut self, bias: &Tensor, x: &Tensor, weight: &Tensor) -> Output {
        let weight = self.low(weight);
        let x = self.low(x);
        let bias = self.low(bias);
        self.product(&x, &weight, Some(&bias), WeightLayout::InOut)
    }

    /// The same tensor behind an operation that hands its gradient on as it is.
    fn passed_on(&mut self, tensor: &Tensor) -> Tensor {
        let draft = OpRecord::new(self, &[Some(tensor)]);
        let same = tensor.same();
        draft.finish_one(self, same, |_, gradient, _| Tensor::clone(gradient))
    }

    fn product(
        &mut self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        layout: WeightLayout,
    ) -> Output {
        // `weight.t()` is an operation of its own: its gradient arrives once the bias's has been kept.
        let turned = match layout {
            WeightLayout::OutIn => self.passed_on(weight),
            WeightLayout::InOut => Tensor::clone(weight),
        };
        // `addmm` has its bias first: that gradient is handed on before the others.
        let mut draft = OpRecord::new(self, &[bias, Some(x), Some(&turned)]);
        drop(turned);
        let (wants_x, wants_weight) = (x.requires_grad(), weight.requires_grad());
        let wants_bias = bias.is_some_and(|bias| bias.requires_grad());
        let has_bias = bias.is_some();
        // An operand is saved only for the gradient of the other. `mm` names them `mat2` and `self`,
        // so without a bias the weight goes first.
        if has_bias {
            if wants_weight {
                draft.save(self, "x", x)?;
            }
            if wants_x {
                draft.save(self, "weight", weight)?;
            }
        } else {
            if wants_x {
                draft.save(self, "weight", weight)?;
            }
            if wants_weight {
                draft.save(self, "x", x)?;
            }
        }
        let out = in_out(weight, layout).shape[1];
        let y = self.empty(&[x.shape[0], out], x.dtype);
        let by = in_out(weight, layout);
        // One feature or one result is no work for cuBLASLt (`addmm_out_cuda_impl` in `Blas.cpp`).
        if has_bias && !by.shape.contains(&Extent::fixed(1)) {
            self.use_blas_lt();
        } else {
            self.use_blas();
        }
        let operands: Vec<&TensorBody> = [x, &by].into_iter().chain(bias.map(|it| &**it)).collect();
        self.launch(Kernel::MatMul, &operands, &[&y]);
        let (x_shape, weight_shape) = (x.shape.clone(), weight.shape.clone());
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let grad_x = |eager: &mut Eager| {
                let result = eager.empty(&x_shape, gradient.dtype);
                let copy = eager.blas_copy(gradient);
                eager.use_blas();
                let by = flipped(&in_out(saved.get("weight"), layout));
                let read = copy.as_ref().unwrap_or(gradient);
                eager.computed(result, Kernel::MatMul, &[read, &by])
            };
            let grad_weight = |eager: &mut Eager| {
                let result = eager.empty(&weight_shape, gradient.dtype);
                let copy = eager.blas_copy(gradient);
                eager.use_blas();
                let x = saved.get("x");
                let gradient = copy.as_ref().unwrap_or(gradient);
                match layout {
                    // The weight was transposed for the product, and its gradient is transposed back: a view,
                    // to which the other gradient of a tied weight is not added in place (GPT-2 in float32,
                    // on the stub of the CUDA runtime). A cast after it, under autocast, is none.
                    WeightLayout::OutIn => {
                        eager.launch(Kernel::MatMul, &[&flipped(gradient), x], &[&result]);
                        let mut view = result.same();
                        view.base = Some(Tensor::new(result));
                        Tensor::new(view)
                    }
                    WeightLayout::InOut => {
                        eager.computed(result, Kernel::MatMul, &[&flipped(x), gradient])
                    }
                }
            };
            // Alphabetically: `addmm` has mat1 (input), mat2 (weight), self (bias); `mm` mat2 before self.
            if has_bias {
                let x = wants_x.then(|| grad_x(eager));
                let weight = wants_weight.then(|| grad_weight(eager));
                // The engine sums it over rows, as any gradient of what was broadcast.
                let bias = wants_bias.then(|| Tensor::clone(gradient));
                vec![bias, x, weight]
            } else {
                let weight = wants_weight.then(|| grad_weight(eager));
                let x = wants_x.then(|| grad_x(eager));
                vec![None, x, weight]
            }
        }))
    }
}

/// The weight seen as `[in, out]`.
fn in_out(weight: &TensorBody, layout: WeightLayout) -> TensorBody {
    match layout {
        WeightLayout::OutIn => flipped(weight),
        WeightLayout::InOut => weight.same(),
    }
}

/// The transposed matrix.
fn flipped(matrix: &TensorBody) -> TensorBody {
    let reversed = |list: &[Extent]| list.iter().rev().copied().collect::<Vec<_>>();
    matrix.alias(reversed(&matrix.shape), reversed(&matrix.strides))
}

#[cfg(test)]
mod tests {
    use crate::limits::Cancel;

    use super::*;
    use crate::program::Capability;
    use crate::shape::DType;

    const CARD: Capability = Capability::of((9, 0), 132);

    #[test]
    fn half_a_batch_goes_through_a_linear_layer() {
        let mut eager = Eager::new(CARD, &Cancel::NEVER);
        let half = Extent::BATCH.floor_div(2).unwrap();
        let x =
            Tensor::new(eager.empty(&[half, Extent::fixed(3), Extent::fixed(8)], DType::Float32));
        let weight = Tensor::new(eager.empty(&[16, 8].map(Extent::fixed), DType::Float32));

        let y = eager.linear(&x, &weight, None).unwrap();

        assert_eq!(*y.shape, [half, Extent::fixed(3), Extent::fixed(16)]);
    }

    #[test]
    fn cublaslt_adds_a_bias_to_matrices_of_more_than_a_row_or_a_column() {
        for (features, results, expected) in
            [(64, 2, true), (64, 1, false), (1, 64, false), (2, 2, true)]
        {
            let mut eager = Eager::new(CARD, &Cancel::NEVER);
            let [x, weight, bias] =
                [&[8, features][..], &[results, features], &[results]].map(|lengths| {
                    let lengths: Vec<_> = lengths.iter().copied().map(Extent::fixed).collect();
                    Tensor::new(eager.empty(&lengths, DType::Float32))
                });
            eager.linear(&x, &weight, Some(&bias)).unwrap();
            let sizes = format!("{:?}", eager.recorder().take_sizes());
            assert_eq!(
                sizes.contains("1048576"),
                expected,
                "{features} to {results}: {sizes}"
            );
        }
    }
}
