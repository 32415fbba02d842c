//! Whether a batch lasts.

use super::steps::Steps;
use crate::fitting::Result;
use crate::fitting::composite::{Simulated, simulated_probe};
use crate::fitting::recommendation::headroom::VariantHeadroom;
use crate::limits::Cancel;
use crate::model::{Request, Variant};
use crate::probe::{Detail, PeakMemory, SoakReport, Verdict};
use crate::units::Bytes;

/// Tells batches that last from others.
pub(super) struct Safety<'a> {
    /// The question about the longest length, which a short course may not come to.
    pub(super) longest: Request,
    /// What is left free.
    pub(super) kept: VariantHeadroom,
    pub(super) cancel: &'a Cancel,
}

impl Safety<'_> {
    /// One step of the longest length in a process of its own.
    pub(super) fn alone(&self, variant: &Variant, batch: u64) -> Result<Option<Simulated>> {
        let detail = Detail::Verdict;
        let simulated = simulated_probe(&self.longest, variant, batch, detail, self.cancel)?;
        Ok(simulated.map(|simulated| simulated.keeping(self.kept.clone())))
    }

    /// What a batch takes at most, where it lasts: its steps, of which this came, have no retry after the second and leave headroom, or
    /// also go so without that memory, as for a fit; and a step of the longest length alone is safe.
    pub(super) fn lasts(
        &self,
        steps: &Steps,
        variant: &Variant,
        batch: u64,
        report: &SoakReport,
    ) -> Result<Option<PeakMemory>> {
        if report.verdict != Verdict::Fits {
            return Ok(None);
        }
        let Some(mut alone) = self.alone(variant, batch)? else {
            return Ok(None);
        };
        let room = steps.limit().saturating_sub(alone.headroom());
        let lasts = Bytes(report.peak_reserved_bytes) <= room
            || steps.run_within(room, batch)?.verdict == Verdict::Fits;
        if !lasts || !alone.is_safe(variant, batch)? {
            return Ok(None);
        }
        let mut peaks = PeakMemory {
            peak_allocated_bytes: report.peak_allocated_bytes,
            peak_reserved_bytes: report.peak_reserved_bytes,
        };
        if !steps.come_to_all() {
            let step = alone.report();
            raise(
                &mut peaks,
                step.peak_allocated_bytes,
                step.peak_reserved_bytes,
            );
        }
        Ok(Some(peaks))
    }
}

/// Takes in that something else may take so much.
pub(super) fn raise(peaks: &mut PeakMemory, allocated: u64, reserved: u64) {
    peaks.peak_allocated_bytes = peaks.peak_allocated_bytes.max(allocated);
    peaks.peak_reserved_bytes = peaks.peak_reserved_bytes.max(reserved);
}
