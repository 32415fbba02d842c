//! Batch and layer normalization.

use super::super::autograd::Draft;
use super::super::eager::{Eager, Stop};
use super::super::tensor::Tensor;
use crate::graph::{DType, numel};
use crate::program::Kernel;

impl Eager {
    /// `batch_norm(x, weight, bias, running_mean, running_var)` with batch statistics.
    ///
    /// cuDNN's kernel for float32 and float16, the native one for bfloat16: on NCHW data both save input,
    /// weight, running statistics and two float32 values per channel. cuDNN's reserve space was empty in
    /// every case tried on an H200.
    pub(in super::super) fn batch_norm(
        &mut self,
        [x, weight, bias, running_mean, running_var]: [&Tensor; 5],
        momentum: f64,
        eps: f64,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x), Some(weight), Some(bias)]);
        draft.save(self, "input", x)?;
        draft.save(self, "running_mean", running_mean)?;
        draft.save(self, "running_var", running_var)?;
        draft.save(self, "weight", weight)?;
        let y = self.empty(&x.shape, x.dtype);
        let mean = Tensor::new(self.empty(&weight.shape, DType::Float32));
        let inverse_std = Tensor::new(self.empty(&weight.shape, DType::Float32));
        self.launch(
            Kernel::BatchNorm { momentum, eps },
            &[x, weight, bias],
            &[&y, &mean, &inverse_std, running_mean, running_var],
        );
        draft.save(self, "mean", &mean)?;
        draft.save(self, "inverse_std", &inverse_std)?;
        drop((mean, inverse_std));
        let [y] = draft.finish(self, [y], |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None, None];
            };
            let gradient = eager.dense_copy(gradient);
            let (x, weight) = (saved.get("input"), saved.get("weight"));
            let grad_x = eager.empty(&x.shape, gradient.dtype);
            let grad_weight = eager.empty(&weight.shape, weight.dtype);
            let grad_bias = eager.empty(&weight.shape, weight.dtype);
            eager.launch(
                Kernel::BatchNormGrad,
                &[
                    &gradient,
                    x,
                    weight,
                    saved.get("mean"),
                    saved.get("inverse_std"),
                ],
                &[&grad_x, &grad_weight, &grad_bias],
            );
            [grad_x, grad_weight, grad_bias]
                .map(|gradient| Some(Tensor::new(gradient)))
                .into()
        });
        Ok(y)
    }

    /// `batch_norm` in eval mode: nothing but the result. The native kernel, which runs on half-precision
    /// parameters, also makes statistics that nobody reads.
    pub(in super::super) fn batch_norm_inference(
        &mut self,
        [x, weight, bias, running_mean, running_var]: [&Tensor; 5],
        eps: f64,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x), Some(weight), Some(bias)]);
        draft.save(self, "input", x)?;
        draft.save(self, "running_mean", running_mean)?;
        draft.save(self, "running_var", running_var)?;
        draft.save(self, "weight", weight)?;
        let y = self.empty(&x.shape, x.dtype);
        if weight.dtype.is_half() {
            let mean = self.empty(&weight.shape, DType::Float32);
            let inverse_std = self.empty(&weight.shape, DType::Float32);
            drop(mean);
            drop(inverse_std);
        }
        let inputs = [&**x, &**weight, &**bias, &**running_mean, &**running_var];
        self.launch(Kernel::BatchNormInference { eps }, &inputs, &[&y]);
        let [y] = draft.finish(self, [y], |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None, None];
            };
            let (x, weight) = (saved.get("input"), saved.get("weight"));
            let grad_x = eager.empty(&x.shape, gradient.dtype);
            let grad_weight = eager.empty(&weight.shape, weight.dtype);
            let grad_bias = eager.empty(&weight.shape, weight.dtype);
            eager.launch(
                Kernel::BatchNormGrad,
                &[
                    gradient,
                    x,
                    weight,
                    saved.get("running_mean"),
                    saved.get("running_var"),
                ],
                &[&grad_x, &grad_weight, &grad_bias],
            );
            [grad_x, grad_weight, grad_bias]
                .map(|gradient| Some(Tensor::new(gradient)))
                .into()
        });
        Ok(y)
    }

    /// `layer_norm(x, weight, bias)` over the last `dims` dimensions; autocast runs it in float32.
    pub(in super::super) fn layer_norm(
        &mut self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        dims: usize,
        eps: f64,
    ) -> Result<Tensor, Stop> {
        let bias = self.high(bias);
        let weight = self.high(weight);
        let x = self.high(x);
        let x = self.contiguous(&x);
        let mut draft = Draft::new(self, &[Some(&x), Some(&weight), Some(&bias)]);
        draft.save(self, "bias", &bias)?;
        draft.save(self, "input", &x)?;
        draft.save(self, "weight", &weight)?;
        let rows = numel(&x.shape[..x.shape.len() - dims]);
        let y = self.empty(&x.shape, x.dtype);
        let mean = Tensor::new(self.empty(&[rows], DType::Float32));
        let inverse_std = Tensor::new(self.empty(&[rows], DType::Float32));
        self.launch(
            Kernel::LayerNorm { eps },
            &[&x, &weight, &bias],
            &[&y, &mean, &inverse_std],
        );
        draft.save(self, "mean", &mean)?;
        draft.save(self, "inverse_std", &inverse_std)?;
        drop((mean, inverse_std));
        let [y] = draft.finish(self, [y], |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None, None];
            };
            let gradient = eager.dense_copy(gradient);
            let weight = saved.get("weight");
            let grad_x = eager.empty(&gradient.shape, gradient.dtype);
            let grad_weight = eager.empty(&weight.shape, weight.dtype);
            let grad_bias = eager.empty(&weight.shape, weight.dtype);
            eager.launch(
                Kernel::LayerNormGrad,
                &[
                    &gradient,
                    saved.get("input"),
                    weight,
                    saved.get("mean"),
                    saved.get("inverse_std"),
                ],
                &[&grad_x, &grad_weight, &grad_bias],
            );
            [grad_x, grad_weight, grad_bias]
                .map(|gradient| Some(Tensor::new(gradient)))
                .into()
        });
        Ok(y)
    }
}
