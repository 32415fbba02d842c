//! Models written in Rust, line by line as their Python code, and traced like it.
//!
//! A [`Tensor`] is a name that Python code holds. Calling an operator adds it to the graph; dropping the last handle of a
//! tensor notes that Python lets go of it, as the exporter notes it of Python's own names. So a model that is written with
//! the scopes of its Python code has its lifetimes, too. See Note [Scopes].
//!
//! A class of a model is a function that takes a [`Frame`], which is its `self`, and runs its `forward`: modules are made where they are
//! called first.
//!
//! The first thing that does not fit is kept and told by [`Tracer::finish`]; what comes after it is not looked at, so that
//! models read like PyTorch's.

mod activation;
mod adapters;
mod argument;
mod frame;
pub(crate) mod functional;
mod module_path;
mod modules;
mod operands;
mod pointwise;
mod reductions;
mod tracer;
mod views;

pub(crate) use adapters::{Adapter, Lora, Targets, Trained, prefixes};
pub(crate) use argument::{Argument, Size};
pub(crate) use frame::Frame;
pub(crate) use module_path::{Code, ModulePath};
pub(crate) use modules::{BatchNorm, Conv, Dropout, Embedding, LayerNorm, Linear};
pub(crate) use operands::Tensors;
pub(crate) use pointwise::{Pointwise, Scalar};
pub(crate) use reductions::Reductions;
pub(crate) use tracer::{AsksFor, Attending, Eager, Tensor, Tracer};
pub(crate) use views::Views;
