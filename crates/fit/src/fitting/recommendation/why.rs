//! Why a batch is not larger: the peak, and the limit that binds, by name.

use crate::probe::{ProbeReport, Verdict};
use crate::units::Bytes;
use crate::{Limit, LimitKind, Why};

use crate::fitting::plan::Larger;

/// Where the allocator's limit comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitSource {
    /// The request names it.
    Asked,
    /// It is all that the device has for the allocator.
    Device,
}

/// What is known around an answer.
pub(crate) struct Around<'a> {
    /// The probe of the recommended batch, or of a batch of one where nothing fits.
    pub(crate) at: &'a ProbeReport,
    /// The probe above the largest batch without retries, where there is one.
    pub(crate) above: Option<&'a ProbeReport>,
    /// The largest batch without retries.
    pub(crate) largest: u64,
    /// Whether larger batches are not tried, whatever they need.
    pub(crate) at_ceiling: bool,
    /// The headroom.
    pub(crate) headroom: Bytes,
    /// The larger batch that is hardly faster, where a fast one was asked for.
    pub(crate) objective: Option<&'a Larger>,
    /// Whether a number of samples for each optimizer step was asked for.
    pub(crate) has_target: bool,
    /// Where the limit comes from.
    pub(crate) source: LimitSource,
}

impl Around<'_> {
    /// The peak of the recommended batch and the limit that binds.
    pub(crate) fn why(&self) -> Why {
        Why {
            at_peak: self.at.at_peak.clone(),
            peak: self.at.peak.clone(),
            limit: self.limit(),
        }
    }

    fn limit(&self) -> Limit {
        let named = |kind, batch, explanation| Limit {
            kind,
            batch,
            explanation,
            shortage: None,
        };
        if let Some(larger) = self.objective {
            let (largest, explanation) = larger.explained();
            return named(LimitKind::Objective, Some(largest), explanation);
        }
        if self.at.verdict == Verdict::Fits && self.at.batch < self.largest {
            let largest = self.largest;
            let (kind, explanation) = if self.has_target {
                let text = format!("batches up to {largest} run; `target_batch` needs no larger");
                (LimitKind::TargetBatch, text)
            } else {
                let free = self.headroom;
                let text = format!(
                    "batches up to {largest} run, but leave less than {free} of the limit free"
                );
                (LimitKind::Headroom, text)
            };
            return named(kind, Some(largest), explanation);
        }
        if self.at_ceiling {
            let explanation = format!("batches above {} are not tried", self.largest);
            return named(LimitKind::LargestTried, None, explanation);
        }
        match self.above {
            Some(above) if above.verdict != Verdict::Fits => self.refused(above),
            Some(_) | None => {
                let kind = self.memory(self.at, 0);
                let explanation = format!("no larger batch was tried beside {}", self.named(kind));
                named(kind, None, explanation)
            }
        }
    }

    /// What binds where a batch was refused memory, or had to ask twice.
    fn refused(&self, above: &ProbeReport) -> Limit {
        let (batch, limit) = (above.batch, Bytes(above.limit_bytes));
        let Some(shortage) = above.shortage else {
            let peak = Bytes(above.peak_allocated_bytes);
            return Limit {
                kind: LimitKind::Fragmentation,
                batch: Some(batch),
                explanation: format!(
                    "the tensors of batch {batch} take at most {peak} of {limit}, but the free blocks that the allocator keeps do \
                     not fit them, and it has to return some to the driver in the middle of a step"
                ),
                shortage: None,
            };
        };
        let requested = shortage.requested_bytes.unwrap_or(0);
        let needed = shortage.allocated_bytes.saturating_add(requested);
        let (asked, free) = (Bytes(requested), Bytes(shortage.free_bytes));
        let (kind, explanation) = if needed <= limit.0 {
            let largest = Bytes(shortage.largest_free_bytes);
            let pieces = shortage.free_pieces;
            let text = format!(
                "batch {batch} asks for {asked} where {} of {limit} are allocated; {free} lie free in {pieces} pieces, \
                 the largest of them {largest}",
                Bytes(shortage.allocated_bytes)
            );
            (LimitKind::Fragmentation, text)
        } else {
            let kind = self.memory(above, needed - limit.0);
            let text = format!(
                "batch {batch} asks for {asked} on top of {} of tensors: {} more than {}",
                Bytes(shortage.allocated_bytes),
                Bytes(needed - limit.0),
                self.named(kind)
            );
            (kind, text)
        };
        Limit {
            kind,
            batch: Some(batch),
            explanation,
            shortage: Some(shortage),
        }
    }

    /// Whose limit it is where `missing` bytes more would do.
    fn memory(&self, report: &ProbeReport, missing: u64) -> LimitKind {
        let others = self.others(report);
        match self.source {
            LimitSource::Asked => LimitKind::MemoryLimit,
            LimitSource::Device if others > 0 && missing <= others => LimitKind::OtherProcesses,
            LimitSource::Device => LimitKind::Device,
        }
    }

    /// Bytes that other processes held on the device.
    fn others(&self, report: &ProbeReport) -> u64 {
        let told = report.used_by_others_bytes.or(self.at.used_by_others_bytes);
        told.unwrap_or(0)
    }

    fn named(&self, kind: LimitKind) -> String {
        let limit = Bytes(self.at.limit_bytes);
        match kind {
            LimitKind::MemoryLimit => format!("the memory limit of {limit} that was asked for"),
            LimitKind::OtherProcesses => format!(
                "the {limit} that other processes leave, which hold {}",
                Bytes(self.others(self.at))
            ),
            LimitKind::Device
            | LimitKind::Fragmentation
            | LimitKind::Headroom
            | LimitKind::Objective
            | LimitKind::TargetBatch
            | LimitKind::Host
            | LimitKind::LargestTried => format!("the {limit} that the device has for PyTorch"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fitting::recommendation::why::*;
    use crate::probe::{Evidence, Shortage};

    const GIB: u64 = 1 << 30;

    fn report(batch: u64, verdict: Verdict, shortage: Option<Shortage>) -> ProbeReport {
        ProbeReport {
            peak_allocated_bytes: 12 * GIB,
            peak_reserved_bytes: 15 * GIB,
            model_allocated_bytes: GIB,
            shortage,
            ..ProbeReport::new(batch, verdict, Evidence::Simulated, Bytes::gib(16))
        }
    }

    fn shortage(allocated_bytes: u64) -> Shortage {
        Shortage {
            requested_bytes: Some(2 * GIB),
            allocated_bytes,
            reserved_bytes: 15 * GIB,
            free_bytes: 15 * GIB - allocated_bytes,
            free_pieces: 7,
            largest_free_bytes: GIB,
        }
    }

    fn limit(at: &ProbeReport, above: Option<&ProbeReport>, source: LimitSource) -> Limit {
        let around = Around {
            at,
            above,
            largest: 8,
            at_ceiling: false,
            headroom: Bytes::gib(1),
            objective: None,
            has_target: false,
            source,
        };
        around.limit()
    }

    #[test]
    fn tensors_that_would_fit_are_kept_out_by_fragmentation() {
        let at = report(8, Verdict::Fits, None);
        let above = report(9, Verdict::OutOfMemory, Some(shortage(13 * GIB)));

        let limit = limit(&at, Some(&above), LimitSource::Device);

        assert_eq!(limit.kind, LimitKind::Fragmentation);
        assert_eq!(
            limit.explanation,
            "batch 9 asks for 2.00 GiB where 13.00 GiB of 16.00 GiB are allocated; 2.00 GiB lie free in 7 pieces, the \
             largest of them 1.00 GiB"
        );
    }

    #[test]
    fn tensors_that_would_not_fit_name_whose_limit_it_is() {
        let mut at = report(8, Verdict::Fits, None);
        let above = report(9, Verdict::OutOfMemory, Some(shortage(15 * GIB)));

        let of = |at: &ProbeReport, source| limit(at, Some(&above), source).kind;
        let kinds = [LimitSource::Asked, LimitSource::Device].map(|source| of(&at, source));
        at.used_by_others_bytes = Some(3 * GIB);
        let shared = of(&at, LimitSource::Device);
        at.used_by_others_bytes = Some(GIB / 2);
        let hardly_shared = of(&at, LimitSource::Device);

        assert_eq!(kinds, [LimitKind::MemoryLimit, LimitKind::Device]);
        assert_eq!(
            [shared, hardly_shared],
            [LimitKind::OtherProcesses, LimitKind::Device]
        );
    }

    #[test]
    fn what_is_kept_free_is_named_where_larger_batches_run() {
        let at = report(6, Verdict::Fits, None);

        assert_eq!(
            limit(&at, None, LimitSource::Device).kind,
            LimitKind::Headroom
        );
    }

    #[test]
    fn retries_are_fragmentation() {
        let at = report(8, Verdict::Fits, None);
        let above = report(9, Verdict::FitsWithRetries, None);

        let limit = limit(&at, Some(&above), LimitSource::Asked);

        assert_eq!(
            (limit.kind, limit.batch),
            (LimitKind::Fragmentation, Some(9))
        );
    }
}
