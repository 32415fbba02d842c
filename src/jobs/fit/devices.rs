//! Which devices there are.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::device::sim::{CARDS, Card, PROCESS_OVERHEAD};
use crate::jobs::{DeviceKind, DeviceSummary, EngineError};
use crate::model::{DeviceChoice, Invalid};
use crate::units::Bytes;
use crate::worker::Gpu;

/// What a worker found, when it was asked for GPUs.
#[derive(Debug, Clone)]
pub(super) struct Inventory {
    pub(super) gpus: Vec<Gpu>,
    /// Why there are none, or why they cannot be used.
    pub(super) missing: Option<String>,
}

/// What was listed last. A listing starts a process, so requests that come at the same time share one.
#[derive(Debug, Default)]
pub(super) struct Listed(Mutex<Option<(Instant, Inventory)>>);

impl Listed {
    /// The last one, if it is no older than this, or else a new one.
    pub(super) fn within(&self, age: Duration, list: impl FnOnce() -> Inventory) -> Inventory {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, inventory)) = &*known
            && when.elapsed() <= age
        {
            return inventory.clone();
        }
        let inventory = list();
        *known = Some((Instant::now(), inventory.clone()));
        inventory
    }
}

/// A device that was asked for and is there.
pub(super) enum Resolved {
    Simulated(&'static Card),
    /// As it was asked for, `cuda:N` or `auto`, and the GPU that is meant as far as can be told beforehand.
    Cuda(String, Gpu),
}

/// The device that a request means.
pub(super) fn resolve(
    choice: &DeviceChoice,
    inventory: impl FnOnce() -> Inventory,
) -> Result<Resolved, EngineError> {
    let wanted = match choice {
        DeviceChoice::Sim(name) => {
            let unknown = || {
                Invalid::at(
                    "/device",
                    format!("there is no simulated device `sim:{name}`"),
                )
            };
            let card = Card::find(name).ok_or_else(unknown);
            return card.map(Resolved::Simulated).map_err(EngineError::Invalid);
        }
        // Which one it will be is decided when it is opened: nobody else may have it then.
        DeviceChoice::Auto => None,
        DeviceChoice::Cuda(number) => Some(*number),
    };
    let Inventory { gpus, missing } = inventory();
    if let Some(missing) = missing {
        return Err(unavailable(&choice.to_string(), missing));
    }
    let count = gpus.len();
    let mut meant = gpus
        .into_iter()
        .filter(|gpu| wanted.is_none_or(|wanted| gpu.ordinal == wanted));
    if let Some(gpu) = meant.next() {
        return Ok(Resolved::Cuda(choice.to_string(), gpu));
    }
    let missing = match count {
        0 => "this machine has no GPU".to_owned(),
        1 => "this machine has one GPU, `cuda:0`".to_owned(),
        count => format!(
            "this machine has {count} GPUs, `cuda:0` to `cuda:{}`",
            count - 1
        ),
    };
    Err(unavailable(&choice.to_string(), missing))
}

/// All devices: GPUs first.
pub(super) fn summaries(inventory: &Inventory) -> Vec<DeviceSummary> {
    let mut devices: Vec<_> = inventory
        .gpus
        .iter()
        .map(|gpu| real(gpu, inventory.missing.as_deref()))
        .collect();
    if let (true, Some(missing)) = (devices.is_empty(), &inventory.missing) {
        devices.push(absent(missing));
    }
    devices.extend(CARDS.iter().map(simulated));
    devices
}

/// The error of a request for a GPU that is not there.
pub(super) fn unavailable(device: &str, missing: String) -> EngineError {
    EngineError::DeviceUnavailable {
        device: device.to_owned(),
        missing,
        simulated: CARDS
            .iter()
            .map(|card| format!("sim:{}", card.name))
            .collect(),
    }
}

fn real(gpu: &Gpu, missing: Option<&str>) -> DeviceSummary {
    let free = Bytes(gpu.free_bytes);
    DeviceSummary {
        device: format!("cuda:{}", gpu.ordinal),
        kind: DeviceKind::Cuda,
        gpu: Some(gpu.name.clone()),
        memory_bytes: Some(gpu.total_bytes),
        usable_bytes: Some(free.saturating_sub(PROCESS_OVERHEAD).0),
        compute_capability: Some(dotted(gpu.compute)),
        multiprocessors: u32::try_from(gpu.multiprocessors).ok(),
        driver: gpu.driver.clone(),
        available: missing.is_none(),
        missing: missing.map(ToOwned::to_owned),
        source: "the driver".to_owned(),
    }
}

fn absent(missing: &str) -> DeviceSummary {
    DeviceSummary {
        device: "cuda:0".to_owned(),
        kind: DeviceKind::Cuda,
        gpu: None,
        memory_bytes: None,
        usable_bytes: None,
        compute_capability: None,
        multiprocessors: None,
        driver: None,
        available: false,
        missing: Some(missing.to_owned()),
        source: "the driver".to_owned(),
    }
}

fn simulated(card: &Card) -> DeviceSummary {
    DeviceSummary {
        device: format!("sim:{}", card.name),
        kind: DeviceKind::Simulated,
        gpu: Some(card.product.to_owned()),
        memory_bytes: Some(card.total_memory.0),
        usable_bytes: Some(card.available().0),
        compute_capability: Some(dotted(card.capability.compute)),
        multiprocessors: u32::try_from(card.capability.multiprocessors).ok(),
        driver: None,
        available: true,
        missing: None,
        source: card.source.to_owned(),
    }
}

fn dotted((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_listed_once_for_requests_that_come_together() {
        let listed = Listed::default();
        let mut times = 0;
        let mut list = |age| {
            listed.within(age, || {
                times += 1;
                Inventory {
                    gpus: Vec::new(),
                    missing: None,
                }
            });
        };

        list(Duration::MAX);
        list(Duration::MAX);
        list(Duration::ZERO);

        assert_eq!(times, 2);
    }
}
