//! Where a request runs: devices, cards and machines by name, and how much of their memory.

mod device;
mod memory_limit;
pub mod nicknames;
mod unknown;

pub use device::{CalibrationSource, DeviceChoice, HeadroomCalibration, is_host_name, strategy};
pub(super) use device::{machines, of_card, ranks, read, requested};
pub(super) use memory_limit::bytes;
pub use memory_limit::{parse_memory_limit, parse_size};
