//! Convolutions through cuDNN, and PyTorch's own depthwise ones.

use crate::ops::prelude::*;
use crate::ops::{Convolution, Resample};
use crate::program::{Binary, ConvolutionLayer, ConvolutionPass, ConvolutionShape};
use crate::shape::MemoryFormat;

impl Eager {
    /// A convolution or a transposed one. Autocast casts bias, weight, input: last argument first.
    ///
    /// All run in one memory format: channels-last if the input or the weight suggests it. What lies
    /// otherwise is copied: the input for as long as the pass takes, the weight for each kernel of cuDNN.
    /// The backward pass first copies input and gradient; these copies live until the weight's gradient is
    /// done. Then input, weight, bias, each with its own workspace; PyTorch's own depthwise kernels for planes
    /// make that of the weight first, on row-major data; those for volumes do not.
    pub fn convolution(
        &mut self,
        convolution: &Convolution,
        [x, weight]: [&Tensor; 2],
        bias: Option<&Tensor>,
        y_shape: &[Extent],
    ) -> Output {
        if x.shape.len() == 3 {
            let [n, channels, length] = [y_shape[0], y_shape[1], y_shape[2]];
            let planes = [n, channels, Extent::ONE, length];
            if let Convolution::PaddedAfter(..) = convolution {
                let bias = bias.map(|bias| self.low(bias));
                let weight = self.low(weight);
                let x = self.low(x);
                let (padded, plain) = self.padded_after(convolution, &x)?;
                return self.convolution(&plain, [&padded, &weight], bias.as_ref(), y_shape);
            }
            let plane = self.unsqueeze(x, 2);
            let taps = self.unsqueeze(weight, 2);
            let y = self.planes(convolution, [&plane, &taps], bias, &planes, true)?;
            return Ok(self.reshape(&y, y_shape));
        }
        self.planes(convolution, [x, weight], bias, y_shape, false)
    }

    /// The same of planes and volumes. What was a signal is first made contiguous: it would look channels-last where it is
    /// transposed (`at::_convolution`, `convolution_backward`).
    fn planes(
        &mut self,
        convolution: &Convolution,
        [x, weight]: [&Tensor; 2],
        bias: Option<&Tensor>,
        y_shape: &[Extent],
        was_signal: bool,
    ) -> Output {
        let bias = bias.map(|bias| self.low(bias));
        let weight = self.low(weight);
        let x = self.low(x);
        let (x, convolution) = self.padded_after(convolution, &x)?;
        let mut draft = OpRecord::new(self, &[Some(&x), Some(&weight), bias.as_ref()]);
        draft.save(self, "input", &x)?;
        draft.save(self, "weight", &weight)?;
        let fixed = |length: &Extent| {
            length
                .as_fixed()
                .expect("checked when the graph was built: sides are fixed")
        };
        let (window, output_padding, transposed) = match convolution {
            Convolution::Plain(window) | Convolution::PaddedAfter(window, _) => {
                (window, [0; 3], false)
            }
            Convolution::Transposed(window, extra) => (window, extra, true),
        };
        let volumes = x.shape.len() == 5;
        let mut input = [1; 3];
        for (side, length) in input[usize::from(!volumes)..].iter_mut().zip(&x.shape[2..]) {
            *side = fixed(length);
        }
        let format = if was_signal {
            weight.suggested_format()
        } else {
            conv_format(&x, &weight)
        };
        let shape = ConvolutionShape {
            pass: ConvolutionPass::Forward,
            dtype: x.dtype,
            samples: x.shape[0],
            layer: ConvolutionLayer {
                in_channels: fixed(&x.shape[1]),
                out_channels: fixed(&y_shape[1]),
                input,
                transposed,
                output_padding,
                volumes,
                channels_last: format == MemoryFormat::ChannelsLast,
                ..ConvolutionLayer::of(&window)
            },
        };
        let dense = self.copy_in(&x, format);
        let y = self.empty_strided(y_shape, format.strides(y_shape), x.dtype);
        let kernel_weight = self.kernel_weight(shape, format, &weight);
        self.convolve(shape, [&dense, &kernel_weight], &y);
        drop(kernel_weight);
        if let Some(bias) = &bias {
            let mut strides = vec![Extent::ZERO; y.shape.len()];
            strides[1] = Extent::ONE;
            let everywhere = bias.alias(y.shape.clone(), strides);
            self.launch(Kernel::Binary(Binary::Add), &[&y, &everywhere], &[&y]);
        }
        drop(dense);
        let wants = [
            x.requires_grad(),
            weight.requires_grad(),
            bias.as_ref().is_some_and(|bias| bias.requires_grad()),
        ];
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let (x, weight) = (saved.get("input"), saved.get("weight"));
            let dense_x = if wants[1] || was_signal {
                eager.copy_in(x, format)
            } else {
                Tensor::clone(x)
            };
            // A signal's copy lives until the bias's gradient is there, too.
            let _copy = was_signal.then(|| Tensor::clone(&dense_x));
            eager.convolution_grads(shape, format, wants, gradient, [x, weight], dense_x)
        }))
    }

    fn convolution_grads(
        &mut self,
        shape: ConvolutionShape,
        format: MemoryFormat,
        wants: [bool; 3],
        gradient: &Tensor,
        [x, weight]: [&Tensor; 2],
        dense_x: Tensor,
    ) -> Vec<Option<Tensor>> {
        let own_kernel = runs_own_kernel(shape);
        let dense = self.copy_in(gradient, format);
        let made = |eager: &mut Eager, like: &Tensor, format: MemoryFormat| {
            let strides = format.strides(&like.shape);
            eager.empty_strided(&like.shape, strides, gradient.dtype)
        };
        let of_x = |eager: &mut Eager| {
            let result = made(eager, x, format);
            let with = eager.kernel_weight(shape, format, weight);
            let pass = ConvolutionPass::GradInput;
            let shape = ConvolutionShape { pass, ..shape };
            eager.convolve(shape, [&dense, &with], &result);
            Tensor::new(result)
        };
        let of_weight = |eager: &mut Eager| {
            let layout = if own_kernel {
                MemoryFormat::Contiguous
            } else {
                format
            };
            let result = made(eager, weight, layout);
            let pass = ConvolutionPass::GradWeight;
            let shape = ConvolutionShape { pass, ..shape };
            eager.convolve(shape, [&dense, &dense_x], &result);
            Tensor::new(result)
        };
        let weight_first = own_kernel && format == MemoryFormat::Contiguous && !shape.layer.volumes;
        let early = (wants[1] && weight_first).then(|| of_weight(self));
        let grad_x = wants[0].then(|| of_x(self));
        let late = (wants[1] && !weight_first).then(|| of_weight(self));
        drop((dense, dense_x));
        let grad_bias = wants[2].then(|| self.channel_sum(gradient));
        vec![grad_x, early.or(late), grad_bias]
    }

    /// The operand with the zeros that `padding="same"` puts after it, and the convolution that is left.
    fn padded_after(
        &mut self,
        convolution: &Convolution,
        x: &Tensor,
    ) -> Result<(Tensor, Convolution), Stop> {
        let Convolution::PaddedAfter(window, after) = convolution else {
            return Ok((Tensor::clone(x), *convolution));
        };
        let rank = x.shape.len() - 2;
        let amounts = after.iter().rev().take(rank);
        let amounts = amounts.map(|after| [0, after.cast_signed()]).collect();
        let sides = x.shape.iter().enumerate().map(|(dim, length)| match dim {
            0 | 1 => *length,
            dim => *length + Extent::fixed(after[3 - rank + dim - 2]),
        });
        let shape: Vec<Extent> = sides.collect();
        let padded = self.resample(&Resample::constant(amounts), x, &shape)?;
        let padded = padded.into_iter().next().expect("a pad has a result");
        Ok((padded, Convolution::Plain(*window)))
    }

    /// The weight as the kernel reads it.
    fn kernel_weight(
        &mut self,
        shape: ConvolutionShape,
        format: MemoryFormat,
        weight: &Tensor,
    ) -> Tensor {
        if runs_own_kernel(shape) {
            Tensor::clone(weight)
        } else {
            self.copy_in(weight, format)
        }
    }
}

/// Whether PyTorch's own kernel runs. A batch of one alone may go elsewhere, and only in float16.
fn runs_own_kernel(shape: ConvolutionShape) -> bool {
    !shape.at(2).uses_cudnn()
}

/// `cudnn_conv_suggest_memory_format`.
fn conv_format(x: &Tensor, weight: &Tensor) -> MemoryFormat {
    let suggested = [x.suggested_format(), weight.suggested_format()];
    if suggested.contains(&MemoryFormat::ChannelsLast) {
        MemoryFormat::ChannelsLast
    } else {
        MemoryFormat::Contiguous
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::Cancel;

    use super::*;
    use crate::program::Capability;
    use crate::shape::{DType, Window};

    /// wav2vec2's convolution of positions, whose samples come with features last.
    #[test]
    fn a_transposed_signal_is_made_contiguous_and_its_weight_stays() {
        let card = Capability::of((9, 0), 132);
        let mut eager = Eager::new(card, &Cancel::NEVER);
        let [samples, features, length] = [4, 96, 49].map(Extent::fixed);
        let rows = eager.empty(&[samples, length, features], DType::Float32);
        let strides = [length * features, Extent::ONE, features];
        let x = Tensor::new(rows.alias(vec![samples, features, length], strides.to_vec()));
        let weight = [96, 24, 32].map(Extent::fixed);
        let weight = Tensor::new(eager.empty(&weight, DType::Float32));
        let window = Window {
            padding: [0, 0, 16],
            groups: 4,
            ..Window::of([1, 32])
        };
        let y = [samples, features, Extent::fixed(50)];

        eager
            .convolution(&Convolution::Plain(window), [&x, &weight], None, &y)
            .unwrap();

        let tensors = eager.recorder().take_tensors();
        assert_eq!(
            tensors.len(),
            5,
            "two operands, a copy, the result, a workspace: {tensors:?}"
        );
        assert_eq!(tensors[2].size, tensors[0].size, "{tensors:?}");
    }
}
