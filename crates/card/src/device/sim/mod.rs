//! Cards that exist only as numbers: what `sim:NAME` names.

mod calibrated;
mod catalogue;
mod heuristics;
mod instances;
mod launcher;
mod memory;
pub mod workspaces;

pub use calibrated::{LOCAL, calibration_turn, calibrations_of, local, look_in};
pub use catalogue::{
    CARDS, CONTEXT_OVERHEAD, Card, CardSpec, Ceilings, Chip, PROCESS_OVERHEAD, RANK_OVERHEAD,
    SHARDED_OVERHEAD, UNMEASURED, Workspaces, names,
};
pub use heuristics::{Heuristics, installed_heuristics, set_heuristics};
pub use instances::{Cloud, Instance, clouds};
pub use launcher::{Estimates, SimulatedLauncher};
pub use memory::CardMemory;
