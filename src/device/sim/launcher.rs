//! Launches that compute nothing.

use crate::device::{Launch, LaunchError, Launcher, StepReport};
use crate::program::Convolution;
use crate::units::Bytes;

use super::workspaces::WorkspaceTable;

/// Knows what scratch memory a library would want, and launches nothing.
#[derive(Debug, Clone, Default)]
pub struct SimulatedLauncher {
    launches: u64,
}

impl Launcher for SimulatedLauncher {
    fn convolution_plans(&mut self, convolution: &Convolution) -> Result<Vec<Bytes>, LaunchError> {
        Ok(WorkspaceTable::h200().plans(convolution).workspaces)
    }

    fn launch(&mut self, _launch: &Launch<'_>) -> Result<(), LaunchError> {
        self.launches += 1;
        Ok(())
    }

    fn finish_step(&mut self) -> Result<StepReport, LaunchError> {
        self.launches = 0;
        Ok(StepReport::default())
    }
}
