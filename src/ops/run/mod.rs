//! What each operation allocates, saves and launches, forward and backward.
//!
//! One file for each family. Every rule is PyTorch 2.11's, observed as Note [Provenance] says.

mod apply;
mod attention;
mod convolution;
mod create;
mod elementwise;
mod embedding;
mod indexed;
mod join;
mod joint;
mod linear;
mod loss;
mod matmul;
mod normalization;
mod normalize;
mod opaque;
mod pointwise;
mod pooling;
mod reduction;
mod resample;
mod shape;
mod softmax;
mod unseen;
mod view;

pub(crate) use attention::Request as AttentionRequest;
