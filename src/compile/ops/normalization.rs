//! Batch and layer normalization.

use super::super::autograd::{Draft, Saved};
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
            let statistics = ["mean", "inverse_std"];
            eager.norm_grads(
                Kernel::BatchNormGrad,
                gradients[0].as_ref(),
                saved,
                statistics,
            )
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
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let statistics = ["running_mean", "running_var"];
            let kernel = Kernel::BatchNormInferenceGrad { eps };
            eager.norm_grads(kernel, gradients[0].as_ref(), saved, statistics)
        });
        Ok(y)
    }

    /// `layer_norm(x, weight, bias)` over the last `dims` dimensions; autocast runs it in float32.
    pub(in super::super) fn layer_norm(
        &mut self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        dims: usize,
        eps: f64,
    ) -> Result<Tensor, Stop> {
        let bias = bias.map(|bias| self.high(bias));
        let weight = weight.map(|weight| self.high(weight));
        let x = self.high(x);
        let x = self.contiguous(&x);
        let mut draft = Draft::new(self, &[Some(&x), weight.as_ref(), bias.as_ref()]);
        if let Some(bias) = &bias {
            draft.save(self, "bias", bias)?;
        }
        draft.save(self, "input", &x)?;
        if let Some(weight) = &weight {
            draft.save(self, "weight", weight)?;
        }
        let rows = numel(&x.shape[..x.shape.len() - dims]);
        let y = self.empty(&x.shape, x.dtype);
        let mean = Tensor::new(self.empty(&[rows], DType::Float32));
        let inverse_std = Tensor::new(self.empty(&[rows], DType::Float32));
        let outputs = [&y, &*mean, &*inverse_std];
        match (&weight, &bias) {
            (Some(weight), Some(bias)) => {
                self.launch(Kernel::LayerNorm { eps }, &[&x, weight, bias], &outputs);
            }
            _ => self.launch(Kernel::MemoryOnly("layer_norm"), &[&x], &outputs),
        }
        draft.save(self, "mean", &mean)?;
        draft.save(self, "inverse_std", &inverse_std)?;
        drop((mean, inverse_std));
        let whole = weight.is_some() && bias.is_some();
        let of_weight = weight.map(|weight| (weight.shape.clone(), weight.dtype));
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let statistics = ["mean", "inverse_std"];
            let gradient = gradients[0].as_ref();
            if whole {
                return eager.norm_grads(Kernel::LayerNormGrad, gradient, saved, statistics);
            }
            let Some(gradient) = gradient else {
                return vec![None, None, None];
            };
            let gradient = eager.dense_copy(gradient);
            let x = saved.get("input");
            let grad_x = eager.empty(&x.shape, gradient.dtype);
            let grad_weight =
                of_weight.map(|(shape, dtype)| Tensor::new(eager.empty(&shape, dtype)));
            let mut outputs = vec![&grad_x];
            outputs.extend(grad_weight.as_deref());
            eager.launch(Kernel::MemoryOnly("layer_norm"), &[&gradient, x], &outputs);
            vec![Some(Tensor::new(grad_x)), grad_weight, None]
        });
        Ok(y)
    }

    /// Gradients of input, weight and bias, in this order.
    fn norm_grads(
        &mut self,
        kernel: Kernel,
        gradient: Option<&Tensor>,
        saved: &Saved,
        statistics: [&str; 2],
    ) -> Vec<Option<Tensor>> {
        let Some(gradient) = gradient else {
            return vec![None, None, None];
        };
        let gradient = self.dense_copy(gradient);
        let (x, weight) = (saved.get("input"), saved.get("weight"));
        let grad_x = self.empty(&x.shape, gradient.dtype);
        let grad_weight = self.empty(&weight.shape, weight.dtype);
        let grad_bias = self.empty(&weight.shape, weight.dtype);
        let [first, second] = statistics.map(|name| saved.get(name));
        self.launch(
            kernel,
            &[&gradient, x, weight, first, second],
            &[&grad_x, &grad_weight, &grad_bias],
        );
        [grad_x, grad_weight, grad_bias]
            .map(|gradient| Some(Tensor::new(gradient)))
            .into()
    }
}
