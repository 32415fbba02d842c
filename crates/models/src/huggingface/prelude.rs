//! What the files of all families call: `import torch` of their Python code, and what a config and a task are here.

pub(super) use super::Task;
pub(super) use super::config::Config;
pub(super) use super::heads::Labels;
pub(super) use super::shape::Shape;
pub(super) use crate::graph::Graph;
pub(super) use crate::request_error::RequestError;
pub(super) use crate::shape::{DType, Extent};
pub(super) use crate::tracing::{
    Argument, Code, Dropout, Embedding, Frame, LayerNorm, Linear, ModulePath, Pointwise as _,
    Reductions as _, Size, Tensor, Tensors, Tracer, Views as _, functional,
};
