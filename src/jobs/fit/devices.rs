//! Which devices there are.

use crate::device::sim::{CARDS, Card, PROCESS_OVERHEAD};
use crate::jobs::{DeviceKind, DeviceSummary, EngineError};
use crate::units::Bytes;
use crate::worker::Gpu;

/// What a worker found, when it was asked for GPUs.
#[derive(Debug, Clone)]
pub(super) struct Inventory {
    pub(super) gpus: Vec<Gpu>,
    /// Why there are none, or why they cannot be used.
    pub(super) missing: Option<String>,
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
