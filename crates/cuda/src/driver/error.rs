//! Why a GPU could not be opened or used.

use cudarc::driver::sys::{CUresult, cudaError_enum};

use crate::device::LaunchError;

/// Why a GPU could not be opened or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// Libraries that are loaded at run time are not installed.
    #[error("not found on this machine: {libraries}")]
    LibrariesMissing {
        /// Which, as a list for people.
        libraries: String,
    },
    /// The machine has fewer GPUs.
    #[error("there is no cuda:{index}; this machine has {count} CUDA devices")]
    NoSuchDevice {
        /// Which was asked for.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// The libraries found do not go together, or not with the driver.
    #[error("the driver serves CUDA {driver}: {detail}")]
    Releases {
        /// The newest release that the driver serves, such as `13.0`.
        driver: String,
        /// What does not go together.
        detail: String,
    },
    /// A library or the driver refused a call.
    #[error("{call} failed: {detail}")]
    Call {
        /// The function's name.
        call: &'static str,
        /// What it said.
        detail: String,
    },
    /// The kernels do not compile for this card.
    #[error("the kernels in {file} do not compile for {architecture}: {log}")]
    Compile {
        /// Which file.
        file: &'static str,
        /// Which architecture, such as `sm_90`.
        architecture: String,
        /// What the compiler printed.
        log: String,
    },
}

impl From<GpuError> for LaunchError {
    fn from(error: GpuError) -> LaunchError {
        match error {
            GpuError::Call { call, detail } => LaunchError::Failed {
                call: call.to_owned(),
                detail,
            },
            GpuError::LibrariesMissing { .. }
            | GpuError::NoSuchDevice { .. }
            | GpuError::Releases { .. }
            | GpuError::Compile { .. } => LaunchError::Failed {
                call: "opening the GPU".to_owned(),
                detail: error.to_string(),
            },
        }
    }
}

/// Turns a driver status into a result.
pub(crate) fn check(call: &'static str, status: CUresult) -> Result<(), GpuError> {
    match status {
        cudaError_enum::CUDA_SUCCESS => Ok(()),
        status => Err(GpuError::Call {
            call,
            detail: format!("{status:?}"),
        }),
    }
}
