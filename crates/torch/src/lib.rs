//! Eager PyTorch without values: a forward graph and a variant become a step program. It knows `batchfit-step`, and no card.
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`aten`] | a node of an exported graph: its schema and typed arguments; knows no operator |
//! | `eager` | tensors, autograd, autocast, checkpoints; knows no operator |
//! | [`ops`] | every operator family in a home of its own: how it is read, its shapes, what eager PyTorch does |
//! | [`graph`] | the forward graph: nodes, values, modules, and what builds it |
//! | [`compile`] | graph + variant -> program |

pub mod aten;
pub mod compile;
mod eager;
pub mod graph;
pub mod ops;

use batchfit_step::{limits, order, program, shape, units};
