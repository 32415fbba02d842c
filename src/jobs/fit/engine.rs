//! The engine of this process.

use std::path::PathBuf;

/// Answers requests with simulations, and with worker processes where there is a GPU.
#[derive(Debug)]
pub struct FitEngine {
    program: PathBuf,
}

impl FitEngine {
    /// An engine whose workers are `program worker`.
    pub fn new(program: PathBuf) -> FitEngine {
        FitEngine { program }
    }
}
