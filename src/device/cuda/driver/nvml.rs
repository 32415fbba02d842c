//! What the management library knows of the machine's cards, without opening a context on any.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

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
    /// Whether it is divided into instances; `None` where it cannot be.
    pub mig: Option<bool>,
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
            let others = processes.iter().filter(|process| process.pid != own_pid);
            Ok(Card {
                index,
                name: device.name()?,
                uuid: device.uuid()?,
                total: Bytes(memory.total),
                free: Bytes(memory.free),
                used_by_others: others.filter_map(held).sum(),
                driver: driver.clone(),
                mig: device.mig_mode().ok().map(|mode| mode.current != 0),
            })
        })
        .collect()
}

fn held(process: &ProcessInfo) -> Option<Bytes> {
    match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
        UsedGpuMemory::Unavailable => None,
    }
}

/// How a card's memory is used at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// What nobody holds.
    pub free: Bytes,
    /// What this process holds. In most containers processes are not listed, or by numbers that they do not
    /// know themselves by; then this is unknown.
    pub own: Option<Bytes>,
}

/// Reads one card's memory again and again.
pub struct Meter {
    nvml: Nvml,
    uuid: String,
}

impl Meter {
    /// A meter of the card of this UUID.
    pub fn of(uuid: &str) -> Result<Meter, NvmlError> {
        let meter = Meter {
            nvml: Nvml::init()?,
            uuid: uuid.to_owned(),
        };
        meter.read()?;
        Ok(meter)
    }

    /// How the card's memory is used now.
    pub fn read(&self) -> Result<Usage, NvmlError> {
        let device = self.nvml.device_by_uuid(self.uuid.as_str())?;
        let free = Bytes(device.memory_info()?.free);
        let processes = device.running_compute_processes().unwrap_or_default();
        let own = own_number().and_then(|own| processes.iter().find(|process| process.pid == own));
        Ok(Usage {
            free,
            own: own.and_then(held),
        })
    }
}

/// This process's number on the machine. Unknown inside a container with numbers of its own, where the same number
/// may be another process's outside.
fn own_number() -> Option<u32> {
    /// The first namespace of process numbers; Linux gives it this name for good (`PROC_PID_INIT_INO`).
    const FIRST: &str = "pid:[4026531836]";
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    (namespace.as_os_str() == FIRST).then(std::process::id)
}
