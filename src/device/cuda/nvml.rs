//! What the management library knows of the machine's cards, without opening a context on any.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use crate::units::Bytes;

/// A card of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Its index in the management library's order, which is that of the PCI bus.
    pub index: u32,
    /// The product, such as `NVIDIA H200`.
    pub name: String,
    /// `GPU-` and a UUID.
    pub uuid: String,
    /// All of its memory.
    pub total: Bytes,
    /// What nobody holds.
    pub free: Bytes,
    /// What other processes hold on it. In a container they may be invisible; then this is zero.
    pub used_by_others: Bytes,
    /// The driver's version, such as `580.159.03`.
    pub driver: String,
}

/// The cards of this machine, or why that cannot be said: usually that it has none.
pub fn cards() -> Result<Vec<Card>, NvmlError> {
    let nvml = Nvml::init()?;
    let driver = nvml.sys_driver_version()?;
    let own_pid = std::process::id();
    (0..nvml.device_count()?)
        .map(|index| {
            let device = nvml.device_by_index(index)?;
            let memory = device.memory_info()?;
            // A card that does not say who uses it has no known other users.
            let processes = device.running_compute_processes().unwrap_or_default();
            let used_by_others = processes
                .iter()
                .filter(|process| process.pid != own_pid)
                .map(|process| match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Bytes(bytes),
                    UsedGpuMemory::Unavailable => Bytes::ZERO,
                })
                .sum();
            Ok(Card {
                index,
                name: device.name()?,
                uuid: device.uuid()?,
                total: Bytes(memory.total),
                free: Bytes(memory.free),
                used_by_others,
                driver: driver.clone(),
            })
        })
        .collect()
}
