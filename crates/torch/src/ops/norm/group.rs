//! Group and instance normalization, and batch normalization without statistics or parameters.

use super::accumulated;
use super::kernel::Normalization;
use crate::ops::prelude::*;

impl Eager {
    /// PyTorch's own batch norm, which runs what cuDNN's cannot: the same tensors as with cuDNN.
    pub(super) fn native_batch_norm(
        &mut self,
        x: &Tensor,
        [weight, bias]: [Option<&Tensor>; 2],
        running: Option<(f64, [&Tensor; 2])>,
        eps: f64,
    ) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x), weight, bias]);
        draft.save(self, "input", x)?;
        draft.save(self, "weight", weight)?;
        let channels = [x.shape[1]];
        let y = self.empty(&x.shape, x.dtype);
        let [mean, inverse_std] =
            [(); 2].map(|()| Tensor::new(self.empty(&channels, accumulated(x.dtype))));
        let rank = x.shape.len();
        // Of all but the channels.
        let dims: Vec<usize> = (0..rank).filter(|dim| *dim != 1).collect();
        let norm = Normalization::of("batch_norm", &dims, [weight.is_some(), bias.is_some()]);
        let parameters = [weight, bias].into_iter().flatten();
        let seen: Vec<TensorBody> = parameters.map(|of| by_channel(of, rank)).collect();
        let made: Vec<TensorBody> = [&mean, &inverse_std]
            .into_iter()
            .chain(running.iter().flat_map(|(_, running)| *running))
            .map(|of| by_channel(of, rank))
            .collect();
        let mut inputs: Vec<&TensorBody> = vec![x];
        inputs.extend(&seen);
        let mut outputs = vec![&y];
        outputs.extend(&made);
        let momentum = running.map(|(momentum, _)| momentum);
        self.launch(norm.forward(eps, momentum), &inputs, &outputs);
        drop((seen, made));
        draft.save(self, "mean", &mean)?;
        draft.save(self, "inverse_std", &inverse_std)?;
        drop((mean, inverse_std));
        let given = [weight, bias].map(|parameter| parameter.map(|parameter| parameter.dtype));
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let x = saved.get("input");
            let grad_x = eager.empty(&x.shape, gradient.dtype);
            let of_parameters = given.map(|dtype| dtype.map(|dtype| eager.empty(&channels, dtype)));
            let norm = Normalization::of("batch_norm", &dims, given.map(|of| of.is_some()));
            let weight = saved.find("weight").map(|weight| by_channel(weight, rank));
            let statistics = ["mean", "inverse_std"].map(|of| by_channel(saved.get(of), rank));
            let shown = of_parameters
                .each_ref()
                .map(|of| of.as_ref().map(|of| by_channel(of, rank)));
            let operands = Operands {
                gradient,
                x,
                statistics: &statistics,
                weight: weight.as_ref(),
            };
            let results = shown.each_ref().map(Option::as_ref);
            eager.normalization_grads(norm, &operands, &grad_x, results);
            let [weight, bias] = of_parameters.map(|gradient| gradient.map(Tensor::new));
            vec![Some(Tensor::new(grad_x)), weight, bias]
        }))
    }

    /// `group_norm`; autocast runs it in float32. Weight and bias are first folded into one factor and one
    /// summand for each sample and channel.
    pub(super) fn group_norm(
        &mut self,
        (groups, eps): (u64, f64),
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Output {
        let bias = bias.map(|bias| self.high(bias));
        let weight = weight.map(|weight| self.high(weight));
        let x = self.high(x);
        let x = self.contiguous(&x);
        let (samples, channels) = (x.shape[0], x.shape[1]);
        let mut draft = OpRecord::new(self, &[Some(&x), weight.as_ref(), bias.as_ref()]);
        draft.save(self, "input", &x)?;
        draft.save(self, "weight", weight.as_ref())?;
        let by_group = [samples, Extent::fixed(groups)];
        let by_sample = [samples, channels];
        let y = self.empty(&x.shape, x.dtype);
        let mean = Tensor::new(self.empty(&by_group, x.dtype));
        let inverse_std = Tensor::new(self.empty(&by_group, x.dtype));
        let single = numel(&x.shape[2..]) == Extent::ONE;
        if (weight.is_some() || bias.is_some()) && !single {
            let _factor = self.empty(&by_sample, DType::Float32);
            let _summand = self.empty(&by_sample, DType::Float32);
        }
        let seen = InGroups::of(&x.shape, groups);
        let norm = Normalization::of(
            "group_norm",
            &InGroups::WITHIN,
            [weight.is_some(), bias.is_some()],
        );
        {
            let (of_x, of_y) = (seen.elements(&x), seen.elements(&y));
            let statistics = [&mean, &inverse_std].map(|of| seen.statistics(of));
            let parameters = [&weight, &bias].map(|of| of.as_ref().map(|of| seen.channels(of)));
            let mut inputs = vec![&of_x];
            inputs.extend(parameters.iter().flatten());
            let outputs = [&of_y, &statistics[0], &statistics[1]];
            self.launch(norm.forward(eps, None), &inputs, &outputs);
        }
        draft.save(self, "mean", &mean)?;
        draft.save(self, "rstd", &inverse_std)?;
        drop((mean, inverse_std));
        let given =
            [&weight, &bias].map(|parameter| parameter.as_ref().map(|parameter| parameter.dtype));
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let gradient = eager.dense_copy(gradient);
            let x = saved.get("input");
            let grad_x = eager.empty(&x.shape, gradient.dtype);
            let of_parameters =
                given.map(|dtype| dtype.map(|dtype| eager.empty(&[channels], dtype)));
            let by_scale = eager.empty(&by_sample, DType::Float32);
            let by_bias = eager.empty(&by_sample, DType::Float32);
            let second = eager.empty(&by_group, DType::Float32);
            let third = eager.empty(&by_group, DType::Float32);
            let first = given[0].map(|_| eager.empty(&by_sample, DType::Float32));
            let norm = Normalization::of(
                "group_norm",
                &InGroups::WITHIN,
                given.map(|of| of.is_some()),
            );
            {
                let statistics = ["mean", "rstd"].map(|of| seen.statistics(saved.get(of)));
                let weight = saved.find("weight").map(|weight| seen.channels(weight));
                let operands = Operands {
                    gradient: &seen.elements(&gradient),
                    x: &seen.elements(x),
                    statistics: &statistics,
                    weight: weight.as_ref(),
                };
                let shown = of_parameters
                    .each_ref()
                    .map(|of| of.as_ref().map(|of| seen.channels(of)));
                let results = shown.each_ref().map(Option::as_ref);
                eager.normalization_grads(norm, &operands, &seen.elements(&grad_x), results);
            }
            drop((third, second, first, by_bias, by_scale));
            let [weight, bias] = of_parameters.map(|gradient| gradient.map(Tensor::new));
            vec![Some(Tensor::new(grad_x)), weight, bias]
        }))
    }

    /// `instance_norm`: a batch norm of one sample with a channel for each sample and channel, for which
    /// weight and bias are repeated; the result is a view of that one's.
    pub(super) fn instance_norm(
        &mut self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Output {
        let samples = [x.shape[0]];
        let weight = weight.map(|weight| self.repeat(weight, &samples));
        let bias = bias.map(|bias| self.repeat(bias, &samples));
        let x = self.contiguous(x);
        let all = [&[Extent::ONE, x.shape[0] * x.shape[1]], &x.shape[2..]].concat();
        let flat = self.reshape(&x, &all);
        let y = self.native_batch_norm(&flat, [weight.as_ref(), bias.as_ref()], None, eps)?;
        let seen = self.reshape(&y, &x.shape);
        Ok(viewed(&y, seen))
    }
}

/// What the gradients of a normalization are made of, as they broadcast to one another.
pub(super) struct Operands<'a> {
    pub(super) gradient: &'a TensorBody,
    pub(super) x: &'a TensorBody,
    /// The mean, where there is one, and the inverse of the deviation.
    pub(super) statistics: &'a [TensorBody],
    pub(super) weight: Option<&'a TensorBody>,
}

impl Eager {
    /// Launches the gradients of a normalization: of its operand, its weight and its bias. Where parameters broadcast, their
    /// gradients have a length of one or none.
    pub(super) fn normalization_grads(
        &mut self,
        norm: Normalization<'_>,
        operands: &Operands<'_>,
        grad_x: &TensorBody,
        [of_weight, of_bias]: [Option<&TensorBody>; 2],
    ) {
        let Operands {
            gradient,
            x,
            statistics,
            weight,
        } = *operands;
        let mut inputs = vec![gradient, x];
        inputs.extend(statistics);
        let with_weight: Vec<&TensorBody> = inputs.iter().copied().chain(weight).collect();
        self.launch(norm.gradient(), &with_weight, &[grad_x]);
        let Some(parameter) = of_weight.or(of_bias) else {
            return;
        };
        let missing = x.shape.len() - parameter.shape.len();
        let others: Vec<usize> = (0..x.shape.len())
            .filter(|dim| match dim.checked_sub(missing) {
                None => true,
                Some(own) => parameter.shape[own] == Extent::ONE && x.shape[*dim] != Extent::ONE,
            })
            .collect();
        match (of_weight, of_bias) {
            (Some(of_weight), of_bias) => {
                let mut outputs = vec![of_weight];
                outputs.extend(of_bias);
                let kernel = norm.weight_gradient(&others, of_bias.is_some());
                self.launch(kernel, &inputs, &outputs);
            }
            (None, Some(of_bias)) => {
                self.launch(Kernel::Sum { scale: 1.0 }, &[gradient], &[of_bias]);
            }
            (None, None) => {}
        }
    }
}

/// A value for each channel, as it broadcasts to what it belongs to.
fn by_channel(tensor: &TensorBody, rank: usize) -> TensorBody {
    let mut shape = vec![Extent::ONE; rank - 1];
    let mut strides = vec![Extent::ZERO; rank - 1];
    (shape[0], strides[0]) = (tensor.shape[0], tensor.strides[0]);
    tensor.alias(shape, strides)
}

/// Dense tensors seen as samples, groups, the channels of a group, and the elements of a channel.
#[derive(Debug, Clone, Copy)]
struct InGroups {
    shape: [Extent; 4],
}

impl InGroups {
    /// What is normalized together.
    const WITHIN: [usize; 2] = [2, 3];

    fn of(shape: &[Extent], groups: u64) -> InGroups {
        let groups = Extent::fixed(groups);
        let within = shape[1].checked_div(groups).unwrap_or(Extent::ONE);
        InGroups {
            shape: [shape[0], groups, within, numel(&shape[2..])],
        }
    }

    fn seen(tensor: &TensorBody, shape: &[Extent]) -> TensorBody {
        tensor.alias(shape, contiguous_strides(shape))
    }

    fn elements(&self, tensor: &TensorBody) -> TensorBody {
        InGroups::seen(tensor, &self.shape)
    }

    fn statistics(&self, tensor: &TensorBody) -> TensorBody {
        let [samples, groups, ..] = self.shape;
        InGroups::seen(tensor, &[samples, groups, Extent::ONE, Extent::ONE])
    }

    fn channels(&self, tensor: &TensorBody) -> TensorBody {
        let [_, groups, within, _] = self.shape;
        let mut seen = InGroups::seen(tensor, &[groups, within, Extent::ONE]);
        let step = tensor.strides[0];
        seen.strides = [step * within, step, Extent::ZERO].as_slice().into();
        seen
    }
}
