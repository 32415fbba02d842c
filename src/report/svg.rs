//! Replay drawing (stub).
use crate::replay::ReplayReport;
/// Draws.
pub fn replay_svg(_: &ReplayReport) -> String {
    String::new()
}
