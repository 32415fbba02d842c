//! Attention out of plain operations: `_scaled_dot_product_attention_math`.

use crate::ops::prelude::*;

impl Eager {
    /// Half types are computed in float32; scores are as large as the mask. Local names die in reverse.
    pub fn math_attention(
        &mut self,
        [query, key, value]: [&Tensor; 3],
        bias: Option<Tensor>,
        request: super::Attention,
    ) -> Output {
        let own = query.dtype;
        let high = if own.is_half() { DType::Float32 } else { own };
        let query = self.cast(query, high);
        let key = self.cast(key, high);
        let value = self.cast(value, high);
        // Query and key get the root of the scale each.
        let width = query
            .shape
            .last()
            .and_then(|width| width.as_fixed())
            .unwrap_or(1) as f64;
        let scale = request
            .scale
            .unwrap_or_else(|| 1.0 / width.sqrt())
            .abs()
            .sqrt();
        let scaled = self.mul_scalar(&query, scale);
        let bias = if request.causal {
            let rows = query.shape.len() - 2;
            Some(self.causal_bias([query.shape[rows], key.shape[rows]], high))
        } else {
            bias
        };
        let (all_keys, all_values) = if key.shape[1] == query.shape[1] || !request.grouped {
            (Tensor::clone(&key), Tensor::clone(&value))
        } else {
            let keys = self.repeat_heads(&key, query.shape[1]);
            (keys, self.repeat_heads(&value, query.shape[1]))
        };
        let view = self.transposed_last(&all_keys);
        let turned = self.mul_scalar(&view, scale);
        drop(view);
        let mut scores = self.matmul(&scaled, &turned)?;
        drop(turned);
        if let Some(bias) = &bias {
            scores = self.add_in_place(&scores, bias);
        }
        let mut weights = self.safe_softmax(&scores)?;
        drop(scores);
        if request.dropout > 0.0 {
            weights = self.dropout(&weights, request.dropout)?;
        }
        // The weights are returned too, in the operands' type.
        let returned = self.cast(&weights, own);
        let output = self.matmul(&weights, &all_values)?;
        let result = self.cast(&output, own);
        drop((
            output, weights, all_values, all_keys, scaled, bias, value, key, query, returned,
        ));
        Ok(result)
    }

    /// The mask of earlier positions, as truth values and then as numbers.
    fn causal_bias(&mut self, [rows, columns]: [Extent; 2], dtype: DType) -> Tensor {
        let ones = self.empty(&[rows, columns], DType::Bool);
        self.launch(Kernel::Fill(1.0), &[], &[&ones]);
        let lower = self.empty(&[rows, columns], DType::Bool);
        self.launch(Kernel::Tril, &[&ones], &[&lower]);
        drop(ones);
        self.bias_of(&Tensor::new(lower), dtype)
    }

    fn repeat_heads(&mut self, tensor: &Tensor, heads: Extent) -> Tensor {
        let times = heads.checked_div(tensor.shape[1]);
        let times = times.and_then(Extent::as_fixed).unwrap_or(1);
        self.repeat_interleave(tensor, times, 1)
    }

    /// `_safe_softmax`: rows that are hidden entirely become zeros.
    fn safe_softmax(&mut self, x: &Tensor) -> Output {
        let y = self.softmax(x, (x.shape.len() - 1, false), Some(x.dtype))?;
        let hidden = self.empty(&x.shape, DType::Bool);
        let rows = self.empty(&x.shape[..x.shape.len() - 1], DType::Bool);
        let _zero = self.empty(&[], x.dtype);
        self.launch(Kernel::HiddenRows, &[x, &y], &[&hidden, &rows, &y]);
        Ok(y)
    }
}
