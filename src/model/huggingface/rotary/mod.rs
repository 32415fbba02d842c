//! Decoders with rotary embeddings.

mod llama;

pub(super) use llama::{CLASSES, build};
