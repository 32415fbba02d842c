//! `scaled_dot_product_attention`: which backend, and what each allocates.

use std::rc::Rc;

use super::super::autograd::Draft;
use super::super::eager::{Eager, Stop};
use super::super::emit::Storage;
use super::super::tensor::{Tensor, strides_like};
use crate::graph::{DType, Extent};
use crate::program::Kernel;

/// The implementations that PyTorch chooses among.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    /// cuDNN's fused kernel.
    Cudnn,
    /// `FlashAttention` 2.
    Flash,
    /// The memory-efficient kernel.
    Efficient,
}

/// Lengths of an attention, as symbols.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    batch: Extent,
    query_heads: u64,
    key_heads: u64,
    positions: u64,
    keys: u64,
    width: u64,
}

impl Lengths {
    /// So many bytes for each (sample, query head).
    fn each(self, bytes: u64) -> Extent {
        self.batch * Extent::fixed(self.query_heads * bytes)
    }
}

/// The backend for dense tensors without a mask: PyTorch's own choice, asked on each architecture.
///
/// See Note [Attention backends].
fn backend(compute: (u32, u32), dtype: DType, width: u64) -> Backend {
    let aligned = width.is_multiple_of(8);
    match (dtype.is_half(), compute.0) {
        (true, 9 | 10) if aligned && width <= 256 => Backend::Cudnn,
        (true, 8..) if width <= 256 => Backend::Flash,
        _ => Backend::Efficient,
    }
}

impl Eager {
    /// `scaled_dot_product_attention(query, key, value)`. Autocast casts value, key, query.
    pub(in super::super) fn attention(
        &mut self,
        [query, key, value]: [&Tensor; 3],
        causal: bool,
        dropout: f64,
        grouped: bool,
    ) -> Result<Tensor, Stop> {
        let value = self.low(value);
        let key = self.low(key);
        let query = self.low(query);
        let fixed = |length: Extent| length.as_fixed().unwrap_or(1);
        let lengths = Lengths {
            batch: query.shape[0],
            query_heads: fixed(query.shape[1]),
            key_heads: fixed(key.shape[1]),
            positions: fixed(query.shape[2]),
            keys: fixed(key.shape[2]),
            width: fixed(query.shape[3]),
        };
        let backend = backend(self.capability.compute, query.dtype, lengths.width);
        let mut draft = Draft::new(self, &[Some(&query), Some(&key), Some(&value)]);
        draft.save(self, "key", &key)?;
        draft.save(self, "query", &query)?;
        draft.save(self, "value", &value)?;
        let mut state: Vec<Tensor> = Vec::new();
        if backend == Backend::Cudnn {
            // Philox seed and offset, made even without dropout.
            for _ in 0..2 {
                state.push(Tensor::new(self.empty(&[], DType::Int64)));
            }
        }
        let shape = [
            query.shape[0],
            query.shape[1],
            query.shape[2],
            value.shape[3],
        ];
        let output = match backend {
            // Laid out like the query: the `transpose(1, 2).contiguous()` that follows is then free.
            Backend::Cudnn | Backend::Flash => {
                let strides = strides_like(&query.shape, &query.strides);
                self.empty_strided(&shape, strides, query.dtype)
            }
            // Always stored (batch, position, head, width).
            Backend::Efficient => {
                let [_, h, _, d] = shape;
                let strides = vec![h * shape[2] * d, d, h * d, Extent::ONE];
                self.empty_strided(&shape, strides, query.dtype)
            }
        };
        let rows = match backend {
            Backend::Efficient => lengths.positions.next_multiple_of(32),
            Backend::Cudnn | Backend::Flash => lengths.positions,
        };
        let log_sum_exp =
            Tensor::new(self.empty(&[shape[0], shape[1], rows.into()], DType::Float32));
        match backend {
            Backend::Cudnn => drop(self.scratch(256)),
            Backend::Flash => {
                state.push(Tensor::new(self.empty(&[Extent::fixed(2)], DType::Int64)));
                state.push(Tensor::new(self.empty(&[], DType::Int64)));
                if dropout > 0.0 {
                    drop(self.scratch(16));
                }
            }
            Backend::Efficient => {}
        }
        let kernel = Kernel::Attention { causal, dropout };
        self.launch(kernel, &[&query, &key, &value], &[&output, &log_sum_exp]);
        let kept = Tensor::new(output.alias(output.shape.clone(), output.strides.clone()));
        draft.save(self, "log_sum_exp", &log_sum_exp)?;
        draft.save(self, "output", &kept)?;
        drop((log_sum_exp, kept));
        for (name, tensor) in ["philox_offset", "philox_seed"].into_iter().zip(&state) {
            draft.save(self, name, tensor)?;
        }
        drop(state);
        let [output] = draft.finish(self, [output], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None, None];
            };
            eager.attention_grad(
                backend,
                lengths,
                gradient,
                saved,
                (causal, dropout, grouped),
            )
        });
        Ok(output)
    }

    fn attention_grad(
        &mut self,
        backend: Backend,
        lengths: Lengths,
        gradient: &Tensor,
        saved: &super::super::autograd::Saved,
        (causal, dropout, grouped): (bool, f64, bool),
    ) -> Vec<Option<Tensor>> {
        let inputs = ["query", "key", "value"].map(|name| saved.get(name));
        let output = saved.get("output");
        let element = gradient.dtype.size();
        let copies: Vec<Tensor> = if backend == Backend::Flash {
            // The kernel wants (batch, position, head, width); gradient and output are copied if not.
            let stored = |tensor: &Tensor| {
                let (s, d) = (&tensor.strides, Extent::fixed(lengths.width));
                s[3] == Extent::ONE && s[1] == d
            };
            [gradient, output]
                .into_iter()
                .filter(|tensor| !stored(tensor))
                .map(|tensor| {
                    let [b, h, s, d] = [0, 1, 2, 3].map(|i| tensor.shape[i]);
                    let strides = vec![h * s * d, d, h * d, Extent::ONE];
                    let copy = self.empty_strided(&[b, h, s, d], strides, tensor.dtype);
                    self.launch(Kernel::Copy, &[tensor], &[&copy]);
                    Tensor::new(copy)
                })
                .collect()
        } else {
            Vec::new()
        };
        let results = inputs.map(|input| {
            let strides = match backend {
                Backend::Cudnn | Backend::Flash => strides_like(&input.shape, &input.strides),
                Backend::Efficient => {
                    let [_, h, s, d] = [0, 1, 2, 3].map(|i| input.shape[i]);
                    vec![h * s * d, d, h * d, Extent::ONE]
                }
            };
            Tensor::new(self.empty_strided(&input.shape, strides, gradient.dtype))
        });
        let Lengths {
            positions,
            keys,
            width,
            query_heads,
            key_heads,
            ..
        } = lengths;
        // Freed in this order at the end.
        let mut held = Vec::new();
        let buffers: Vec<Extent> = match backend {
            Backend::Cudnn => {
                let repeated = if grouped {
                    2 * element * keys * width
                } else {
                    0
                };
                let bytes = lengths.each(4 * positions * width + 4 * positions + repeated);
                vec![bytes + Extent::fixed(256)]
            }
            Backend::Flash => {
                let rows = positions.next_multiple_of(128);
                let wide = width.next_multiple_of(if width <= 128 { 32 } else { 64 });
                let mut buffers = vec![lengths.each(rows * 4), lengths.each(rows * wide * 4)];
                if grouped && query_heads != key_heads {
                    buffers.extend([lengths.each(element * keys * width); 2]);
                }
                buffers
            }
            Backend::Efficient => {
                let rows = lengths.each(4 * positions);
                if element == 4 {
                    // float32 multiplies gradient and output elementwise and sums that into delta first.
                    let product = self.scratch_of(lengths.each(4 * positions * width));
                    let sum = self.scratch_of(rows);
                    let delta = self.scratch_of(rows);
                    drop(sum);
                    drop(product);
                    held.push(delta);
                } else {
                    held.push(self.scratch_of(rows));
                }
                let tile = if width <= 64 { 64 } else { 128 };
                vec![lengths.each(positions.div_ceil(64) * (64 * tile * 4 + 16))]
            }
        };
        let buffers: Vec<_> = buffers
            .into_iter()
            .map(|bytes| self.scratch_of(bytes))
            .collect();
        held.extend(buffers.into_iter().rev());
        let [query, key, value] = inputs;
        let from = [
            gradient,
            query,
            key,
            value,
            output,
            saved.get("log_sum_exp"),
        ]
        .map(|t| &**t);
        let into = [&*results[0], &*results[1], &*results[2]];
        self.launch(Kernel::AttentionGrad { causal, dropout }, &from, &into);
        for buffer in held {
            drop(buffer);
        }
        drop(copies);
        results.map(Some).into()
    }

    fn scratch_of(&mut self, bytes: Extent) -> Rc<Storage> {
        self.scratch_by("attention", move |batch| bytes.at(batch))
    }
}
