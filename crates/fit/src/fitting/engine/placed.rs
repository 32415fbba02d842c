//! Which device of this machine a kind of card means.

use std::borrow::Cow;

use crate::device::sim::Card;
use crate::model::{DeviceChoice, Request};
use crate::probe::ProbeReport;
use crate::{EngineError, FitResult};

use super::super::devices::{Inventory, unavailable};

/// A request whose device is one of this machine, or simulated.
pub(in crate::fitting) struct Placed<'a> {
    pub(in crate::fitting) request: Cow<'a, Request>,
    /// What a reader is told of a device that is not the one that was meant.
    note: Option<String>,
}

/// Places a request whose device is a kind of card that this machine does not have: it is simulated. `inventory` is asked
/// where that has to be known.
pub(in crate::fitting) fn placed(
    request: &Request,
    inventory: impl FnOnce() -> Inventory,
) -> Result<Placed<'_>, EngineError> {
    let here = |request| Placed {
        request,
        note: None,
    };
    match &request.device {
        DeviceChoice::Auto | DeviceChoice::Cuda(_) | DeviceChoice::Sim(_) => {
            Ok(here(Cow::Borrowed(request)))
        }
        DeviceChoice::Kind(kind) => {
            let Inventory { gpus, lost, .. } = inventory();
            if lost.is_some() || gpus.iter().any(|gpu| is_of_kind(&gpu.name, kind)) {
                return Ok(here(Cow::Borrowed(request)));
            }
            let on_simulated = request.on(DeviceChoice::Sim(kind.clone()));
            Ok(Placed {
                request: Cow::Owned(on_simulated),
                note: Some(format!(
                    "simulated: neither this machine nor any agent of the service has a card of the kind {kind}"
                )),
            })
        }
        DeviceChoice::Host(host, _) => {
            let missing =
                format!("{host} is another machine, and only a service knows agents on others");
            Err(unavailable(&request.device.to_string(), missing))
        }
    }
}

/// Whether the card that the driver calls this is of a kind in the catalogue.
pub(in crate::fitting) fn is_of_kind(product: &str, kind: &str) -> bool {
    Card::of_product(product).is_some_and(|card| card.name == kind)
}

impl Placed<'_> {
    /// Tells the reader of a fit.
    pub(super) fn with_note(self, mut result: FitResult) -> FitResult {
        let Some(note) = self.note else {
            return result;
        };
        result.recommendation.notes.push(note.clone());
        for variant in &mut result.variants {
            variant.recommendation.notes.push(note.clone());
        }
        result
    }

    /// Tells the reader of a probe.
    pub(super) fn told_of_probe(self, mut report: ProbeReport) -> ProbeReport {
        report.notes.extend(self.note);
        report
    }
}
