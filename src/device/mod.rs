//! What programs run on: simulated cards and real ones.

pub use batchfit_card::device::*;

#[allow(unsafe_code)]
pub mod cuda;
