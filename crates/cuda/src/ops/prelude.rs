//! What nearly every family of launches is made of.

pub(super) use crate::device::LaunchError;
pub(super) use crate::layout::{Array, Operand, Operands};
pub(super) use crate::plan::{Arguments, Grid, Plan, Queued, clamp};
pub(super) use crate::program::{Convolution, ConvolutionPass, Form, Generated, Kernel, Number};
pub(super) use crate::shape::DType;
pub(super) use crate::shared::{Layout, Shared as _, shared_with_kernels};
