//! Encoders of text: BERT and those that follow it.

pub(super) mod albert;
pub(super) mod bert;
pub(super) mod deberta_v2;
mod disentangled;
pub(super) mod distilbert;
pub(super) mod electra;
mod embeddings;
mod encoder;
mod mpnet;
pub(super) mod roberta;
