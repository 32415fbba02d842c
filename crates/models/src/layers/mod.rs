//! The `layers` description: a network written as a list of PyTorch's layers.
//!
//! Each layer takes the result of the one before, or of those it names in `inputs`; the batch itself is
//! called `input`. Sizes of inputs are inferred. What is lowered is what PyTorch would run for the same
//! modules called in the same order: parameters under the layer's name, or under its index as in a
//! `Sequential`. An unnamed layer without parameters is a function (`F.gelu`), which the root runs itself.

mod lower;
mod parse;

use crate::shape::{DType, Window};

pub use lower::lower;
pub use parse::parse;

/// The name of the batch in `inputs`.
const INPUT: &str = "input";

/// A network as a list of layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Layers {
    /// The shape of one sample.
    pub input: Vec<u64>,
    /// float32, or int64 for token ids.
    pub dtype: DType,
    /// In the order in which they run.
    pub stack: Vec<Layer>,
    /// Where the description is in the request, for problems found when lowering.
    pointer: String,
}

/// One layer and what it reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// The name given, if any.
    pub name: Option<String>,
    /// The layers whose results it takes; empty for the one before.
    pub inputs: Vec<String>,
    /// What it does.
    pub kind: LayerKind,
}

/// What a layer does.
#[derive(Debug, Clone, PartialEq)]
pub enum LayerKind {
    /// `torch.nn.Conv2d`.
    Conv2d {
        /// Channels it makes.
        out_channels: u64,
        /// Its kernel and how that moves.
        window: Window,
        /// Whether it adds a bias.
        bias: bool,
        /// What the input is said to have.
        in_channels: Option<u64>,
    },
    /// `torch.nn.BatchNorm2d`.
    BatchNorm2d {
        /// Share of the running statistics that a batch replaces.
        momentum: f64,
        /// Added to the variance.
        eps: f64,
        /// What the input is said to have.
        num_features: Option<u64>,
    },
    /// `torch.nn.ReLU`.
    Relu {
        /// Whether it writes over its input.
        inplace: bool,
    },
    /// `torch.nn.GELU`, exact (`none`) or by `tanh`.
    Gelu {
        /// Which.
        approximate: &'static str,
    },
    /// `torch.nn.MaxPool2d`.
    MaxPool2d(Window),
    /// `torch.nn.AdaptiveAvgPool2d`.
    AdaptiveAvgPool2d([u64; 2]),
    /// `torch.nn.Flatten`.
    Flatten {
        /// First dimension joined.
        start_dim: u64,
    },
    /// `torch.nn.Linear`.
    Linear {
        /// Features it makes.
        out_features: u64,
        /// Whether it adds a bias.
        bias: bool,
        /// What the input is said to have.
        in_features: Option<u64>,
    },
    /// `torch.nn.Dropout`.
    Dropout {
        /// Share of elements dropped.
        p: f64,
    },
    /// `torch.nn.LayerNorm`.
    LayerNorm {
        /// The dimensions it covers; the last one when not given.
        normalized_shape: Option<Vec<u64>>,
        /// Added to the variance.
        eps: f64,
    },
    /// `torch.nn.Embedding`.
    Embedding {
        /// Rows.
        num_embeddings: u64,
        /// Width of a row.
        embedding_dim: u64,
    },
    /// The sum of two results.
    Add,
}
