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

/// Hands out and takes back memory. The only thing the allocator knows about a device.
///
/// Two verbs serve classic segments, four more expandable ones: address space is reserved once, and
/// memory is mapped into it and unmapped again in whole units.
///
/// A source that fails for any other reason than lack of memory keeps that error for its owner to
/// find and answers [`Full`]: PyTorch raises there, and no step continues after it.
pub trait SegmentSource {
    /// Gives a segment of exactly `size` bytes, aligned to at least 512.
    fn take(&mut self, size: Bytes) -> Result<Address, Full>;

    /// Takes back a segment that `take` gave, with the size it was asked for.
    fn give_back(&mut self, segment: Address, size: Bytes);

    /// Takes back everything at once from a holder of `held` bytes, and nothing reserved: the same as taking
    /// back one after the other. Whether it did; a source may know no such way.
    fn give_back_all(&mut self, _held: Bytes) -> bool {
        false
    }

    /// Reserves address space for one expandable segment: [`expandable_size`] of the device's memory.
    fn reserve(&mut self, unit: Bytes) -> Result<Reserved, Full>;

    /// Puts memory behind a part of a reservation: whole units from its start, none of which is mapped,
    /// each of its own so that any of them can be unmapped later. All or nothing.
    fn map(&mut self, at: Address, size: Bytes) -> Result<(), Full>;

    /// Takes the memory behind whole units, all of which are mapped, however they were mapped.
    fn unmap(&mut self, at: Address, size: Bytes);

    /// Gives up a reservation of which nothing is mapped.
    fn release(&mut self, reserved: Reserved);

    /// A digest of everything that decides what the source will answer; `None` for one that cannot know.
    fn digest(&self) -> Option<u64> {
        None
    }
}

/// Address space for an expandable segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// Its start.
    pub address: Address,
    /// Its size, a multiple of the unit that it was reserved for.
    pub size: Bytes,
}

/// How much address space PyTorch reserves for an expandable segment: an eighth more than the device has,
/// in whole units. `None` beyond what a `u64` holds.
pub fn expandable_size(total: Bytes, unit: Bytes) -> Option<Bytes> {
    let room = total.0.checked_add(total.0 / 8)?;
    Bytes(room).round_up(unit)
}

impl<S: SegmentSource + ?Sized> SegmentSource for &mut S {
    fn take(&mut self, size: Bytes) -> Result<Address, Full> {
        (**self).take(size)
    }

    fn give_back(&mut self, segment: Address, size: Bytes) {
        (**self).give_back(segment, size);
    }

    fn give_back_all(&mut self, held: Bytes) -> bool {
        (**self).give_back_all(held)
    }

    fn reserve(&mut self, unit: Bytes) -> Result<Reserved, Full> {
        (**self).reserve(unit)
    }

    fn map(&mut self, at: Address, size: Bytes) -> Result<(), Full> {
        (**self).map(at, size)
    }

    fn unmap(&mut self, at: Address, size: Bytes) {
        (**self).unmap(at, size);
    }

    fn release(&mut self, reserved: Reserved) {
        (**self).release(reserved);
    }

    fn digest(&self) -> Option<u64> {
        (**self).digest()
    }
}
