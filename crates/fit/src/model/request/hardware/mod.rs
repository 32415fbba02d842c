//! Where a request runs: devices, cards and machines by name, and how much of their memory.

mod device;
mod memory_limit;
pub mod nicknames;
mod words;

pub use device::{DeviceChoice, is_host_name};
pub(super) use device::{machines, ranks, read};
pub use memory_limit::{
    CalibrationSource, HeadroomCalibration, parse_memory_limit, parse_size, strategy,
};
pub(super) use memory_limit::{bytes, of_card, requested};
