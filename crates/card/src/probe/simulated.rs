//! A process on a simulated card. What it calls are templates, compiled here and nowhere else.

use super::report::{Evidence, ProbeReport};
use super::run::{Cancelled, Detail, Probe, Resources};
use super::soak::{Soak, SoakReport};
use crate::alloc::{Observer, Settings, SimulatedMemory};
use crate::device::Launcher;
use crate::device::sim::CardMemory;
use crate::limits::Cancel;
use crate::units::Bytes;

/// A process on a simulated card, which holds nothing before a run and nothing after it.
pub struct SimulatedProcess<'a> {
    /// What the card has.
    pub memory: CardMemory,
    /// The allocator's.
    pub settings: &'a Settings,
    /// What the allocator may reserve.
    pub limit: Bytes,
    /// What takes the launches.
    pub launcher: &'a mut dyn Launcher,
    /// What its programs follow from.
    pub evidence: Evidence,
    /// Ends a run soon after.
    pub cancel: &'a Cancel,
}

impl SimulatedProcess<'_> {
    /// Runs a probe.
    pub fn probe(&mut self, probe: &Probe<'_>) -> Result<ProbeReport, Cancelled> {
        let cancel = self.cancel;
        match probe.detail {
            Detail::Verdict | Detail::Full => {
                self.run((), |resources| probe.run_cancellable(resources, cancel))
            }
            Detail::Events => self.run(Vec::new(), |resources| {
                probe.run_cancellable(resources, cancel)
            }),
        }
    }

    /// Runs a soak.
    pub fn soak(&mut self, soak: &Soak<'_>) -> Result<SoakReport, Cancelled> {
        let cancel = self.cancel;
        self.run((), |resources| soak.run(resources, cancel))
    }

    fn run<O: Observer, T>(
        &mut self,
        observer: O,
        run: impl FnOnce(&mut Resources<'_, SimulatedMemory, O>) -> T,
    ) -> T {
        let allocator = &mut self.memory.allocator(self.settings, self.limit, observer);
        run(&mut Resources {
            allocator,
            launcher: &mut *self.launcher,
            evidence: self.evidence,
        })
    }
}
