//! Probes of a single batch, run while the client waits.

use std::time::Duration;

use super::document::LARGE_LANE;
use super::document::json;
use super::lanes::{ReadPermit, answering};
use super::queue::Checked;
use super::shares::{is_alone, permits_in_use};
use super::{EngineError, JobError, Jobs, ProbeDocument};
use crate::limits::CancelOnDrop;
use crate::model::Request;
use crate::probe::Detail;
use crate::store::{Probe, StoreError};
use batchfit_fit::Purpose;

/// How long a probe waits for its device before it gives up.
const PROBE_PATIENCE: Duration = Duration::from_mins(1);

/// How long a probe on simulated memory may take: the largest models take a second or two.
const SIMULATED_PROBE: Duration = Duration::from_mins(1);

/// The same on a GPU, where waiting, opening and probing have deadlines of their own.
const REAL_PROBE: Duration = Duration::from_mins(10);

/// A single batch to be tried.
#[derive(Debug)]
pub struct ProbeRequest {
    /// What is trained, and where.
    pub request: Request,
    /// Samples per micro-step.
    pub batch: u64,
    /// Whether each allocation and free is told; they are not stored.
    pub events: bool,
}

impl Jobs {
    /// Runs one batch, as soon as its device is free, and stores what was found.
    ///
    /// `permit` is that under which the request was read.
    pub async fn probe(
        &self,
        request_of_probe: ProbeRequest,
        permit: Option<ReadPermit>,
    ) -> Result<ProbeDocument, JobError> {
        let shared = &self.shared;
        let ProbeRequest {
            request,
            batch,
            events,
        } = request_of_probe;
        let (checked, large) = self
            .checked(request, Purpose::Probe(batch), "", permit)
            .await?;
        let Checked {
            request,
            fingerprint,
            shown,
            lane,
            for_agents,
            is_simulated,
            ..
        } = checked;
        let uploads = request.uploads().to_vec();
        let device = request.device.to_string();
        if for_agents {
            return Err(fit_instead(&request).into());
        }
        let entering = async {
            match large.filter(|_| lane == LARGE_LANE) {
                Some(permit) => (None, permit),
                None => shared.enter_with_permit(&lane).await,
            }
        };
        let place = tokio::time::timeout(PROBE_PATIENCE, entering);
        let place = tokio::select! {
            place = place => place.map_err(|_| JobError::DeviceBusy(device.clone()))?,
            () = shared.shutdown.cancelled() => return Err(JobError::ShuttingDown),
        };
        let memory = shared.memory(&lane, &request, is_alone()).await;
        let patience = request.timeout_seconds.map(Duration::from_secs);
        // Dropped with this future, as when the client goes away.
        let abandoned = CancelOnDrop::default();
        let cancel = abandoned.0.clone();
        let asked = permits_in_use();
        let working = self.on_thread("probe", move |engine| {
            let detail = if events { Detail::Events } else { Detail::Full };
            let probe = || engine.probe(&request, batch, detail, &cancel);
            let report = answering(&lane, &request, asked, probe);
            drop((place, memory));
            (request, report)
        });
        let most = if is_simulated {
            SIMULATED_PROBE
        } else {
            REAL_PROBE
        };
        let deadline = patience.map_or(most, |patience| patience.min(most));
        let working = tokio::time::timeout(deadline, working).await;
        let (request, report) = working.map_err(|_| JobError::TookTooLong(deadline))??;
        let mut report = report?;
        let events = report.events.take();
        let now = shared.db.now();
        let probe = Probe {
            id: shared.ids.next(now),
            fingerprint,
            model: request.model_name().to_owned(),
            device,
            batch: i64::try_from(batch).map_err(|_| StoreError::TooLarge {
                column: "batch",
                value: batch,
            })?,
            verdict: report.verdict.name().to_owned(),
            request: shown,
            report: json(&report).into(),
            created_at: now,
        };
        shared.db.add_probe(&probe, &uploads).await?;
        Ok(ProbeDocument {
            events,
            ..ProbeDocument::from(probe)
        })
    }

    /// A probe that ran earlier.
    pub async fn probe_by_id(&self, id: &str) -> Result<Option<ProbeDocument>, JobError> {
        let probe = self.shared.db.probe(id).await?;
        Ok(probe.map(ProbeDocument::from))
    }
}

/// Why agents run no probes, and what they do instead.
fn fit_instead(request: &Request) -> EngineError {
    let device = request.device.to_string();
    let missing = format!(
        "agents take fits, not single probes; ask POST /v1/fits for {device}, whose answer shows the probes around the largest batch, or run \
         `batchfit probe` on the machine itself"
    );
    EngineError::unavailable(&device, missing)
}

impl From<Probe> for ProbeDocument {
    fn from(probe: Probe) -> ProbeDocument {
        ProbeDocument {
            id: probe.id,
            request: probe.request,
            created_at: probe.created_at,
            report: probe.report.0,
            events: None,
        }
    }
}
