//! What the files of all families call: `import torch` and `torchvision.ops` of their Python code, and what an entry of the list is.

pub(super) use super::Override;
pub(super) use super::blocks::{ConvNorm, Norm, StochasticDepth, mlp, squeeze_excitation};
pub(super) use super::entry::{AT_224, Entry, Sizes, classifier, entry, image, segmenter, trained};
pub(super) use super::layers::{
    Activation, AnyModule, Module, Pooling, Sequential, adaptive_average, adaptive_pool,
    batch_norm, chain, dropout_in_place, flat, max_pool, pooled, relu, relu_in_place,
};
pub(super) use crate::graph::{Graph, GraphError};
pub(super) use crate::tracing::{
    Argument, BatchNorm, Conv, Dropout, FnModule, LayerNorm, Linear, ModulePath, Pointwise as _,
    Reductions as _, Size, Tensor, Tracer, Views as _,
};
