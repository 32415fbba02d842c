//! Segments that grow in place: address space reserved once, memory mapped into it as it is needed.
//! PyTorch's Note [Expandable Segments]; ours is Note [Expandable segments].

use std::num::NonZeroU32;

use super::block::{Block, BlockId, State};
use super::caching::{CachingAllocator, Refusal};
use super::history::trace::{Event, Observer, SegmentAction};
use super::memory::segment::{Reserved, SegmentSource};
use super::pool::PoolKey;
use crate::units::Bytes;

/// Names a reservation until it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReservationId(NonZeroU32);

#[derive(Debug, Clone, Copy)]
struct Reservation {
    reserved: Reserved,
    /// Memory is mapped and unmapped in these, from the start of the reservation.
    unit: Bytes,
}

/// The reservations that are held from the source.
#[derive(Debug, Clone, Default)]
pub(super) struct Reservations {
    slots: Vec<Option<Reservation>>,
}

impl Reservations {
    fn add(&mut self, reservation: Reservation) -> ReservationId {
        let vacant = self.slots.iter().position(Option::is_none);
        let index = vacant.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[index] = Some(reservation);
        let number = u32::try_from(index + 1).expect("fewer than 2^32 reservations exist at once");
        ReservationId(NonZeroU32::new(number).expect("counted from one"))
    }

    fn of(&self, id: ReservationId) -> Reservation {
        self.slots[id.0.get() as usize - 1].expect("a reservation outlives its blocks")
    }

    pub(super) fn remove(&mut self, id: ReservationId) -> Reserved {
        let slot = &mut self.slots[id.0.get() as usize - 1];
        slot.take()
            .expect("a reservation outlives its blocks")
            .reserved
    }
}

impl<S: SegmentSource, O: Observer> CachingAllocator<S, O> {
    /// A free block of at least `rounded` bytes, in no set, from memory mapped for it. PyTorch's
    /// `try_allocate_expandable_block`. What was mapped before a refusal stays as free memory.
    pub(super) fn expand(&mut self, home: PoolKey, rounded: Bytes) -> Result<BlockId, Refusal> {
        let mut found = match self.expandable_room(home, rounded) {
            Some(id) => id,
            None => self.reserve(home)?,
        };
        if self.blocks[found].state == State::Unmapped {
            let size = self.blocks[found].size.min(rounded);
            found = self.map(found, size)?;
        }
        while self.blocks[found].size < rounded {
            let missing = rounded - self.blocks[found].size;
            // There is none when the request is larger than a whole reservation.
            let next = self.blocks[found].next.ok_or(Refusal::Source)?;
            found = self.map(next, missing.min(self.blocks[next].size))?;
        }
        self.remove_free(found);
        Ok(found)
    }

    /// The first run of free and unmapped blocks that can hold `rounded`, by the address of its unmapped
    /// block. PyTorch's `find_expandable_block`.
    fn expandable_room(&self, home: PoolKey, rounded: Bytes) -> Option<BlockId> {
        let usable = |id: &BlockId| matches!(self.blocks[*id].state, State::Free | State::Unmapped);
        let mut unmapped = self.pools.stream_pool(home).unmapped.iter();
        unmapped.find_map(|&(_, id)| {
            let start = self.blocks[id].prev.filter(usable).unwrap_or(id);
            let mut room = Bytes::ZERO;
            let mut at = Some(start);
            while let Some(id) = at.filter(usable)
                && room < rounded
            {
                room += self.blocks[id].size;
                at = self.blocks[id].next;
            }
            (room >= rounded).then_some(start)
        })
    }

    /// Takes over address space that was reserved before.
    pub(super) fn adopt_reservation(&mut self, home: PoolKey, reserved: Reserved) -> ReservationId {
        let unit = self.settings.unit(home.pool);
        self.reservations.add(Reservation { reserved, unit })
    }

    fn reserve(&mut self, home: PoolKey) -> Result<BlockId, Refusal> {
        let unit = self.settings.unit(home.pool);
        let reserved = self.source.reserve(unit).map_err(|_| Refusal::Source)?;
        let Reserved { address, size } = reserved;
        let id = self.blocks.add(Block {
            reservation: Some(self.reservations.add(Reservation { reserved, unit })),
            ..Block::whole(address, size, home, State::Unmapped)
        });
        self.pools.shelf_mut(home).insert_unmapped(address, id);
        Ok(id)
    }

    /// Maps the first `size` bytes of an unmapped block, rounded up to whole units, and gives the free
    /// block that they are part of then. PyTorch's `map_block`.
    fn map(&mut self, id: BlockId, size: Bytes) -> Result<BlockId, Refusal> {
        let unmapped = self.blocks[id];
        let unit = self.unit_of(&unmapped);
        let size = size
            .round_up(unit)
            .expect("a unit is no larger than its reservation");
        let address = unmapped.address;
        self.source
            .map(address, size)
            .map_err(|_| Refusal::Source)?;

        let own = self.pools.shelf_mut(unmapped.home);
        own.remove_unmapped(address);
        let mapped = if size < unmapped.size {
            own.insert_unmapped(address.offset(size), id);
            self.blocks.split_front(id, size)
        } else {
            id
        };
        self.blocks[mapped].state = State::Free;
        self.absorb_neighbours(mapped);
        self.put_free(mapped);
        self.reserved += size;
        self.stats.num_device_alloc += 1;
        self.stats.update(unmapped.home.pool, |stats| {
            stats.reserved_bytes.increase(size.0);
        });
        self.observer
            .record(Event::Segment(SegmentAction::Map, address, size));
        Ok(mapped)
    }

    /// Gives back the units that lie entirely inside a free block. PyTorch's `unmap_block`.
    pub(super) fn unmap(&mut self, id: BlockId) {
        let block = self.blocks[id];
        let unit = self.unit_of(&block);
        let base = self.reserved_of(&block).address;
        let from = (block.address.0 - base.0).next_multiple_of(unit.0);
        let end = block.end().0 - base.0;
        let to = end - end % unit.0;
        if from >= to {
            return;
        }
        let (address, size) = (base.offset(Bytes(from)), Bytes(to - from));
        self.source.unmap(address, size);

        self.remove_free(id);
        let before = Bytes(address.0 - block.address.0);
        if before > Bytes::ZERO {
            let front = self.blocks.split_front(id, before);
            self.put_free(front);
        }
        let unmapped = if self.blocks[id].size > size {
            let middle = self.blocks.split_front(id, size);
            self.put_free(id);
            middle
        } else {
            id
        };
        self.blocks[unmapped].state = State::Unmapped;
        self.absorb_neighbours(unmapped);
        let whole = self.blocks[unmapped];
        let own = self.pools.shelf_mut(block.home);
        own.insert_unmapped(whole.address, unmapped);
        self.reserved -= size;
        self.stats.num_device_free += 1;
        self.stats.update(block.home.pool, |stats| {
            stats.reserved_bytes.decrease(size.0);
        });
        self.observer
            .record(Event::Segment(SegmentAction::Unmap, address, size));
        if !whole.is_split() {
            self.drop_reservation(unmapped);
        }
    }

    /// Gives up the reservation that an unmapped block covers.
    fn drop_reservation(&mut self, id: BlockId) {
        let block = self.blocks[id];
        self.pools
            .shelf_mut(block.home)
            .remove_unmapped(block.address);
        self.blocks.remove(id);
        let reservation = block.reservation.expect("only reservations are unmapped");
        let reserved = self.reservations.remove(reservation);
        self.source.release(reserved);
    }

    pub(super) fn reserved_of(&self, block: &Block) -> Reserved {
        let reservation = block.reservation.expect("only reservations are mapped");
        self.reservations.of(reservation).reserved
    }

    fn unit_of(&self, block: &Block) -> Bytes {
        let reservation = block.reservation.expect("only reservations are mapped");
        self.reservations.of(reservation).unit
    }
}
