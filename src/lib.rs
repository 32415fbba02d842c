//! batchfit answers one question before a training job starts: what is the largest batch
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
//! `docs/ARCHITECTURE.md` says where everything is: what each crate and module is for, lowest first, and the files that a fit passes. What the
//! crates have is re-exported here by module.
pub use batchfit_card::{alloc, probe, replay, timing};
pub use batchfit_fit::{model, recorded, search, virtual_gpu};
pub use batchfit_server::{agent, http, jobs};
pub use batchfit_step::{limits, program, shape, units};
pub use batchfit_store as store;
pub use batchfit_torch::{aten, compile, graph, ops};
/// What programs run on: simulated cards and real ones.
pub mod device {
    pub use batchfit_card::device::*;
    pub use batchfit_cuda as cuda;
}

pub mod worker;

pub mod report;

pub mod cli;
