//! Convolutions through cuDNN.

use super::super::autograd::Draft;
use super::super::eager::{Eager, Stop};
use super::super::tensor::Tensor;
use crate::graph::{Extent, Window};
use crate::program::{Binary, ConvolutionPass, ConvolutionShape, Kernel};

/// Which way a convolution goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Direction {
    /// `conv2d`.
    Plain,
    /// `conv_transpose2d`.
    Transposed,
}

impl Eager {
    /// `conv2d(x, weight[, bias])` or `conv_transpose2d`. Autocast casts bias, weight, input: last
    /// argument first.
    ///
    /// The backward pass makes the gradient contiguous first, if it is not; that copy lives until the
    /// weight's gradient is done. Then input, weight, bias, each with its own workspace.
    pub(in super::super) fn convolution(
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
        };
        let side = |axis: usize| {
            let output = match direction {
                Direction::Plain => window.output(axis, shape.input[axis]),
                Direction::Transposed => window.transposed_output(axis, shape.input[axis]),
            };
            Extent::fixed(output.expect("checked when the graph was built"))
        };
        let y = self.empty(&[x.shape[0], out_channels, side(0), side(1)], x.dtype);
        self.convolve(shape, [&x, &weight], &y);
        if let Some(bias) = &bias {
            let strides = vec![Extent::ZERO, Extent::ONE, Extent::ZERO, Extent::ZERO];
            let everywhere = bias.alias(y.shape.clone(), strides);
            self.launch(Kernel::Binary(Binary::Add), &[&y, &everywhere], &[&y]);
        }
        let wants = [
            x.requires_grad(),
            weight.requires_grad(),
            bias.as_ref().is_some_and(|bias| bias.requires_grad()),
        ];
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None, None];
            };
            let (x, weight) = (saved.get("input"), saved.get("weight"));
            let dense = eager.dense_copy(gradient);
            let pass = |eager: &mut Eager, pass, like: &Tensor, with: &Tensor| {
                let result = eager.empty(&like.shape, gradient.dtype);
                eager.convolve(ConvolutionShape { pass, ..shape }, [&dense, with], &result);
                Tensor::new(result)
            };
            let grad_x = wants[0].then(|| pass(eager, ConvolutionPass::GradInput, x, weight));
            let grad_weight = wants[1].then(|| pass(eager, ConvolutionPass::GradWeight, weight, x));
            drop(dense);
            let grad_bias = wants[2].then(|| eager.channel_sum(gradient));
            vec![grad_x, grad_weight, grad_bias]
        });
        Ok(y)
    }
}
