//! The seam between the allocator and whatever owns the memory.

use std::fmt;

use crate::units::Bytes;

/// A device address. Only its order and its distance to others mean anything here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address(pub u64);

impl Address {
    /// The address `distance` further up.
    #[must_use]
    pub const fn offset(self, distance: Bytes) -> Address {
        Address(self.0 + distance.0)
    }
}

impl fmt::Display for Address {
    /// Writes the address as PyTorch's trace files do: lower-case hexadecimal, no prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// The source cannot give another segment of the size asked for. An answer, not a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no room for a segment of {asked}")]
pub struct Full {
    /// What was asked for.
    pub asked: Bytes,
}

/// Hands out and takes back whole segments. The only thing the allocator knows about a device.
///
/// A source that fails for any other reason than lack of memory keeps that error for its owner to
/// find and answers [`Full`]: PyTorch raises there, and no step continues after it.
pub trait SegmentSource {
    /// Gives a segment of exactly `size` bytes, aligned to at least 512.
    fn take(&mut self, size: Bytes) -> Result<Address, Full>;

    /// Takes back a segment that `take` gave, with the size it was asked for.
    fn give_back(&mut self, segment: Address, size: Bytes);
}

impl<S: SegmentSource + ?Sized> SegmentSource for &mut S {
    fn take(&mut self, size: Bytes) -> Result<Address, Full> {
        (**self).take(size)
    }

    fn give_back(&mut self, segment: Address, size: Bytes) {
        (**self).give_back(segment, size);
    }
}
