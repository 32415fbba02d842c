//! cuSPARSE: descriptors and buffer sizes.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]
