//! Group and instance normalization, and batch normalization without statistics or parameters.

use crate::eager::{Draft, Eager, Stop, Tensor, viewed};
use crate::program::Kernel;
use crate::shape::{DType, Extent, numel};

impl Eager {
    /// PyTorch's own batch norm, which runs what cuDNN's cannot: the same tensors as with cuDNN.
    pub(super) fn native_batch_norm(
        &mut self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x), weight, bias]);
        draft.save(self, "input", x)?;
        if let Some(weight) = weight {
            draft.save(self, "weight", weight)?;
        }
        let channels = [x.shape[1]];
        let y = self.empty(&x.shape, x.dtype);
        let mean = Tensor::new(self.empty(&channels, DType::Float32));
        let inverse_std = Tensor::new(self.empty(&channels, DType::Float32));
        self.launch(
            Kernel::MemoryOnly("batch_norm"),
            &[x],
            &[&y, &mean, &inverse_std],
        );
        draft.save(self, "mean", &mean)?;
        draft.save(self, "inverse_std", &inverse_std)?;
        drop((mean, inverse_std));
        let given = [weight, bias].map(|parameter| parameter.map(|parameter| parameter.dtype));
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None, None];
            };
            let x = saved.get("input");
            let grad_x = eager.empty(&x.shape, gradient.dtype);
            let of_parameters = given.map(|dtype| dtype.map(|dtype| eager.empty(&channels, dtype)));
            let mut outputs = vec![&grad_x];
            outputs.extend(of_parameters.iter().flatten());
            eager.launch(Kernel::MemoryOnly("batch_norm"), &[gradient, x], &outputs);
            let [weight, bias] = of_parameters.map(|gradient| gradient.map(Tensor::new));
            vec![Some(Tensor::new(grad_x)), weight, bias]
        });
        Ok(y)
    }

    /// `group_norm`; autocast runs it in float32. Weight and bias are first folded into one factor and one
    /// summand for each sample and channel.
    pub(super) fn group_norm(
        &mut self,
        groups: u64,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Tensor, Stop> {
        let bias = bias.map(|bias| self.high(bias));
        let weight = weight.map(|weight| self.high(weight));
        let x = self.high(x);
        let x = self.contiguous(&x);
        let (samples, channels) = (x.shape[0], x.shape[1]);
        let mut draft = Draft::new(self, &[Some(&x), weight.as_ref(), bias.as_ref()]);
        draft.save(self, "input", &x)?;
        if let Some(weight) = &weight {
            draft.save(self, "weight", weight)?;
        }
        let by_group = [samples, Extent::fixed(groups)];
        let by_channel = [samples, channels];
        let y = self.empty(&x.shape, x.dtype);
        let mean = Tensor::new(self.empty(&by_group, x.dtype));
        let inverse_std = Tensor::new(self.empty(&by_group, x.dtype));
        let single = numel(&x.shape[2..]) == Extent::ONE;
        if (weight.is_some() || bias.is_some()) && !single {
            let factor = self.empty(&by_channel, DType::Float32);
            let summand = self.empty(&by_channel, DType::Float32);
            drop(summand);
            drop(factor);
        }
        let name = "group_norm";
        self.launch(Kernel::MemoryOnly(name), &[&x], &[&y, &mean, &inverse_std]);
        draft.save(self, "mean", &mean)?;
        draft.save(self, "rstd", &inverse_std)?;
        drop((mean, inverse_std));
        let given =
            [&weight, &bias].map(|parameter| parameter.as_ref().map(|parameter| parameter.dtype));
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None, None];
            };
            let gradient = eager.dense_copy(gradient);
            let x = saved.get("input");
            let grad_x = eager.empty(&x.shape, gradient.dtype);
            let of_parameters =
                given.map(|dtype| dtype.map(|dtype| eager.empty(&[channels], dtype)));
            let by_scale = eager.empty(&by_channel, DType::Float32);
            let by_bias = eager.empty(&by_channel, DType::Float32);
            let second = eager.empty(&by_group, DType::Float32);
            let third = eager.empty(&by_group, DType::Float32);
            let first = given[0].map(|_| eager.empty(&by_channel, DType::Float32));
            let mut outputs = vec![&grad_x];
            outputs.extend(of_parameters.iter().flatten());
            eager.launch(Kernel::MemoryOnly(name), &[&gradient, x], &outputs);
            drop(third);
            drop(second);
            drop(first);
            drop(by_bias);
            drop(by_scale);
            let [weight, bias] = of_parameters.map(|gradient| gradient.map(Tensor::new));
            vec![Some(Tensor::new(grad_x)), weight, bias]
        });
        Ok(y)
    }

    /// `instance_norm`: a batch norm of one sample with a channel for each sample and channel, for which
    /// weight and bias are repeated; the result is a view of that one's.
    pub(super) fn instance_norm(
        &mut self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Tensor, Stop> {
        let samples = [x.shape[0]];
        let weight = weight.map(|weight| self.repeat(weight, &samples));
        let bias = bias.map(|bias| self.repeat(bias, &samples));
        let x = self.contiguous(x);
        let all = [&[Extent::ONE, x.shape[0] * x.shape[1]], &x.shape[2..]].concat();
        let flat = self.reshape(&x, &all);
        let y = self.native_batch_norm(&flat, weight.as_ref(), bias.as_ref())?;
        let seen = self.reshape(&y, &x.shape);
        Ok(viewed(&y, seen))
    }
}
