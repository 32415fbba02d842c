//! How long a training step of eager PyTorch takes on a simulated card.
//!
//! Two things run beside each other: the host, which works through Python and launches, and the card, which works
//! through what was launched. A step takes as long as the later of the two. The pieces of work are in a program's
//! [`Timeline`](crate::program::Timeline); kernels are timed by a table that was measured on an H200, as times of what
//! the card's ceilings allow, and so carried over to other cards.
#![doc = include_str!("NOTES.md")]

mod clocks;
mod host;
mod job;
mod table;

pub use clocks::{Piece, StepTime, longer_step, pieces, step};
pub use host::seconds as host_seconds;

use crate::device::sim::Card;

/// Whether times on a card are calibrated: its own kernels were measured. Those of other cards are estimates, by published figures.
pub fn is_calibrated(card: &Card) -> bool {
    card.product == table::MEASURED_ON
}
