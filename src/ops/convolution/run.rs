//! Convolutions through cuDNN.

use crate::eager::{Draft, Eager, Saved, Stop, Tensor};
use crate::program::{Binary, ConvolutionPass, ConvolutionShape, Kernel};
use crate::shape::{Extent, MemoryFormat, Window};

/// Which way a convolution goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// `conv2d`.
    Plain,
    /// `conv_transpose2d`.
    Transposed,
}

impl Eager {
    /// `conv2d(x, weight[, bias])` or `conv_transpose2d`. Autocast casts bias, weight, input: last
    /// argument first.
    ///
    /// All run in one memory format: channels-last if the input or the weight suggests it. What lies
    /// otherwise is copied: the input for as long as the pass takes, the weight for each kernel of cuDNN.
    /// The backward pass first copies input and gradient; these copies live until the weight's gradient is
    /// done. Then input, weight, bias, each with its own workspace; PyTorch's own depthwise kernels make
    /// that of the weight first, on row-major data.
    pub(crate) fn convolution(
        &mut self,
        window: &Window,
        direction: Direction,
        [x, weight]: [&Tensor; 2],
        bias: Option<&Tensor>,
    ) -> Result<Tensor, Stop> {
        if x.shape.len() == 3 {
            let plane = self.unsqueeze(x, 2);
            let taps = self.unsqueeze(weight, 2);
            let y = self.convolution(window, direction, [&plane, &taps], bias)?;
            let mut shape = y.shape.clone();
            shape.remove(2);
            return Ok(self.reshape(&y, &shape));
        }
        let bias = bias.map(|bias| self.low(bias));
        let weight = self.low(weight);
        let x = self.low(x);
        let mut draft = Draft::new(self, &[Some(&x), Some(&weight), bias.as_ref()]);
        draft.save(self, "input", &x)?;
        draft.save(self, "weight", &weight)?;
        let fixed = |length: Extent| {
            length
                .as_fixed()
                .expect("graphs with batched planes are refused")
        };
        let transposed = direction == Direction::Transposed;
        let out_channels = match direction {
            Direction::Plain => weight.shape[0],
            Direction::Transposed => weight.shape[1] * Extent::fixed(window.groups),
        };
        let shape = ConvolutionShape {
            pass: ConvolutionPass::Forward,
            dtype: x.dtype,
            in_channels: fixed(x.shape[1]),
            out_channels: fixed(out_channels),
            input: [fixed(x.shape[2]), fixed(x.shape[3])],
            window: *window,
            transposed,
            channels_last: conv_format(&x, &weight) == MemoryFormat::ChannelsLast,
        };
        let side = |axis: usize| {
            let output = match direction {
                Direction::Plain => window.output(axis, shape.input[axis]),
                Direction::Transposed => window.transposed_output(axis, shape.input[axis]),
            };
            Extent::fixed(output.expect("checked when the graph was built"))
        };
        let format = conv_format(&x, &weight);
        let dense = self.copy_in(&x, format);
        let y_shape = [x.shape[0], out_channels, side(0), side(1)];
        let y = self.empty_strided(&y_shape, format.strides(&y_shape), x.dtype);
        let kernel_weight = self.kernel_weight(shape, format, &weight);
        self.convolve(shape, [&dense, &kernel_weight], &y);
        drop(kernel_weight);
        if let Some(bias) = &bias {
            let strides = vec![Extent::ZERO, Extent::ONE, Extent::ZERO, Extent::ZERO];
            let everywhere = bias.alias(y.shape.clone(), strides);
            self.launch(Kernel::Binary(Binary::Add), &[&y, &everywhere], &[&y]);
        }
        drop(dense);
        let wants = [
            x.requires_grad(),
            weight.requires_grad(),
            bias.as_ref().is_some_and(|bias| bias.requires_grad()),
        ];
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None, None];
            };
            eager.convolution_grads(shape, format, wants, gradient, saved)
        });
        Ok(y)
    }

    fn convolution_grads(
        &mut self,
        shape: ConvolutionShape,
        format: MemoryFormat,
        wants: [bool; 3],
        gradient: &Tensor,
        saved: &Saved,
    ) -> Vec<Option<Tensor>> {
        let (x, weight) = (saved.get("input"), saved.get("weight"));
        let own_kernel = runs_own_kernel(shape);
        let dense_x = if wants[1] {
            self.copy_in(x, format)
        } else {
            Tensor::clone(x)
        };
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
        let weight_first = own_kernel && format == MemoryFormat::Contiguous;
        let early = (wants[1] && weight_first).then(|| of_weight(self));
        let grad_x = wants[0].then(|| of_x(self));
        let late = (wants[1] && !weight_first).then(|| of_weight(self));
        drop(dense);
        drop(dense_x);
        let grad_bias = wants[2].then(|| self.channel_sum(gradient));
        vec![grad_x, early.or(late), grad_bias]
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
