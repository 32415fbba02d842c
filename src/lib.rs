//! batchfit answers one question for somebody about to start a training job: what is the largest batch
//! that fits this GPU, safely, and how many gradient-accumulation steps make up the batch I want?
//!
//! # The one idea: a training step is a memory program
//!
//! ```text
//! description ──▶ graph ──▶ compile ──▶ step program ──▶ probe on a device ──▶ verdict ──▶ search ──▶ answer
//!  layers, preset,  forward   autocast,   flat list of      simulated: allocator only
//!  exported graph   ops with  autograd,   alloc / launch /  CUDA: real kernels,
//!                   symbolic  checkpoints, free, sizes as    same allocator
//!                   batch     optimizer    functions of b
//! ```
//!
//! A program is compiled once for a graph and a variant and runs at any batch size. What decides the
//! answer is pure and runs in microseconds; devices, database, processes and HTTP are edges.
//!
//! # Where everything is
//!
//! A crate below `crates/` knows no higher one, which Cargo checks; a module here uses only modules above its own in this list, which a
//! test checks. What the crates have is re-exported here by module.
//!
//! | crate or module | what it is for |
//! | --- | --- |
//! | `crates/step` | sizes in bytes, shapes with a symbolic batch, step programs, what a variant is; no I/O, no clock |
//! | `crates/card` | a step program on a simulated card: the caching allocator, workspaces, time, the probe, replays of recordings |
//! | `crates/torch` | eager PyTorch without values: operators, autograd, optimizers, parallel; a graph and a variant become a step program |
//! | [`device`] | simulated cards, and real ones: the only place that names CUDA |
//! | [`recorded`] | step programs learnt from recordings of a few small batches |
//! | [`model`] | from what a user writes (the request, layers, models by name or Hugging Face config, exported graphs) to a graph and variants |
//! | [`search`] | which batch to probe next, accumulation plans, headroom, ranking; no I/O, no clock |
//! | [`worker`] | the child process that owns a GPU, its protocol and its supervisor; the child that records under PyTorch |
//! | [`virtual_gpu`] | a user's own script on a GPU that is not there: what it is told, what it says, what came of it |
//! | [`store`] | SQLite; the only place with SQL |
//! | [`jobs`] | the lifecycle of a fit: queue, dispatch, the fit itself, its documents |
//! | [`report`] | answers as text for people |
//! | [`http`] | the REST service: one file for each resource, errors as problem documents |
//! | [`agent`] | a process on another machine that takes fits from a service and brings their answers |
//! | [`cli`] | the commands; the only place that reads flags and the environment |
pub use batchfit_card::{alloc, probe, replay, timing};
pub use batchfit_step::{program, shape, units};
pub use batchfit_torch::{aten, compile, graph, ops};

use batchfit_step::bounded;

pub mod device;

pub mod recorded;

pub mod model;

pub mod search;

pub mod worker;

pub mod virtual_gpu;

pub mod store;

pub mod jobs;

pub mod report;

pub mod http;

pub mod agent;

pub mod cli;
