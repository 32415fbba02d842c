//! What nearly every operator is made of: how it is read, its types, and what it allocates and launches.

pub(super) use super::call::Function;
pub(super) use super::{Context, Operator, Read, Reader};
pub(super) use crate::aten::{Arguments, Constant, ValueId};
pub(super) use crate::eager::{
    Eager, OpRecord, Output, Outputs, Saved, Stop, Tensor, TensorBody, viewed,
};
pub(super) use crate::program::{Form, Generated, Kernel, Number, Placement};
pub(super) use crate::shape::{
    DType, Extent, Mismatch, Sizes, Type, broadcast, contiguous_strides, numel, strides_like,
};
pub(super) use serde::Serialize;
