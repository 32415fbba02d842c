//! Fits that are made of several: one for each length, and a soak of what they recommend; and the simulated probes beside them.

use super::engine::{FitEngine, card, simulation};
use super::probing::runner::{ProbeOutcome, Runner as _, StepTime};
use super::probing::simulator::Simulator;
use super::recommendation::headroom::VariantHeadroom;
use super::{lengths, soak};
use crate::fitting::Result;
use crate::limits::Cancel;
use crate::model::{Request, Variant};
use crate::probe::{Detail, ProbeReport};
use crate::units::Bytes;
use crate::{FitResult, Headroom, Work};

impl FitEngine {
    /// Answers a request with several lengths, or with a soak.
    pub(super) fn fit_in_parts(&self, request: &Request, work: &Work<'_>) -> Result<FitResult> {
        // What one other key alone asks for is left free of what lasts.
        let is_soaked = request.soak.is_some() && card(request).is_some();
        let confirmed = is_soaked.then(|| request.confirmed());
        let asked = confirmed.as_ref().unwrap_or(request);
        let (mut result, each) = match &asked.lengths {
            Some(lengths) => {
                let (result, each) = lengths::fit_each(self, asked, lengths, work)?;
                (result, Some(each))
            }
            None => (self.answer(&asked.alone(), work)?, None),
        };
        if let Some(course) = &request.soak {
            soak::last(request, course, &mut result, work)?;
        }
        // Another variant may be the best of what lasts.
        let best = result.variants.first().map(|first| &first.training);
        if let (Some(each), Some(best), Some(table)) = (&each, best, &result.lengths)
            && table.training != *best
        {
            result.lengths = Some(each.table_of(best)?);
        }
        Ok(result)
    }
}

/// A simulated probe beside a fit.
pub(super) struct Simulated {
    simulator: Simulator,
    probed: ProbeOutcome,
    limit: Bytes,
}

impl Simulated {
    /// The headroom at this batch.
    pub(super) fn headroom(&self) -> Bytes {
        self.probed.headroom(self.limit)
    }

    /// The same probe where answers keep this headroom.
    pub(super) fn keeping(mut self, kept: VariantHeadroom) -> Simulated {
        self.probed.headroom = kept;
        self
    }

    /// The same for the answer's document.
    pub(super) fn document(&self) -> Headroom {
        self.probed.document(self.limit)
    }

    /// Whether the batch that it was for would be safe.
    pub(super) fn is_safe(&mut self, variant: &Variant, batch: u64) -> Result<bool> {
        let probe = |limit| self.simulator.probe(variant, batch, limit, Detail::Verdict);
        let headroom = self.probed.headroom(self.limit);
        self.probed.is_safe(headroom, self.limit, probe)
    }

    /// What the probe found.
    pub(super) fn report(&self) -> &ProbeReport {
        &self.probed.report
    }
}

/// Simulates one batch of a variant on the card that a request names; `None` where that is a real one.
pub(super) fn simulated_probe(
    request: &Request,
    variant: &Variant,
    batch: u64,
    detail: Detail,
    cancel: &Cancel,
) -> Result<Option<Simulated>> {
    let Some(card) = card(request) else {
        return Ok(None);
    };
    let (mut simulator, budget) = simulation(request, card, cancel)?;
    let limit = budget.limit(&variant.parallel);
    let mut probed = simulator.probe(variant, batch, limit, detail)?;
    probed.headroom = VariantHeadroom::of(request, variant);
    Ok(Some(Simulated {
        simulator,
        probed,
        limit,
    }))
}

/// How long an optimizer step of so many samples in each of so many micro-steps takes on the card that a request names.
pub(super) fn simulated_step_time(
    request: &Request,
    variant: &Variant,
    (batch, steps): (u64, u64),
    cancel: &Cancel,
) -> Result<StepTime> {
    let Some(card) = card(request) else {
        return Ok(StepTime::Unknown("it did not run on the card"));
    };
    let (mut simulator, _) = simulation(request, card, cancel)?;
    simulator.step_time(variant, batch, steps)
}
