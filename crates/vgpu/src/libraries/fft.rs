//! cuFFT: plans, and what they need.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]
