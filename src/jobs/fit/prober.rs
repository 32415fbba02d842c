//! What a fit asks of a device.

use std::collections::BTreeMap;

use crate::jobs::EngineError;
use crate::model::Variant;
use crate::probe::{Detail, Evidence, ProbeReport, Verdict};
use crate::units::Bytes;

use super::doubts::Doubt;
use super::watch::Watch;

/// A finished probe.
#[derive(Debug, Clone)]
pub(super) struct Probed {
    /// What it found.
    pub(super) report: ProbeReport,
    /// How long it took, loading included.
    pub(super) wall_ms: f64,
    /// What it had to assume, in order.
    pub(super) doubts: Vec<Doubt>,
}

/// Runs probes of the model of one request on one device.
pub(super) trait Prober {
    /// Runs three steps of `batch`, with `limit` for the allocator.
    fn probe(
        &mut self,
        variant: &Variant,
        batch: u64,
        limit: Bytes,
        detail: Detail,
    ) -> Result<Probed, EngineError>;

    /// Whether its kernels run.
    fn evidence(&self) -> Evidence;

    /// The device, as a request would name it.
    fn device(&self) -> &str;
}

/// A prober that remembers the probes of one variant, and tells a watch of each new one.
pub(super) struct Bench<'a> {
    prober: &'a mut dyn Prober,
    watch: &'a Watch<'a>,
    variant: Variant,
    limit: Bytes,
    /// By accumulation and batch.
    seen: BTreeMap<(u32, u64), Probed>,
    /// Why steps did not run, for another reason than memory. Nothing is known of memory then.
    failure: Option<String>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        prober: &'a mut dyn Prober,
        watch: &'a Watch<'a>,
        variant: Variant,
        limit: Bytes,
    ) -> Bench<'a> {
        Bench {
            prober,
            watch,
            variant,
            limit,
            seen: BTreeMap::new(),
            failure: None,
        }
    }

    /// Why steps did not run, where the last probe said so.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    pub(super) fn evidence(&self) -> Evidence {
        self.prober.evidence()
    }

    /// What the probe of `batch`, which was run, had to assume.
    pub(super) fn doubts(&self, batch: u64) -> &[Doubt] {
        let probed = self.seen.get(&(self.variant.accumulation, batch));
        probed.map_or(&[], |probed| &probed.doubts)
    }

    pub(super) fn limit(&self) -> Bytes {
        self.limit
    }

    pub(super) fn variant(&self) -> &Variant {
        &self.variant
    }

    /// The probe of `batch` as the variant says, run now unless it was run before.
    pub(super) fn probe(&mut self, batch: u64) -> Result<&ProbeReport, EngineError> {
        self.probe_accumulating(self.variant.accumulation, batch)
    }

    /// The same with another number of micro-steps.
    pub(super) fn probe_accumulating(
        &mut self,
        accumulation: u32,
        batch: u64,
    ) -> Result<&ProbeReport, EngineError> {
        self.run(accumulation, batch, Detail::Verdict)
    }

    /// The same with what the peak was made of.
    pub(super) fn probe_in_full(
        &mut self,
        accumulation: u32,
        batch: u64,
    ) -> Result<&ProbeReport, EngineError> {
        let key = (accumulation, batch);
        // A real probe is always written down in full, because it takes seconds anyway.
        let is_brief = |probed: &Probed| probed.report.at_peak.is_empty();
        if self.evidence() == Evidence::Simulated && self.seen.get(&key).is_some_and(is_brief) {
            self.seen.remove(&key);
        }
        self.run(accumulation, batch, Detail::Full)
    }

    fn run(
        &mut self,
        accumulation: u32,
        batch: u64,
        detail: Detail,
    ) -> Result<&ProbeReport, EngineError> {
        let key = (accumulation, batch);
        if !self.seen.contains_key(&key) {
            let note = match self.prober.evidence() {
                Evidence::Simulated => "simulating",
                Evidence::Probed => "probing on the GPU",
            };
            self.watch
                .before(batch, &format!("{}: {note} batch {batch}", self.variant))?;
            let variant = Variant {
                accumulation,
                ..self.variant.clone()
            };
            let probed = self.prober.probe(&variant, batch, self.limit, detail)?;
            self.watch.after();
            if probed.report.verdict == Verdict::Failed {
                return Err(self.failed(&probed.report));
            }
            self.seen.insert(key, probed);
        }
        Ok(&self.seen[&key].report)
    }

    /// A probe under another limit. Not remembered.
    pub(super) fn probe_within(
        &mut self,
        limit: Bytes,
        batch: u64,
    ) -> Result<ProbeReport, EngineError> {
        self.watch.before(
            batch,
            &format!("{}: simulating batch {batch} within {limit}", self.variant),
        )?;
        let probed = self
            .prober
            .probe(&self.variant, batch, limit, Detail::Verdict)?;
        self.watch.after();
        Ok(probed.report)
    }

    fn failed(&mut self, report: &ProbeReport) -> EngineError {
        let cause = report.cause.as_deref().unwrap_or("the steps did not run");
        let cause = format!("batch {}: {cause}", report.batch);
        self.failure = Some(cause.clone());
        EngineError::DeviceFailed {
            device: self.prober.device().to_owned(),
            cause,
        }
    }

    /// The report of a probe that was run with this many micro-steps.
    pub(super) fn seen(&self, accumulation: u32, batch: u64) -> Option<&ProbeReport> {
        let probed = self.seen.get(&(accumulation, batch));
        probed.map(|probed| &probed.report)
    }

    /// All probes run, in the order of their batches.
    pub(super) fn probes(&self) -> impl Iterator<Item = (u32, &Probed)> {
        self.seen
            .iter()
            .map(|((accumulation, _), probed)| (*accumulation, probed))
    }
}
