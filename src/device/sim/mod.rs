//! Cards that exist only as numbers: what `sim:NAME` names.

mod catalogue;

pub use catalogue::{CARDS, Card, PROCESS_OVERHEAD, Workspaces};
