//! Faults in the middle of a real probe, to prove on a real GPU that nothing but the probe is lost.
//!
//! The server's environment plans them, with `BATCHFIT_FAULT` in its environment; no request can.

use std::fs::File;
use std::path::PathBuf;
use std::process::{self, Command};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use crate::device::{Launch, LaunchError, Launcher, StepReport};
use crate::program::{Convolution, Program};
use crate::units::Bytes;

/// An address where no card has memory.
const NOWHERE: u64 = 0x4000;
/// How often `finish_step` was called when the fault comes: after construction and the first step.
const STEPS_BEFORE: u32 = 2;

/// What goes wrong in the second step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process exits with status 9.
    Exit,
    /// The process is killed.
    Kill,
    /// The process never goes on.
    Hang,
    /// The process goes on after so many seconds, in which others can do something.
    Pause(u64),
    /// Kernels are given addresses without memory.
    IllegalAccess,
}

/// An unknown fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is none of exit, kill, hang, pause=SECONDS, illegal-access")]
pub struct UnknownFault {
    given: String,
}

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(given: &str) -> Result<Fault, UnknownFault> {
        let unknown = || UnknownFault {
            given: given.to_owned(),
        };
        if let Some(seconds) = given.strip_prefix("pause=") {
            return seconds.parse().map(Fault::Pause).map_err(|_| unknown());
        }
        Ok(match given {
            "exit" => Fault::Exit,
            "kill" => Fault::Kill,
            "hang" => Fault::Hang,
            "illegal-access" => Fault::IllegalAccess,
            _ => return Err(unknown()),
        })
    }
}

/// A fault, and whether it is to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultPlan {
    /// What happens.
    pub fault: Fault,
    /// It happens only where this file can be created, so once; without one, in every probe.
    pub once: Option<PathBuf>,
}

impl FaultPlan {
    fn is_due(&self) -> bool {
        match &self.once {
            Some(file) => File::create_new(file).is_ok(),
            None => true,
        }
    }
}

/// A launcher that fails as planned.
pub(super) struct Faulty<'a> {
    launcher: &'a mut dyn Launcher,
    plan: Option<&'a FaultPlan>,
    steps: u32,
    misleads: bool,
}

impl<'a> Faulty<'a> {
    pub(super) fn new(launcher: &'a mut dyn Launcher, plan: Option<&'a FaultPlan>) -> Faulty<'a> {
        Faulty {
            launcher,
            plan,
            steps: 0,
            misleads: false,
        }
    }

    fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::Exit => process::exit(9),
            Fault::Kill => {
                let pid = process::id().to_string();
                // Without the program, the next line does about the same.
                let _ = Command::new("kill").args(["-KILL", &pid]).status();
                process::abort();
            }
            Fault::Hang => loop {
                thread::park();
            },
            Fault::Pause(seconds) => thread::sleep(Duration::from_secs(seconds)),
            Fault::IllegalAccess => self.misleads = true,
        }
    }
}

impl Launcher for Faulty<'_> {
    fn convolution_plans(&mut self, convolution: &Convolution) -> Result<Vec<Bytes>, LaunchError> {
        self.launcher.convolution_plans(convolution)
    }

    fn further_plans(
        &mut self,
        convolution: &Convolution,
        listed: usize,
    ) -> Result<Vec<Bytes>, LaunchError> {
        self.launcher.further_plans(convolution, listed)
    }

    fn prepare(&mut self, program: &Program, batch: u64) -> Result<(), LaunchError> {
        self.launcher.prepare(program, batch)
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), LaunchError> {
        if self.steps == STEPS_BEFORE
            && let Some(plan) = self.plan.take()
            && plan.is_due()
        {
            self.inject(plan.fault);
        }
        if !self.misleads {
            return self.launcher.launch(launch);
        }
        let addresses = vec![NOWHERE; launch.addresses.len()];
        self.launcher.launch(&Launch {
            addresses: &addresses,
            ..*launch
        })
    }

    fn finish_step(&mut self) -> Result<StepReport, LaunchError> {
        self.steps += 1;
        self.launcher.finish_step()
    }
}
