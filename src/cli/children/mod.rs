//! Processes that batchfit starts itself, so that what goes wrong in them ends nothing else.

pub(super) mod answer;
pub(super) mod worker;
