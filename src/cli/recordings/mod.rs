//! Commands about what was recorded: `batchfit replay`, `record-check` and `record-workspaces`.

pub(super) mod calibrate;
pub(super) mod check;
pub(super) mod replay;
pub(super) mod workspaces;
