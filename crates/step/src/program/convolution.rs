//! The convolutions a library is asked for: what a workspace is looked up by.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::shape::{DType, Extent, Window};

listed! {
    /// Which of the three passes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ConvolutionPass {
        /// Output from input and weight.
        Forward,
        /// Gradient of the input from that of the output and the weight.
        GradInput,
        /// Gradient of the weight from that of the output and the input.
        GradWeight,
    }
}

/// A convolution at any batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvolutionShape {
    /// Which pass.
    pub pass: ConvolutionPass,
    /// Type of input, weight and output alike.
    pub dtype: DType,
    /// How many samples the tensors hold: the batch, or what part or multiple of it.
    pub samples: Extent,
    /// The layer.
    pub layer: ConvolutionLayer,
}

impl ConvolutionShape {
    /// The library call at one batch size.
    pub fn at(&self, batch: u64) -> Convolution {
        self.layer
            .call(self.pass, self.dtype, self.samples.at(batch))
    }
}

/// A convolution layer on inputs of one size; everything but batch, element type and pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConvolutionLayer {
    /// Channels of the layer's input.
    pub in_channels: u64,
    /// Channels of the layer's output.
    pub out_channels: u64,
    /// Groups that both channel counts are split into.
    pub groups: u64,
    /// Depth, height and width of the layer's input.
    pub input: [u64; 3],
    /// Depth, height and width of the kernel.
    pub kernel: [u64; 3],
    /// Stride along each.
    pub stride: [u64; 3],
    /// Zeros on each side.
    pub padding: [u64; 3],
    /// Distance between kernel elements.
    pub dilation: [u64; 3],
    /// Whether this is a transposed convolution.
    pub transposed: bool,
    /// Elements that a transposed convolution adds to its output.
    pub output_padding: [u64; 3],
    /// Whether tensors are volumes, of five dimensions; else they are one deep and have four.
    pub volumes: bool,
    /// Whether the channels of all tensors lie side by side (NHWC).
    pub channels_last: bool,
}

impl ConvolutionLayer {
    /// A plain one of one channel with this window, on an input of one element.
    pub const fn of(window: &Window) -> ConvolutionLayer {
        ConvolutionLayer {
            in_channels: 1,
            out_channels: 1,
            groups: window.groups,
            input: [1; 3],
            kernel: window.kernel,
            stride: window.stride,
            padding: window.padding,
            dilation: window.dilation,
            transposed: false,
            output_padding: [0; 3],
            volumes: false,
            channels_last: false,
        }
    }

    /// Whether it goes along one dimension: its planes are one high.
    pub const fn is_flat(&self) -> bool {
        !self.volumes && self.input[1] == 1 && self.input[2] > 1
    }

    /// The library call for one pass of this layer.
    pub const fn call(&self, pass: ConvolutionPass, dtype: DType, batch: u64) -> Convolution {
        Convolution {
            pass,
            dtype,
            batch,
            layer: *self,
        }
    }
}

/// One library call, at one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Convolution {
    /// Which pass.
    pub pass: ConvolutionPass,
    /// Type of input, weight and output alike.
    pub dtype: DType,
    /// Samples.
    pub batch: u64,
    /// The layer this call belongs to.
    #[serde(flatten)]
    pub layer: ConvolutionLayer,
}

/// What the library is asked to compute from the three tensors of [`Operands`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `y` from `x` and `w`.
    Forward,
    /// `x` from `y` and `w`.
    BackwardData,
    /// `w` from `x` and `y`.
    BackwardFilter,
}

/// The tensors of a library call, in the library's roles: an ordinary convolution takes `x` with
/// `w` to `y`, whichever of the three is being computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operands {
    /// Which tensor is the result.
    pub operation: Operation,
    /// Batch, channels, depth, height, width.
    pub x: [u64; 5],
    /// Channels of `y`, channels of `x` per group, kernel depth, height and width.
    pub w: [u64; 5],
    /// Batch, channels, depth, height, width.
    pub y: [u64; 5],
}

impl Operands {
    /// Elements of `x`, `w` and `y` together.
    pub fn elements(&self) -> [u64; 3] {
        [self.x, self.w, self.y].map(|dims| dims.iter().product())
    }
}

impl Deref for Convolution {
    type Target = ConvolutionLayer;

    fn deref(&self) -> &ConvolutionLayer {
        &self.layer
    }
}

impl Convolution {
    /// Depth, height and width of the layer's output; zero where the kernel does not fit into the input.
    pub fn output(&self) -> [u64; 3] {
        [0, 1, 2].map(|axis| {
            let reach = self.dilation[axis] * (self.kernel[axis].max(1) - 1) + 1;
            if self.transposed {
                let spread = self.input[axis].saturating_sub(1) * self.stride[axis] + reach;
                (spread + self.output_padding[axis]).saturating_sub(2 * self.padding[axis])
            } else {
                match (self.input[axis] + 2 * self.padding[axis]).checked_sub(reach) {
                    Some(room) => room / self.stride[axis].max(1) + 1,
                    None => 0,
                }
            }
        })
    }

    /// Whether PyTorch hands this call to cuDNN; its own depthwise kernels need no workspace.
    ///
    /// Depthwise layers (one input channel per group) on contiguous tensors go to cuDNN in half
    /// precision only, and there only in the shapes that PyTorch found cuDNN faster for. Read in
    /// PyTorch's `Convolution.cpp` and seen on an H200 (2.11, cuDNN 9.19): of 1,602 calls of 89
    /// layers, just these had no workspace where cuDNN's first plan has one. Channels-last, all go to cuDNN
    /// (`use_cudnn_depthwise`; seen with `ConvNeXt`'s weight gradients). On row-major volumes none does.
    pub fn uses_cudnn(&self) -> bool {
        let is_depthwise = self.groups > 1
            && self.groups == self.in_channels
            && self.out_channels.is_multiple_of(self.in_channels)
            && !self.transposed;
        !is_depthwise || self.channels_last || self.is_depthwise_for_cudnn()
    }

    /// PyTorch's choice for a depthwise layer.
    fn is_depthwise_for_cudnn(&self) -> bool {
        let [_, kernel, kernel_width] = self.kernel;
        let [_, height, width] = self.input;
        let stride = self.stride[2];
        if self.volumes
            || self.dtype != DType::Float16
            || self.dilation != [1, 1, 1]
            || (self.stride[1] != stride && height != 1)
            || self.in_channels < 32
        {
            return false;
        }
        if height == 1 && stride == 1 {
            return true;
        }
        if kernel != kernel_width || !matches!(kernel, 1 | 3 | 5) || width < 7 {
            return false;
        }
        let channels = self.in_channels;
        match (stride, self.batch, kernel) {
            (2, 1, 1) => width <= 28,
            (1, ..) | (2, 1, _) => true,
            (2, batch, 1) => batch <= 16 && channels >= 128 && width <= 7,
            (2, ..) => channels >= 512 || (channels >= 256 && width >= 28),
            _ => false,
        }
    }

    /// The tensors in the library's roles.
    ///
    /// A transposed layer's output is what an ordinary convolution with the same weight would
    /// have had as its input, so its forward pass is the library's backward-data operation and
    /// its gradient with respect to the input is the library's forward operation. PyTorch maps
    /// them the same way.
    pub fn operands(&self) -> Operands {
        let [depth, height, width] = self.output();
        let [input_depth, input_height, input_width] = self.input;
        let layer_input = [
            self.batch,
            self.in_channels,
            input_depth,
            input_height,
            input_width,
        ];
        let layer_output = [self.batch, self.out_channels, depth, height, width];
        let [kernel_depth, kernel_height, kernel_width] = self.kernel;
        let groups = self.groups.max(1);
        let (x, y) = if self.transposed {
            (layer_output, layer_input)
        } else {
            (layer_input, layer_output)
        };
        let operation = match (self.pass, self.transposed) {
            (ConvolutionPass::Forward, false) | (ConvolutionPass::GradInput, true) => {
                Operation::Forward
            }
            (ConvolutionPass::GradInput, false) | (ConvolutionPass::Forward, true) => {
                Operation::BackwardData
            }
            (ConvolutionPass::GradWeight, _) => Operation::BackwardFilter,
        };
        Operands {
            operation,
            x,
            w: [
                y[1],
                x[1] / groups,
                kernel_depth,
                kernel_height,
                kernel_width,
            ],
            y,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEM: ConvolutionLayer = ConvolutionLayer {
        in_channels: 3,
        out_channels: 64,
        groups: 1,
        input: [1, 224, 224],
        kernel: [1, 7, 7],
        stride: [1, 2, 2],
        padding: [0, 3, 3],
        dilation: [1, 1, 1],
        transposed: false,
        output_padding: [0, 0, 0],
        volumes: false,
        channels_last: false,
    };

    #[test]
    fn a_layers_three_calls_share_their_tensors() {
        for (pass, operation) in [
            (ConvolutionPass::Forward, Operation::Forward),
            (ConvolutionPass::GradInput, Operation::BackwardData),
            (ConvolutionPass::GradWeight, Operation::BackwardFilter),
        ] {
            let operands = STEM.call(pass, DType::Float32, 8).operands();
            assert_eq!(
                operands,
                Operands {
                    operation,
                    x: [8, 3, 1, 224, 224],
                    w: [64, 3, 1, 7, 7],
                    y: [8, 64, 1, 112, 112]
                }
            );
        }
    }

    #[test]
    fn a_transposed_layer_runs_backward_data_forward() {
        let up = ConvolutionLayer {
            in_channels: 1024,
            out_channels: 512,
            input: [1, 16, 16],
            kernel: [1, 2, 2],
            stride: [1, 2, 2],
            padding: [0, 0, 0],
            transposed: true,
            channels_last: false,
            ..STEM
        };
        let call = up.call(ConvolutionPass::Forward, DType::BFloat16, 4);
        assert_eq!(call.output(), [1, 32, 32]);
        let operands = call.operands();
        assert_eq!(operands.operation, Operation::BackwardData);
        assert_eq!(operands.x, [4, 512, 1, 32, 32]);
        assert_eq!(operands.w, [1024, 512, 1, 2, 2]);
        assert_eq!(operands.y, [4, 1024, 1, 16, 16]);
    }

    #[test]
    fn grouped_weights_hold_the_channels_of_one_group() {
        let grouped = ConvolutionLayer {
            in_channels: 128,
            out_channels: 256,
            groups: 32,
            ..STEM
        };
        let operands = grouped
            .call(ConvolutionPass::Forward, DType::Float16, 2)
            .operands();
        assert_eq!(operands.w, [256, 4, 1, 7, 7]);
    }

    #[test]
    fn few_depthwise_layers_go_to_cudnn() {
        let depthwise = ConvolutionLayer {
            in_channels: 576,
            out_channels: 576,
            groups: 576,
            input: [1, 14, 14],
            kernel: [1, 3, 3],
            stride: [1, 2, 2],
            padding: [0, 1, 1],
            ..STEM
        };
        let goes = |layer: ConvolutionLayer, dtype| {
            layer
                .call(ConvolutionPass::GradWeight, dtype, 32)
                .uses_cudnn()
        };
        assert!(goes(depthwise, DType::Float16));
        assert!(!goes(depthwise, DType::BFloat16));
        assert!(!goes(depthwise, DType::Float32));
        let narrow = ConvolutionLayer {
            in_channels: 144,
            out_channels: 144,
            groups: 144,
            ..depthwise
        };
        assert!(!goes(narrow, DType::Float16));
        assert!(goes(
            ConvolutionLayer {
                stride: [1, 1, 1],
                ..narrow
            },
            DType::Float16
        ));
        assert!(goes(STEM, DType::Float32));
    }

    #[test]
    fn extra_output_is_part_of_the_operands() {
        let up = ConvolutionLayer {
            in_channels: 32,
            out_channels: 16,
            input: [4, 8, 8],
            kernel: [3, 3, 3],
            stride: [2, 2, 2],
            padding: [1, 1, 1],
            transposed: true,
            output_padding: [1, 1, 1],
            volumes: true,
            ..STEM
        };
        let call = up.call(ConvolutionPass::Forward, DType::Float32, 2);

        assert_eq!(call.operands().x, [2, 16, 8, 16, 16]);
    }

    #[test]
    fn depthwise_volumes_run_pytorchs_own_kernel_unless_channels_last() {
        let depthwise = ConvolutionLayer {
            in_channels: 64,
            out_channels: 64,
            groups: 64,
            input: [8, 16, 16],
            kernel: [3, 3, 3],
            stride: [1, 1, 1],
            padding: [1, 1, 1],
            volumes: true,
            ..STEM
        };
        let call = depthwise.call(ConvolutionPass::Forward, DType::Float16, 2);

        assert!(!call.uses_cudnn());
        assert!(
            ConvolutionLayer {
                channels_last: true,
                ..depthwise
            }
            .call(call.pass, call.dtype, call.batch)
            .uses_cudnn()
        );
    }
}
