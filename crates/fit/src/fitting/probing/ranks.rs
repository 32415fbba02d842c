//! Ranks that are simulated: those that differ, each by itself.

use crate::compile::RankClass;
use crate::probe::{PeakMemory, ProbeReport};

use super::runner::ProbeOutcome;
use crate::fitting::recommendation::headroom_policy::VariantHeadroom;

/// The probe of a job from those of its ranks: one that runs out of memory ends all. Nothing where none was run.
pub(super) fn together(ranks: Vec<(&RankClass, ProbeOutcome)>) -> Option<ProbeOutcome> {
    let wall_ms = ranks.iter().map(|(_, probed)| probed.wall_ms).sum();
    let stands_for: Vec<String> = ranks.iter().map(|(class, _)| class.ranks()).collect();
    let mut uncertainties = Vec::new();
    let mut reports = Vec::new();
    for (class, probed) in ranks {
        uncertainties.extend(probed.uncertainties);
        let rank = u32::try_from(class.rank).unwrap_or(u32::MAX);
        reports.push((rank, probed.report));
    }
    uncertainties.sort_unstable();
    uncertainties.dedup();
    let of_all = match reports.as_slice() {
        // It is not worth naming.
        [(_, only)] => only.cause.clone(),
        _ => None,
    };
    let mut report = ProbeReport::of_ranks(reports)?;
    report.cause = of_all.or(report.cause);
    for (rank, stands_for) in report.ranks.iter_mut().zip(stands_for) {
        rank.stands_for = Some(stands_for);
    }
    Some(ProbeOutcome {
        report,
        wall_ms,
        uncertainties,
        headroom: VariantHeadroom::default(),
    })
}

/// The most memory of a probe's steps.
pub(super) fn peaks(report: &ProbeReport) -> PeakMemory {
    PeakMemory {
        peak_allocated_bytes: report.peak_allocated_bytes,
        peak_reserved_bytes: report.peak_reserved_bytes,
    }
}
