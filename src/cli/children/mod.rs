//! Processes that batchfit starts itself, so that what goes wrong in them ends nothing else.

pub(super) mod answer;
pub(super) mod heuristics;
pub(super) mod worker;
