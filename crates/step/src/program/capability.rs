//! What a program depends on of the card it is compiled for.

use serde::{Deserialize, Serialize};

use super::architecture::Architecture;

/// What the rules for library scratch memory need to know of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Capability {
    /// Compute capability, major and minor: `(9, 0)` for Hopper.
    pub compute: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u64,
    /// Threads that one multiprocessor holds.
    pub threads_per_multiprocessor: u64,
}

impl Capability {
    /// That of a card of this compute capability with so many multiprocessors.
    pub const fn of(compute: (u32, u32), multiprocessors: u64) -> Capability {
        Capability {
            compute,
            multiprocessors,
            threads_per_multiprocessor: Architecture::of(compute).threads_per_multiprocessor,
        }
    }
}
