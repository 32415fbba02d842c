//! The memory of a card, as a simulation has it.

use crate::alloc::{CachingAllocator, Observer, Settings, SimulatedMemory};
use crate::units::Bytes;

/// How much memory a card has, and how much of it is ours.
#[derive(Debug, Clone, Copy)]
pub struct CardMemory {
    /// All of it.
    pub total: Bytes,
    /// What is left for the allocator. With expandable segments it may pass its limit by less than a
    /// unit, but never this.
    pub available: Bytes,
}

impl CardMemory {
    /// An allocator that may reserve `limit` of it, and tells `observer` of every event.
    pub fn allocator<O: Observer>(
        &self,
        settings: &Settings,
        limit: Bytes,
        observer: O,
    ) -> CachingAllocator<SimulatedMemory, O> {
        let memory = SimulatedMemory::new(self.available.max(limit)).on_device_of(self.total);
        CachingAllocator::observed(memory, settings.clone(), Some(limit), observer)
    }
}
