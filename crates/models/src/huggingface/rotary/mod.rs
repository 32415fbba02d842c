//! Decoders with rotary embeddings.
//!
//! Most of transformers' families of decoders are Llama's code with a few lines changed. [`decoder`] lists what changes,
//! [`families`] reads it from configs, and the other files are the code itself.

mod attention;
mod decoder;
mod experts;
mod families;
mod latent;
mod layer;
mod masks;
mod mlp;
mod model;
mod norm;
mod rope;
pub(super) mod rotation;
#[cfg(test)]
mod tests;

pub(super) use model::build;
