//! What the files of all families call: `import torch` and `torchvision.ops` of their Python code, and what an entry of the list is.

pub(super) use super::Override;
pub(super) use super::blocks::{ConvNorm, Norm, mlp, squeeze_excitation, stochastic_depth};
pub(super) use super::entry::{AT_224, Entry, Sizes, classifier, entry, image, segmenter, trained};
pub(super) use super::layers::{
    Activation, Pooling, adaptive_average, adaptive_pool, batch_norm, dropout_in_place, flat,
    max_pool, pooled, relu, relu_in_place, sequential, sequential_of,
};
pub(super) use crate::graph::{Graph, GraphError};
pub(super) use crate::tracing::{
    Argument, Conv, Frame, Pointwise as _, Reductions as _, Size, Tensor, Views as _,
};
