//! Launches that compute nothing.

use std::collections::BTreeSet;

use crate::device::{Launch, LaunchError, Launcher, StepReport};
use crate::program::Convolution;
use crate::units::Bytes;

use super::workspaces::{Lookup, Source, WorkspaceTable};

/// Knows what scratch memory a library would want, and launches nothing.
#[derive(Debug, Clone)]
pub struct SimulatedLauncher {
    launches: u64,
    workspaces: Lookup<'static>,
    /// Calls whose plans are in no table.
    estimated: BTreeSet<Convolution>,
}

impl Default for SimulatedLauncher {
    fn default() -> SimulatedLauncher {
        SimulatedLauncher {
            launches: 0,
            workspaces: Lookup::new(WorkspaceTable::h200()),
            estimated: BTreeSet::new(),
        }
    }
}

impl SimulatedLauncher {
    /// What the reader of a probe should know of the plans given since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        let estimated = std::mem::take(&mut self.estimated);
        if estimated.is_empty() {
            return Vec::new();
        }
        vec![format!(
            "the scratch memory of {} convolutions is estimated from similar ones: they are not among \
             those recorded on an H200",
            estimated.len()
        )]
    }
}

impl Launcher for SimulatedLauncher {
    fn convolution_plans(&mut self, convolution: &Convolution) -> Result<Vec<Bytes>, LaunchError> {
        let plans = self.workspaces.plans(convolution);
        match plans.source {
            Source::Recorded | Source::Interpolated | Source::NotTheLibrary => {}
            Source::Estimated(_) => {
                self.estimated.insert(*convolution);
            }
        }
        Ok(plans.workspaces)
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
