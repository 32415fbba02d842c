//! cuDNN's convolutions through its backend graph API: which plans there are, in which order
//! PyTorch tries them, how much workspace each wants, and running one. And its fused attention.
//!
//! PyTorch (2.11, `benchmark=False`) asks cuDNN's instant heuristics for engine configurations,
//! drops those that lower the precision of their inputs (and, with TF32 off, those on tensor
//! cores), then builds and runs them one by one until one succeeds; a plan whose workspace cannot
//! be had counts as failed. After the last of them comes the fallback list, treated the same.
//! [`list_plans`] gives exactly that sequence. See Note [Plan order].
//!
//! Everything here needs a current CUDA context on the calling thread and belongs to that thread.
//! Nothing allocates device memory: workspaces come from the caller.
#![doc = include_str!("NOTES.md")]

mod absent;
mod attention;
mod candidates;
mod descriptor;
mod graph;
mod handle;
mod library;
mod operation;
mod plan;
mod record;
#[cfg(test)]
mod tests;

pub use absent::{AbsentCard, CardProperties, Clocks, NO_CARD_VISIBLE, Offer, environment};
pub use attention::{AttentionPlan, AttentionShape, GradientLayouts, Role};
pub use candidates::{Tf32, list_plans};
pub use graph::Layout;
pub use handle::{Handle, cuda_release, is_present, version};
pub use operation::{ALIGNMENT, DeviceAddresses};
pub use plan::ExecutionPlan;
pub use record::{BatchGrid, QueryTarget, WorkspaceRecording, record};

use operation::OperationGraph;

use cudarc::cudnn::sys::cudnnStatus_t;

use crate::shape::DType;

/// Why cuDNN gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudnnError {
    /// The library cannot be loaded.
    #[error("the cuDNN library was not found")]
    LibraryMissing,
    /// A call was answered with an error status.
    #[error("{call} failed with {status:?}")]
    Call {
        /// The function's name.
        call: &'static str,
        /// What it returned.
        status: cudnnStatus_t,
    },
    /// Operations on this element type are not run through cuDNN.
    #[error("cuDNN operations on {dtype:?} are not supported")]
    DType {
        /// The element type asked for.
        dtype: DType,
    },
    /// What cuDNN logs cannot be read, which is where it says what it refused.
    #[error("cuDNN's log cannot be read: it is not written, or not where CUDNN_LOGDEST_DBG says")]
    NoLog,
    /// No engine can run the operations.
    #[error("cuDNN has no engine for this")]
    NoEngine,
}

impl CudnnError {
    /// Whether the library has no way to do what was asked, as opposed to trouble while it tried.
    pub fn is_refusal(&self) -> bool {
        match self {
            CudnnError::DType { .. } | CudnnError::NoEngine => true,
            CudnnError::Call { status, .. } => {
                let name = format!("{status:?}");
                name.contains("NOT_SUPPORTED") || name.contains("BAD_PARAM")
            }
            CudnnError::LibraryMissing | CudnnError::NoLog => false,
        }
    }
}

/// Turns a status into a result.
fn check(call: &'static str, status: cudnnStatus_t) -> Result<(), CudnnError> {
    match status {
        cudnnStatus_t::CUDNN_STATUS_SUCCESS => Ok(()),
        status => Err(CudnnError::Call { call, status }),
    }
}
