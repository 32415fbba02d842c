//! Batch and layer normalization.

use super::accumulated;
use super::group::Operands;
use super::kernel::Normalization;
use crate::ops::Reduction;
use crate::ops::prelude::*;
use crate::shape::{MemoryFormat, strides_match};

impl Eager {
    /// `batch_norm(x, weight, bias, running_mean, running_var)` with batch statistics.
    ///
    /// cuDNN's kernel for float32 and float16, the native one for bfloat16: on NCHW data both save input,
    /// weight, running statistics and two float32 values per channel. cuDNN's reserve space was empty in
    /// every case tried on an H200.
    pub fn batch_norm(
        &mut self,
        [x, weight, bias, running_mean, running_var]: [&Tensor; 5],
        momentum: f64,
        eps: f64,
    ) -> Output {
        let mut draft = self.batch_norm_record([x, weight, bias, running_mean, running_var])?;
        let strides = x.suggested_format().strides(&x.shape);
        let y = self.empty_strided(&x.shape, strides, x.dtype);
        let [mean, inverse_std] =
            [(); 2].map(|()| Tensor::new(self.empty(&weight.shape, accumulated(x.dtype))));
        self.launch(
            Kernel::BatchNorm { momentum, eps },
            &[x, weight, bias],
            &[&y, &mean, &inverse_std, running_mean, running_var],
        );
        let side_by_side = is_side_by_side(x, weight);
        if side_by_side {
            self.stage(x, 4);
        }
        draft.save(self, "mean", &mean)?;
        draft.save(self, "inverse_std", &inverse_std)?;
        drop((mean, inverse_std));
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let statistics = ["mean", "inverse_std"];
            if side_by_side {
                return eager.side_by_side_grads(gradient, saved);
            }
            let format = saved.get("input").suggested_format();
            eager.norm_grads(Kernel::BatchNormGrad, format, gradient, saved, statistics)
        }))
    }

    /// What batch norms save of `x, weight, bias, running_mean, running_var`.
    fn batch_norm_record(&mut self, operands: [&Tensor; 5]) -> Result<OpRecord, Stop> {
        let [x, weight, bias, running_mean, running_var] = operands;
        let mut draft = OpRecord::new(self, &[Some(x), Some(weight), Some(bias)]);
        draft.save(self, "input", x)?;
        draft.save(self, "running_mean", running_mean)?;
        draft.save(self, "running_var", running_var)?;
        draft.save(self, "weight", weight)?;
        Ok(draft)
    }

    /// `batch_norm` in eval mode: nothing but the result. The native kernel, which runs on half-precision
    /// parameters, also makes statistics that nothing reads.
    pub fn batch_norm_inference(
        &mut self,
        [x, weight, bias, running_mean, running_var]: [&Tensor; 5],
        eps: f64,
    ) -> Output {
        let draft = self.batch_norm_record([x, weight, bias, running_mean, running_var])?;
        let y = self.empty(&x.shape, x.dtype);
        if weight.dtype.is_half() {
            let mean = self.empty(&weight.shape, DType::Float32);
            let inverse_std = self.empty(&weight.shape, DType::Float32);
            drop((mean, inverse_std));
        }
        let inputs = [&**x, &**weight, &**bias, &**running_mean, &**running_var];
        self.launch(Kernel::BatchNormInference { eps }, &inputs, &[&y]);
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let statistics = ["running_mean", "running_var"];
            let kernel = Kernel::BatchNormInferenceGrad { eps };
            let format = saved.get("input").suggested_format();
            eager.norm_grads(kernel, format, gradient, saved, statistics)
        }))
    }

    /// `layer_norm(x[, weight[, bias]])` over the last `dims` dimensions; autocast runs it in float32. An
    /// input that is not contiguous is copied in both passes; what is saved is the input itself.
    pub fn layer_norm(
        &mut self,
        x: &Tensor,
        [weight, bias]: [Option<&Tensor>; 2],
        dims: usize,
        eps: f64,
    ) -> Output {
        let bias = bias.map(|bias| self.high(bias));
        let weight = weight.map(|weight| self.high(weight));
        let x = self.high(x);
        let mut draft = OpRecord::new(self, &[Some(&x), weight.as_ref(), bias.as_ref()]);
        draft.save(self, "bias", bias.as_ref())?;
        draft.save(self, "input", &x)?;
        draft.save(self, "weight", weight.as_ref())?;
        let rows = numel(&x.shape[..x.shape.len() - dims]);
        // The operand itself is saved; what the kernels read is a copy, made again in the backward pass.
        let dense = self.dense_copy(&x);
        let y = self.empty(&x.shape, x.dtype);
        let [mean, inverse_std] =
            [(); 2].map(|()| Tensor::new(self.empty(&[rows], accumulated(x.dtype))));
        let whole = weight.is_some() && bias.is_some();
        let parameters = [&weight, &bias].into_iter().flatten().map(|t| &**t);
        let inputs: Vec<&TensorBody> = std::iter::once(&*dense).chain(parameters).collect();
        if whole {
            let kernel = Kernel::LayerNorm { eps };
            self.launch(kernel, &inputs, &[&y, &mean, &inverse_std]);
        } else {
            let along = last(x.shape.len(), dims);
            let norm = Normalization::of("layer_norm", &along, [weight.is_some(), bias.is_some()]);
            let [of_mean, of_std] = [&mean, &inverse_std].map(|of| by_row(of, &x.shape, dims));
            self.launch(norm.forward(eps, None), &inputs, &[&y, &of_mean, &of_std]);
        }
        drop(dense);
        draft.save(self, "mean", &mean)?;
        draft.save(self, "inverse_std", &inverse_std)?;
        drop((mean, inverse_std));
        let trained = [weight.is_some(), bias.is_some()];
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let statistics = ["mean", "inverse_std"];
            if whole {
                let (kernel, format) = (Kernel::LayerNormGrad, MemoryFormat::Contiguous);
                return eager.norm_grads(kernel, format, gradient, saved, statistics);
            }
            let by = ("layer_norm", dims);
            let gradients = eager.partial_norm_grads(gradient, saved, trained, by);
            gradients.into()
        }))
    }

    /// `rms_norm(x[, weight])` over the last `dims` dimensions: one kernel where the types agree, else
    /// plain operations in float32. Autocast leaves it alone.
    pub fn rms_norm(
        &mut self,
        x: &Tensor,
        weight: Option<&Tensor>,
        dims: usize,
        eps: Option<f64>,
    ) -> Output {
        // Unless told, the least that one can be told from in the type that is computed in.
        let eps = eps.unwrap_or(match accumulated(x.dtype) {
            DType::Float64 => f64::EPSILON,
            _ => f64::from(f32::EPSILON),
        });
        if weight.is_some_and(|weight| weight.dtype != x.dtype) {
            return self.composite_rms_norm(x, weight, dims, eps);
        }
        let mut draft = OpRecord::new(self, &[Some(x), weight]);
        draft.save(self, "input", x)?;
        draft.save(self, "weight", weight)?;
        let rows = numel(&x.shape[..x.shape.len() - dims]);
        let dense = self.dense_copy(x);
        let y = self.empty(&x.shape, x.dtype);
        let inverse_rms = Tensor::new(self.empty(&[rows], accumulated(x.dtype)));
        {
            let along = last(x.shape.len(), dims);
            let norm = Normalization {
                centred: false,
                ..Normalization::of("rms_norm", &along, [weight.is_some(), false])
            };
            let mut inputs: Vec<&TensorBody> = vec![&dense];
            inputs.extend(weight.map(|weight| &**weight));
            let of_rms = by_row(&inverse_rms, &x.shape, dims);
            self.launch(norm.forward(eps, None), &inputs, &[&y, &of_rms]);
        }
        drop(dense);
        draft.save(self, "inverse_std", &inverse_rms)?;
        drop(inverse_rms);
        let trained = [weight.is_some(), false];
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let by = ("rms_norm", dims);
            let [x, weight, _] = eager.partial_norm_grads(gradient, saved, trained, by);
            vec![x, weight]
        }))
    }

    fn composite_rms_norm(
        &mut self,
        x: &Tensor,
        weight: Option<&Tensor>,
        dims: usize,
        eps: f64,
    ) -> Output {
        let high = self.cast(x, DType::Float32);
        let squares = self.pow_scalar(&high, 2.0)?;
        let last: Vec<usize> = (x.shape.len() - dims..x.shape.len()).collect();
        let mean = self.reduction(Reduction::Mean, &squares, &last, true);
        let shifted = self.add_scalar(&mean, eps, Placement::InPlace);
        let inverse = self.apply("aten.rsqrt.default", &[&shifted])?;
        drop((shifted, mean, squares));
        let mut y = self.mul(&high, &inverse)?;
        if let Some(weight) = weight {
            y = self.mul(&y, weight)?;
        }
        Ok(self.cast(&y, x.dtype))
    }

    /// Gradients of input, weight and bias, of those that there are.
    fn partial_norm_grads(
        &mut self,
        gradient: &Tensor,
        saved: &Saved,
        trained: [bool; 2],
        (name, dims): (&'static str, usize),
    ) -> [Option<Tensor>; 3] {
        let x = self.dense_copy(saved.get("input"));
        let grad_x = self.empty(&x.shape, gradient.dtype);
        let parameters = trained.map(|is_there| {
            let weight = saved.find("weight").filter(|_| is_there)?;
            Some(Tensor::new(self.empty(&weight.shape, weight.dtype)))
        });
        let gradient = self.dense_copy(gradient);
        let along = last(x.shape.len(), dims);
        let norm = Normalization {
            centred: saved.find("mean").is_some(),
            ..Normalization::of(name, &along, [saved.find("weight").is_some(), trained[1]])
        };
        let statistics = ["mean", "inverse_std"].into_iter();
        let statistics = statistics.filter_map(|name| saved.find(name));
        let statistics: Vec<TensorBody> = statistics.map(|of| by_row(of, &x.shape, dims)).collect();
        let operands = Operands {
            gradient: &gradient,
            x: &x,
            statistics: &statistics,
            weight: saved.find("weight").map(|weight| &**weight),
        };
        let of_parameters = parameters.each_ref().map(Option::as_deref);
        self.normalization_grads(norm, &operands, &grad_x, of_parameters);
        let [weight, bias] = parameters;
        [Some(Tensor::new(grad_x)), weight, bias]
    }

    /// Gradients of a norm's input, weight and bias, in this order. A gradient in another order than the kernel's is
    /// copied first for batch norms, and once those exist for layer norms.
    fn norm_grads(
        &mut self,
        kernel: Kernel,
        format: MemoryFormat,
        gradient: &Tensor,
        saved: &Saved,
        statistics: [&str; 2],
    ) -> Vec<Option<Tensor>> {
        let is_late = kernel == Kernel::LayerNormGrad;
        let early = (!is_late).then(|| self.copy_in(gradient, format));
        let (x, weight) = (saved.get("input"), saved.get("weight"));
        let x = self.copy_in(x, format);
        let grad_x = self.empty_strided(&x.shape, format.strides(&x.shape), gradient.dtype);
        let grad_weight = self.empty(&weight.shape, weight.dtype);
        let grad_bias = self.empty(&weight.shape, weight.dtype);
        let late = is_late.then(|| self.copy_in(gradient, format));
        let gradient = early.as_ref().or(late.as_ref()).unwrap_or(gradient);
        let [first, second] = statistics.map(|name| saved.get(name));
        let results = [grad_x, grad_weight, grad_bias];
        let inputs = [&**gradient, &x, weight, first, second];
        self.launch(kernel, &inputs, &results.each_ref());
        results.map(|gradient| Some(Tensor::new(gradient))).into()
    }

    /// [`Eager::norm_grads`] of PyTorch's own batch norm with channels side by side: two sums and the
    /// parameters' gradients first, then the input's. A gradient in another order is read as it is.
    fn side_by_side_grads(&mut self, gradient: &Tensor, saved: &Saved) -> Vec<Option<Tensor>> {
        let (x, weight) = (saved.get("input"), saved.get("weight"));
        let sums = [0, 1].map(|_| self.empty(&weight.shape, DType::Float32));
        let grad_weight = self.empty(&weight.shape, weight.dtype);
        let grad_bias = self.empty(&weight.shape, weight.dtype);
        if strides_match(&x.shape, &x.strides, &gradient.strides) {
            self.stage(x, 2);
        }
        let grad_x = self.empty_strided(&x.shape, x.strides.clone(), gradient.dtype);
        let statistics = ["mean", "inverse_std"].map(|name| saved.get(name));
        let results = [grad_x, grad_weight, grad_bias];
        let inputs = [&**gradient, x, weight, statistics[0], statistics[1]];
        self.launch(Kernel::BatchNormGrad, &inputs, &results.each_ref());
        drop(sums);
        results.map(|gradient| Some(Tensor::new(gradient))).into()
    }

    /// What blocks that share a channel exchange in PyTorch's kernels for channels side by side: so many
    /// float32 values for each block and channel, and counters.
    fn stage(&mut self, x: &Tensor, values: u64) {
        let channels = x.shape[1].as_fixed().unwrap_or(1).max(1);
        let of = (x.numel(), channels, values);
        let staging =
            self.scratch_by(
                "batch norm",
                of,
                |&(all, channels, values), batch| match blocks(all.at(batch) / channels, channels) {
                    (_, 1) => 0,
                    (_, rows) => 4 * values * channels * rows,
                },
            );
        let of = (x.numel(), channels);
        let counters =
            self.scratch_by(
                "batch norm counters",
                of,
                |&(all, channels), batch| match blocks(all.at(batch) / channels, channels) {
                    (_, 1) => 0,
                    (columns, _) => 4 * columns,
                },
            );
        drop((counters, staging));
    }
}

/// The last so many dimensions.
fn last(rank: usize, dims: usize) -> Vec<usize> {
    (rank - dims..rank).collect()
}

/// A value for each row, as it broadcasts to rows of so many dimensions.
fn by_row(tensor: &TensorBody, shape: &[Extent], dims: usize) -> TensorBody {
    let mut seen = shape.to_vec();
    for dim in last(shape.len(), dims) {
        seen[dim] = Extent::ONE;
    }
    let strides = contiguous_strides(&seen);
    tensor.alias(seen, strides)
}

/// Whether PyTorch's own kernels for channels side by side run: on what cuDNN does not take (bfloat16, half
/// parameters, no planes), where channels are the fastest dimension.
fn is_side_by_side(x: &Tensor, weight: &Tensor) -> bool {
    let own = x.dtype == DType::BFloat16 || weight.dtype.is_half() || x.shape.len() == 2;
    let last = match x.shape.len() {
        2 => x.is_contiguous(),
        _ => {
            x.suggested_format() == MemoryFormat::ChannelsLast
                && x.is_in(MemoryFormat::ChannelsLast)
        }
    };
    own && last
}

/// Blocks across and down of those kernels: `flexible_launch_configs` in PyTorch's Normalization.cuh.
fn blocks(rows: u64, channels: u64) -> (u64, u64) {
    let power = |n: u64| 1_u64 << n.max(1).ilog2();
    let mut across = power(channels).min(32);
    let down = power(rows.div_ceil(16)).min(512 / across);
    if across * down != 512 {
        across = power(channels).min(512 / down);
    }
    let grid = rows.div_ceil(down * 16).min(128);
    (channels.div_ceil(across), if grid < 8 { 1 } else { grid })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Read off the allocator's history: 98,304 bytes are 4 values of 96 channels in 64 blocks, and so on.
    #[test]
    fn blocks_share_channels_as_pytorch_was_seen_to() {
        assert_eq!(blocks(16_384, 96), (3, 64));
        assert_eq!(blocks(3_584, 56), (2, 14));
        assert_eq!(blocks(192, 64).1, 1);
    }
}
