//! What a program depends on of the card it is compiled for.

/// What the rules for library scratch memory need to know of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Capability {
    /// Compute capability, major and minor: `(9, 0)` for Hopper.
    pub compute: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u64,
    /// Threads that one multiprocessor holds.
    pub threads_per_multiprocessor: u64,
}
