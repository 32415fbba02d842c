//! Launches that compute nothing.

use std::collections::BTreeMap;

use crate::device::{Launch, LaunchError, Launcher, StepReport};
use crate::program::{Convolution, Program};
use crate::units::Bytes;

use super::workspaces::{Lookup, Source, WorkspaceTable, tensor_bytes};

/// Knows what scratch memory a library would want, and launches nothing.
#[derive(Debug, Clone)]
pub struct SimulatedLauncher {
    launches: u64,
    workspaces: Lookup<'static>,
    /// Calls whose plans are in no table, and by how much each estimate may be short.
    estimated: BTreeMap<Convolution, Bytes>,
}

/// What is not known of the scratch memory of convolutions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimates {
    /// How many were never recorded.
    pub convolutions: usize,
    /// By how much the scratch memory of one may be larger than its estimate. They run one at a time.
    pub short_by: Bytes,
}

impl Estimates {
    /// What the reader of a probe should know.
    pub fn note(&self) -> String {
        format!(
            "the scratch memory of {} convolutions is estimated from similar ones that were measured on an H200",
            self.convolutions
        )
    }
}

impl Default for SimulatedLauncher {
    fn default() -> SimulatedLauncher {
        SimulatedLauncher {
            launches: 0,
            workspaces: Lookup::new(WorkspaceTable::h200()),
            estimated: BTreeMap::new(),
        }
    }
}

impl SimulatedLauncher {
    /// What is not known of the plans given since the last call, if there is something.
    pub fn take_estimates(&mut self) -> Option<Estimates> {
        let estimated = std::mem::take(&mut self.estimated);
        Some(Estimates {
            convolutions: estimated.len(),
            short_by: estimated.into_values().max()?,
        })
    }
}

impl Launcher for SimulatedLauncher {
    fn convolution_plans(&mut self, convolution: &Convolution) -> Result<Vec<Bytes>, LaunchError> {
        let plans = self.workspaces.plans(convolution);
        match plans.source {
            Source::Recorded | Source::Interpolated | Source::NotTheLibrary => {}
            Source::Estimated(_) => {
                // Most plans work on copies of some of the tensors, at most of all three: Note [Similar layers].
                let first = plans.workspaces.first().copied().unwrap_or(Bytes::ZERO);
                let short_by = Bytes(tensor_bytes(convolution).saturating_sub(first.0));
                self.estimated.insert(*convolution, short_by);
            }
        }
        Ok(plans.workspaces)
    }

    fn prepare(&mut self, _program: &Program, _batch: u64) -> Result<(), LaunchError> {
        Ok(())
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
