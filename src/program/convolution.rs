//! The convolutions a library is asked for: what a workspace is looked up by.

use serde::{Deserialize, Serialize};

use crate::graph::{DType, Window};

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

/// A convolution at any batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvolutionShape {
    /// Which pass.
    pub pass: ConvolutionPass,
    /// Type of input, weight and output alike.
    pub dtype: DType,
    /// Channels of the input.
    pub in_channels: u64,
    /// Channels of the output.
    pub out_channels: u64,
    /// Height and width of the input.
    pub input: [u64; 2],
    /// Kernel, stride, padding, dilation and groups.
    pub window: Window,
}

impl ConvolutionShape {
    /// The library call at one batch size.
    pub fn at(&self, batch: u64) -> Convolution {
        Convolution {
            pass: self.pass,
            dtype: self.dtype,
            batch,
            in_channels: self.in_channels,
            out_channels: self.out_channels,
            groups: self.window.groups,
            input: self.input,
            kernel: self.window.kernel,
            stride: self.window.stride,
            padding: self.window.padding,
            dilation: self.window.dilation,
            transposed: false,
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
    /// Channels of the input.
    pub in_channels: u64,
    /// Channels of the output.
    pub out_channels: u64,
    /// Groups of channels that do not mix.
    pub groups: u64,
    /// Height and width of the input.
    pub input: [u64; 2],
    /// Kernel size.
    pub kernel: [u64; 2],
    /// Step between windows.
    pub stride: [u64; 2],
    /// Zeros added on each side.
    pub padding: [u64; 2],
    /// Distance between taps.
    pub dilation: [u64; 2],
    /// Whether this is a transposed convolution.
    pub transposed: bool,
}
