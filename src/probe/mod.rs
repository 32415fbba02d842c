//! Runs a step program on a device for its three steps and gives the verdict.

mod report;

pub use report::{CategoryBytes, Evidence, ProbeReport, StepMemory, TimelinePoint, Verdict};
