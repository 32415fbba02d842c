//! The workbench of a real worker: devices, compiled programs, probes.

use super::child::Workbench;
use super::protocol::{Answer, Opening, ProbeOrder, Refusal};

/// Opens devices and runs probes on them.
#[derive(Debug, Default)]
pub struct Bench {}

impl Workbench for Bench {
    fn open(&mut self, opening: Opening) -> Result<Answer, (Refusal, String)> {
        Err((Refusal::DeviceUnavailable, opening.device))
    }

    fn list(&mut self) -> Answer {
        Answer::Inventory {
            gpus: Vec::new(),
            missing: Some(String::new()),
        }
    }

    fn probe(&mut self, _: &ProbeOrder) -> Result<Answer, (Refusal, String)> {
        Err((Refusal::OutOfTurn, "no device is open".to_owned()))
    }
}
