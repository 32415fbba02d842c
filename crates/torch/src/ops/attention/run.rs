//! `scaled_dot_product_attention`: which implementation, and what each allocates.

use super::Attention;
use crate::ops::prelude::*;
use std::rc::Rc;

use super::sizes::{
    Backend, Lengths, Problem, choose, cudnn_workspaces, efficient_workspace, flash_splits,
    flash_width,
};
use crate::eager::Storage;
use crate::ops::join::part;

/// The memory-efficient kernel reads masks whose rows are padded to a multiple of so many elements.
const MASK_ALIGNMENT: u64 = 8;

/// It writes their gradients in rows padded to a multiple of these.
const MASK_GRADIENT_ALIGNMENT: u64 = 16;

impl Eager {
    /// `scaled_dot_product_attention(query, key, value[, mask])`. Autocast casts mask, value, key, query.
    pub fn attention(
        &mut self,
        [query, key, value]: [&Tensor; 3],
        mask: Option<&Tensor>,
        request: Attention,
    ) -> Output {
        let mask = mask.map(|mask| self.low(mask));
        // Autocast's casts live until the call returns, that of the mask too.
        let _cast = mask.clone();
        let value = self.low(value);
        let key = self.low(key);
        let query = self.low(query);
        // The fused kernels take four dimensions only.
        if query.shape.len() != 4 {
            let bias = mask.map(|mask| self.as_bias(mask, query.dtype));
            return self.plain_attention([&query, &key, &value], bias, request);
        }
        let fixed = |length: Extent| length.as_fixed().unwrap_or(1);
        let lengths = Lengths {
            batch: query.shape[0],
            query_heads: fixed(query.shape[1]),
            key_heads: fixed(key.shape[1]),
            positions: fixed(query.shape[2]),
            keys: fixed(key.shape[2]),
            width: fixed(query.shape[3]),
            value_width: fixed(value.shape[3]),
        };
        let is_trained = |tensor: &Tensor| self.grad_enabled && tensor.requires_grad();
        let is_dense = |tensor: &Tensor| {
            let last = tensor.shape.len() - 1;
            tensor.strides[last] == Extent::ONE || tensor.shape[last] == Extent::ONE
        };
        let operands = [Some(&query), Some(&key), Some(&value), mask.as_ref()];
        let heads_differ = lengths.query_heads != lengths.key_heads;
        let problem = Problem {
            dtype: query.dtype,
            positions: lengths.positions,
            keys: lengths.keys,
            width: lengths.width,
            value_width: lengths.value_width,
            grouped: heads_differ,
            broadcast: heads_differ && !request.grouped,
            dense_rows: operands.into_iter().flatten().all(is_dense),
            causal: request.causal,
            dropout: request.dropout > 0.0,
            masked: mask.is_some(),
            mask_is_trained: mask.as_ref().is_some_and(is_trained),
            trained: [&query, &key, &value].into_iter().any(is_trained),
        };
        let backend = choose(self.capability.compute, &problem);
        // Of the heads' own width, which padding may widen.
        let usual = 1.0 / (lengths.width as f64).sqrt();
        let request = Attention {
            scale: Some(request.scale.unwrap_or(usual)),
            ..request
        };
        let bias = mask.map(|mask| self.as_bias(mask, query.dtype));
        match backend {
            Backend::Math => self.plain_attention([&query, &key, &value], bias, request),
            Backend::Flash if !lengths.width.is_multiple_of(8) => {
                let width = lengths.width.next_multiple_of(8);
                let [query, key, value] =
                    [&query, &key, &value].map(|tensor| self.widened(tensor, width));
                let lengths_padded = Lengths {
                    width,
                    value_width: width,
                    ..lengths
                };
                let whole = self.fused(
                    [&query, &key, &value],
                    None,
                    (backend, lengths_padded, request),
                )?;
                Ok(self.slice(&whole, 3, (Extent::ZERO, Extent::fixed(lengths.width), 1)))
            }
            Backend::Efficient if bias.is_some() => {
                let bias = bias.map(|bias| self.aligned_bias(bias, &query, lengths.keys));
                self.fused(
                    [&query, &key, &value],
                    bias.as_ref(),
                    (backend, lengths, request),
                )
            }
            _ => self.fused(
                [&query, &key, &value],
                bias.as_ref(),
                (backend, lengths, request),
            ),
        }
    }

    /// Attention out of plain operations. Autocast has cast the operands; inside it is off.
    fn plain_attention(
        &mut self,
        operands: [&Tensor; 3],
        bias: Option<Tensor>,
        request: Attention,
    ) -> Output {
        self.without_autocast(|eager| eager.math_attention(operands, bias, request))
    }

    /// A mask as what is added to the scores.
    pub(super) fn as_bias(&mut self, mask: Tensor, dtype: DType) -> Tensor {
        match mask.dtype {
            DType::Bool => self.bias_of(&mask, dtype),
            _ => mask,
        }
    }

    /// A mask of truth values as what is added to the scores: zero or minus infinity, two numbers that
    /// are tensors while it is made.
    pub(super) fn bias_of(&mut self, mask: &Tensor, dtype: DType) -> Tensor {
        let _hidden = self.empty(&[], dtype);
        let _seen = self.empty(&[], dtype);
        let bias = self.empty(&mask.shape, dtype);
        self.computed(bias, Kernel::MaskBias, &[mask])
    }

    /// The mask with padded rows, seen under its own length again and expanded to all scores.
    fn aligned_bias(&mut self, bias: Tensor, query: &Tensor, keys: u64) -> Tensor {
        let last = bias.shape.len() - 1;
        let length = bias.shape[last].as_fixed().unwrap_or(1);
        let bias = if length.is_multiple_of(MASK_ALIGNMENT) {
            bias
        } else {
            let padded = self.widened(&bias, length.next_multiple_of(MASK_ALIGNMENT));
            drop(bias);
            self.slice(&padded, last, (Extent::ZERO, Extent::fixed(length), 1))
        };
        let [batch, heads, positions, _] = [0, 1, 2, 3].map(|i| query.shape[i]);
        self.expand(&bias, &[batch, heads, positions, Extent::fixed(keys)])
    }

    /// A copy with zeros behind the last dimension; its gradient is a copy of the part that was there.
    fn widened(&mut self, x: &Tensor, width: u64) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let last = x.shape.len() - 1;
        let (own, mut shape) = (x.shape.clone(), x.shape.clone());
        shape[last] = Extent::fixed(width);
        let y = self.zeros(&shape, x.dtype);
        let inside = part(&y, last, Extent::ZERO, own[last]);
        self.launch(Kernel::Copy, &[x], &[&inside]);
        draft.finish_one(self, y, move |eager, gradient, _| {
            let copy = eager.empty(&own, gradient.dtype);
            let inside = part(gradient, last, Extent::ZERO, own[last]);
            eager.computed(copy, Kernel::Copy, &[&inside])
        })
    }

    fn fused(
        &mut self,
        [query, key, value]: [&Tensor; 3],
        bias: Option<&Tensor>,
        (backend, lengths, request): (Backend, Lengths, Attention),
    ) -> Output {
        let inputs = [Some(query), Some(key), Some(value), bias];
        let mut draft = OpRecord::new(self, &inputs);
        draft.save(self, "attn_bias", bias)?;
        draft.save(self, "key", key)?;
        draft.save(self, "query", query)?;
        draft.save(self, "value", value)?;
        let kernels = kernels(&request, lengths.width);
        let bias_is_trained = bias.is_some_and(|bias| bias.requires_grad());
        let mut state: Vec<Tensor> = Vec::new();
        let (card, drops) = (self.capability, request.dropout > 0.0);
        let of_cudnn = cudnn_workspaces(&card, lengths, drops, query.dtype.size());
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
        // The memory-efficient kernel always stores (batch, position, head, width); the others lay out their
        // result like the query, so that the `transpose(1, 2).contiguous()` that follows is free.
        let output = if backend == Backend::Efficient || shape[3] != query.shape[3] {
            self.stored_by_position(&shape, query.dtype)
        } else {
            let strides = strides_like(&query.shape, &query.strides);
            self.empty_strided(&shape, strides, query.dtype)
        };
        let rows = match backend {
            Backend::Efficient => lengths.positions.next_multiple_of(32),
            _ => lengths.positions,
        };
        // The memory-efficient kernel makes it only where there will be a backward pass.
        let log_sum_exp = (backend != Backend::Efficient || draft.is_recorded())
            .then(|| Tensor::new(self.empty(&[shape[0], shape[1], rows.into()], DType::Float32)));
        match backend {
            Backend::Cudnn if of_cudnn[0] != Extent::ZERO => drop(self.scratch_bytes(of_cudnn[0])),
            Backend::Flash => self.flash_state(lengths, request.dropout, &mut state),
            Backend::Efficient if query.dtype.is_half() && lengths.value_width > 128 => {
                let sums = lengths.each(4 * lengths.positions * lengths.value_width);
                drop(self.scratch_bytes(sums));
            }
            Backend::Efficient | Backend::Math | Backend::Cudnn => {}
        }
        let mut results: Vec<&TensorBody> = vec![&output];
        results.extend(log_sum_exp.as_deref());
        let mut operands: Vec<&TensorBody> = vec![query, key, value];
        operands.extend(bias.map(|bias| &**bias));
        self.launch(kernels[0].clone(), &operands, &results);
        let kept = Tensor::new(output.same());
        draft.save(self, "log_sum_exp", log_sum_exp.as_ref())?;
        draft.save(self, "output", &kept)?;
        drop((log_sum_exp, kept));
        for (name, tensor) in ["philox_offset", "philox_seed"].into_iter().zip(&state) {
            draft.save(self, name, tensor)?;
        }
        Ok(
            draft.finish_single(self, output, move |eager, gradient, saved| {
                let kernel = kernels[1].clone();
                let chosen = (backend, lengths, of_cudnn[1]);
                eager.attention_grad(chosen, gradient, saved, kernel, bias_is_trained)
            }),
        )
    }

    /// What `FlashAttention` allocates after its result: partial results of split keys, the random state.
    fn flash_state(&mut self, lengths: Lengths, dropout: f64, state: &mut Vec<Tensor>) {
        let card = self.capability;
        let mut partial = |name: &'static str, bytes: u64| {
            let of = (card, lengths, dropout == 0.0, bytes);
            self.scratch_by(name, of, |&(card, lengths, may_split, bytes), batch| {
                let heads = lengths.each(1).at(batch);
                let Lengths {
                    positions,
                    keys,
                    width,
                    ..
                } = lengths;
                match flash_splits(&card, heads, positions, keys, width) {
                    splits if splits > 1 && may_split => splits * heads * positions * bytes,
                    _ => 0,
                }
            })
        };
        let sums = partial("split sums", 4);
        let outputs = partial("split outputs", 4 * flash_width(lengths.width));
        state.push(Tensor::new(self.empty(&[Extent::fixed(2)], DType::Int64)));
        state.push(Tensor::new(self.empty(&[], DType::Int64)));
        if dropout > 0.0 {
            drop(self.scratch(16));
        }
        drop((sums, outputs));
    }

    fn stored_by_position(&mut self, shape: &[Extent; 4], dtype: DType) -> TensorBody {
        let [_, h, s, d] = *shape;
        let strides = vec![h * s * d, d, h * d, Extent::ONE];
        self.empty_strided(shape, strides, dtype)
    }

    fn attention_grad(
        &mut self,
        (backend, lengths, of_cudnn): (Backend, Lengths, Extent),
        gradient: &Tensor,
        saved: &Saved,
        kernel: Kernel,
        bias_is_trained: bool,
    ) -> Vec<Option<Tensor>> {
        let inputs = ["query", "key", "value"].map(|name| saved.get(name));
        let output = saved.get("output");
        let element = gradient.dtype.size();
        // These kernels want (batch, position, head, width), row-major: FlashAttention copies gradient and output if
        // they lie otherwise, the memory-efficient kernel the gradient.
        let stored = |tensor: &Tensor| {
            let (shape, s) = (&tensor.shape, &tensor.strides);
            let is_run = |dim: usize, stride: Extent| shape[dim] == Extent::ONE || s[dim] == stride;
            let sample = shape[1] * shape[2] * shape[3];
            let of_samples = is_run(2, shape[1] * shape[3]) && is_run(0, sample);
            s[3] == Extent::ONE && is_run(1, shape[3]) && of_samples
        };
        let read: &[&Tensor] = match backend {
            Backend::Flash => &[gradient, output],
            Backend::Efficient => &[gradient],
            Backend::Cudnn | Backend::Math => &[],
        };
        let copies: Vec<Tensor> = read
            .iter()
            .filter(|tensor| !stored(tensor))
            .map(|tensor| {
                let shape = [0, 1, 2, 3].map(|i| tensor.shape[i]);
                let copy = self.stored_by_position(&shape, tensor.dtype);
                self.computed(copy, Kernel::Copy, &[tensor])
            })
            .collect();
        let results = inputs.map(|input| {
            Tensor::new(if backend == Backend::Efficient {
                let shape = [0, 1, 2, 3].map(|i| input.shape[i]);
                self.stored_by_position(&shape, gradient.dtype)
            } else {
                self.empty_like(input, gradient.dtype)
            })
        });
        let grad_bias = bias_is_trained.then(|| self.bias_grad(lengths, gradient.dtype));
        let held = self.attention_scratch((backend, lengths, of_cudnn), element);
        let [query, key, value] = inputs;
        let mut from: Vec<&TensorBody> = vec![gradient, query, key, value, output];
        if let Some(sums) = saved.find("log_sum_exp") {
            from.push(sums);
        }
        from.extend(saved.find("attn_bias").map(|bias| &**bias));
        let mut into = vec![&*results[0], &*results[1], &*results[2]];
        into.extend(grad_bias.as_deref());
        // What of it the fused kernels sum up in: FlashAttention's accumulator of the queries' gradient, and all
        // of cuDNN's.
        let sums = match backend {
            Backend::Cudnn => held.last(),
            Backend::Flash if lengths.query_heads == lengths.key_heads => held.first(),
            Backend::Flash => held.get(2),
            Backend::Efficient | Backend::Math => None,
        };
        self.launch_with(kernel, &from, &into, sums.map(|storage| &**storage));
        drop(held);
        drop(copies);
        let [query, key, value] = results.map(Some);
        vec![query, key, value, grad_bias]
    }

    /// The mask's gradient: one value for each score, in rows as long as the padded mask's.
    fn bias_grad(&mut self, lengths: Lengths, dtype: DType) -> Tensor {
        let [heads, positions, keys] =
            [lengths.query_heads, lengths.positions, lengths.keys].map(Extent::fixed);
        let row = Extent::fixed(lengths.keys.next_multiple_of(MASK_GRADIENT_ALIGNMENT));
        let whole = self.empty(&[lengths.batch, heads, positions, row], dtype);
        if row == keys {
            return Tensor::new(whole);
        }
        let whole = Tensor::new(whole);
        crate::ops::view::gradient_view(&whole, part(&whole, 3, Extent::ZERO, keys))
    }

    /// Buffers of a backward pass, in the order in which they are freed.
    fn attention_scratch(
        &mut self,
        (backend, lengths, of_cudnn): (Backend, Lengths, Extent),
        element: u64,
    ) -> Vec<Rc<Storage>> {
        let Lengths {
            positions,
            keys,
            width,
            value_width,
            query_heads,
            key_heads,
            ..
        } = lengths;
        let grouped = query_heads != key_heads;
        let mut held = Vec::new();
        let buffers: Vec<Extent> = match backend {
            Backend::Cudnn => vec![of_cudnn],
            Backend::Flash => {
                let rows = positions.next_multiple_of(128);
                let wide = flash_width(width);
                let mut buffers = vec![lengths.each(rows * 4), lengths.each(rows * wide * 4)];
                if grouped {
                    buffers.extend([lengths.each(element * keys * width); 2]);
                }
                buffers
            }
            Backend::Efficient => {
                let rows = lengths.each(4 * positions);
                if element == 4 {
                    // float32 multiplies gradient and output elementwise and sums that into delta first.
                    let product = self.scratch_bytes(lengths.each(4 * positions * value_width));
                    let sum = self.scratch_bytes(rows);
                    // The sum is turned to one row for each head: it is that already for one position or one head.
                    let turned =
                        (positions > 1 && query_heads > 1).then(|| self.scratch_bytes(rows));
                    let (delta, sum) = match turned {
                        Some(turned) => (turned, Some(sum)),
                        None => (sum, None),
                    };
                    drop((sum, product));
                    held.push(delta);
                } else {
                    held.push(self.scratch_bytes(rows));
                }
                let dtype = if element == 4 {
                    DType::Float32
                } else {
                    DType::Float16
                };
                let widths = (width, value_width);
                let card = self.capability;
                let bytes = efficient_workspace(&card, dtype, positions, keys, widths);
                vec![lengths.each(bytes)]
            }
            Backend::Math => Vec::new(),
        };
        let buffers: Vec<_> = buffers
            .into_iter()
            .map(|bytes| self.scratch_bytes(bytes))
            .collect();
        held.extend(buffers.into_iter().rev());
        held
    }

    fn scratch_bytes(&mut self, bytes: Extent) -> Rc<Storage> {
        self.scratch_of(bytes, DType::UInt8)
    }
}

/// The kernels of both passes.
fn kernels(request: &Attention, width: u64) -> [Kernel; 2] {
    let Attention {
        causal, dropout, ..
    } = *request;
    let usual = 1.0 / (width as f64).sqrt();
    let scale = request.scale.unwrap_or(usual);
    [
        Kernel::Attention {
            causal,
            dropout,
            scale,
        },
        Kernel::AttentionGrad {
            causal,
            dropout,
            scale,
        },
    ]
}
