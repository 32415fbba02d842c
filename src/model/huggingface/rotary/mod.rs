//! Decoders with rotary embeddings.

mod llama;
pub(super) mod rotation;

pub(super) use llama::{CLASSES, build};
