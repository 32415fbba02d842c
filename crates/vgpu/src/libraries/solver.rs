//! cuSOLVER: what its functions need as work space.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]
