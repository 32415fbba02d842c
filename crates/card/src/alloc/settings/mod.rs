//! How the allocator behaves: what `PYTORCH_CUDA_ALLOC_CONF` can say. See Note [Settings].
//!
//! `config` holds it, `config_text` reads it, `divisions` is one of its settings.

pub(in crate::alloc) mod config;
pub(in crate::alloc) mod config_text;
pub(in crate::alloc) mod divisions;
