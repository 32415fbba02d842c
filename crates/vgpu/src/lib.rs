//! A CUDA without a GPU.
//!
//! One object that is loaded before PyTorch (`LD_PRELOAD`) and stands for the driver, the runtime, NVML and CUDA's libraries. It hands out
//! addresses, launches nothing, and runs out of memory where the card would. Everything above is the user's own: PyTorch's allocator,
//! autograd, the script. `batchfit run` writes the card's facts into a small file ([`config`]) and listens to what happens ([`channel`]).
//!
//! | module | what it stands for |
//! | --- | --- |
//! | [`config`] | the card and the run, as `batchfit run` wrote them down |
//! | [`channel`] | lines to `batchfit run` and its answers |
//! | [`memory`] | device memory, where the driver places it, pinned and managed memory, which bytes are known |
//! | [`runtime`] | the CUDA runtime: devices, streams, events, capture, copies, launches |
//! | [`driver`] | the driver and virtual memory management |
//! | [`nvml`] | what `nvidia-smi` and `pynvml` read |
//! | [`libraries`] | cuBLAS, cuBLASLt, NCCL, cuFFT, cuSOLVER, cuSPARSE, cuRAND, CUPTI |
//! | [`cudnn`] | in front of the real cuDNN, which answers without a device |
//! | [`python`] | the part of `batchfit run` in the script's own interpreter, and what it and the values' object call |
//! | [`fork`] | what a fork of the process may still do |
//! | [`handle`] | handles, and what is remembered of them |
//! | [`names`] | every other name that programs link to; each is said once when it is called |
//!
//! # Rules
//!
//! The object is in every child process too (compilers, data loaders, shells): nothing runs before it is called and nothing is destroyed, so
//! there are no constructors, and statics live for ever. One binary serves CUDA 12 and 13; where a structure differs, so does the name of the
//! function. A pointer that is written to is checked for null; a handle that was never given out is an error, not a crash. Functions are
//! written in `functions!` ([`names`]): a body that answers a `Result`, of which the macro makes what C is given.

pub mod channel;
pub mod config;
pub mod cudnn;
pub mod driver;
pub mod fork;
pub mod handle;
mod libc;
pub mod libraries;
pub mod memory;
pub mod names;
pub mod nvml;
pub mod python;
pub mod runtime;
pub mod status;
