//! What programs run on, and the simulated cards.

pub use crate::program::Capability;
use crate::program::{Call, Convolution, Program};
use crate::units::Bytes;

pub mod sim;

/// Runs the launches of a program on memory that its caller allocates.
pub trait Launcher {
    /// The scratch memory that each plan for a convolution wants, in the order PyTorch tries them: the first at least.
    fn convolution_plans(&mut self, convolution: &Convolution) -> Result<Vec<Bytes>, LaunchError>;

    /// The plans after the first so many, where [`Launcher::convolution_plans`] did not list them: asked for when all that were listed were
    /// refused.
    fn further_plans(
        &mut self,
        _convolution: &Convolution,
        _listed: usize,
    ) -> Result<Vec<Bytes>, LaunchError> {
        Ok(Vec::new())
    }

    /// Gets ready for a program at a batch, before anything is allocated: finds all that cannot be launched, compiles kernels, asks about
    /// convolutions.
    fn prepare(&mut self, program: &Program, batch: u64) -> Result<(), LaunchError>;

    /// Queues one launch.
    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), LaunchError>;

    /// Waits for everything queued and tells what happened since the last call.
    fn finish_step(&mut self) -> Result<StepReport, LaunchError>;
}

/// A call with everything that a batch decides.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// What to compute.
    pub call: &'a Call,
    /// The batch size: the value of every symbolic length.
    pub batch: u64,
    /// Addresses of all allocated tensors, by [`crate::program::TensorId`].
    pub addresses: &'a [u64],
    /// Sizes of tensors, likewise; zero for a convolution's workspace, which its plan knows.
    pub sizes: &'a [Bytes],
    /// For a convolution, which of its plans.
    pub plan: usize,
}

/// What a finished step did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepReport {
    /// Launches queued.
    pub launches: u64,
    /// The loss of each micro-step.
    pub losses: Vec<f64>,
    /// Milliseconds from the first launch to the end of the last, on the device's clock.
    pub elapsed_ms: f64,
}

/// Why a launch did not happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The operation has no kernel on this kind of device.
    #[error(
        "a GPU cannot run this yet: {operation}; ask about a simulated card (`sim:h200`) instead"
    )]
    Unsupported {
        /// Which operation.
        operation: String,
    },
    /// A library or the driver refused.
    #[error("{call} failed: {detail}")]
    Failed {
        /// Which call.
        call: String,
        /// What it said.
        detail: String,
    },
}
