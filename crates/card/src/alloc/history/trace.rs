//! What the allocator did, in the order and the words of PyTorch's memory history.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::alloc::memory::segment::Address;
use crate::units::Bytes;

batchfit_step::listed! {
    /// What the allocator asked of the driver.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum SegmentAction {
        /// It took a segment.
        Alloc = "alloc",
        /// It gave a segment back.
        Free = "free",
        /// It mapped memory into an expandable segment.
        Map = "map",
        /// It unmapped memory of an expandable segment.
        Unmap = "unmap",
    }
}

/// One entry of PyTorch's `device_traces`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The driver was asked for this at an address: a segment, or so much of an expandable one.
    Segment(SegmentAction, Address, Bytes),
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
            Event::Segment(action, address, size) => {
                return write!(f, "segment_{} {address} {}", action.name(), size.0);
            }
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
