//! What the allocator did, in the order and the words of PyTorch's memory history.

use std::fmt;

use crate::alloc::memory::segment::Address;
use crate::units::Bytes;

/// One entry of PyTorch's `device_traces`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A segment came from the source.
    SegmentAlloc {
        /// Its start.
        address: Address,
        /// Its size.
        size: Bytes,
    },
    /// A segment went back to the source.
    SegmentFree {
        /// Its start.
        address: Address,
        /// Its size.
        size: Bytes,
    },
    /// Memory was mapped into an expandable segment.
    SegmentMap {
        /// Where it starts.
        address: Address,
        /// How much was mapped.
        size: Bytes,
    },
    /// Memory of an expandable segment went back to the source.
    SegmentUnmap {
        /// Where it started.
        address: Address,
        /// How much was unmapped.
        size: Bytes,
    },
    /// A block was handed to the caller.
    Alloc {
        /// Its start.
        address: Address,
        /// What the caller asked for, before rounding.
        requested: Bytes,
    },
    /// The caller gave a block back.
    FreeRequested {
        /// Its start.
        address: Address,
        /// What the caller had asked for.
        requested: Bytes,
    },
    /// The block can be reused. It follows `FreeRequested` at once, unless another stream used the block.
    FreeCompleted {
        /// Its start.
        address: Address,
        /// What the caller had asked for.
        requested: Bytes,
    },
    /// A request was refused after everything cached had been given back.
    OutOfMemory {
        /// The refused size, rounded.
        rounded: Bytes,
    },
}

impl fmt::Display for Event {
    /// Writes PyTorch's name of the action, the address (`-` where there is none) and the size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (action, address, size) = match *self {
            Event::SegmentAlloc { address, size } => ("segment_alloc", address, size),
            Event::SegmentFree { address, size } => ("segment_free", address, size),
            Event::SegmentMap { address, size } => ("segment_map", address, size),
            Event::SegmentUnmap { address, size } => ("segment_unmap", address, size),
            Event::Alloc { address, requested } => ("alloc", address, requested),
            Event::FreeRequested { address, requested } => ("free_requested", address, requested),
            Event::FreeCompleted { address, requested } => ("free_completed", address, requested),
            Event::OutOfMemory { rounded } => return write!(f, "oom - {}", rounded.0),
        };
        write!(f, "{action} {address} {}", size.0)
    }
}

/// Is told of every event, as it happens. `()` listens to nothing and costs nothing.
pub trait Observer {
    /// Takes in one event.
    fn record(&mut self, event: Event);

    /// What it has been told and still keeps, oldest first.
    fn events(&self) -> &[Event] {
        &[]
    }

    /// Keeps nothing of what it has been told.
    fn forget(&mut self) {}
}

impl Observer for () {
    fn record(&mut self, _: Event) {}
}

impl Observer for Vec<Event> {
    fn record(&mut self, event: Event) {
        self.push(event);
    }

    fn events(&self) -> &[Event] {
        self
    }

    fn forget(&mut self) {
        self.clear();
    }
}
