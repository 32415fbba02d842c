//! A driver that answers as it did when the recording was made.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::recording::{Entry, Recording};
use crate::alloc::{
    Address, Event, Full, PoolKind, Reserved, SMALL_SEGMENT, SegmentSource, Settings, Stream,
    expandable_size,
};
use crate::units::Bytes;

/// Stands in for the size of a device that a recording does not name: larger than any there is.
pub(super) const UNKNOWN_TOTAL: Bytes = Bytes::gib(4096);

/// Gives the segments that were recorded for the current request, and refuses all else.
#[derive(Debug, Clone)]
pub(super) struct RecordedDriver<'r> {
    entries: &'r [Entry],
    /// The entries of the current request that are not used up.
    next: usize,
    end: usize,
    /// Where expandable segments can lie.
    spaces: &'r Spaces,
    held: Vec<Reserved>,
    /// What is taken and mapped.
    reserved: u64,
    /// The most that the recording had reserved: so much there was, at some time.
    most: u64,
    /// How often something was refused.
    pub(super) refusals: u64,
    /// How often although it would not have been more than there was at some time.
    pub(super) surprises: u64,
}

impl<'r> RecordedDriver<'r> {
    pub(super) fn new(recording: &'r Recording, spaces: &'r Spaces) -> RecordedDriver<'r> {
        RecordedDriver {
            entries: &recording.entries,
            next: 0,
            end: 0,
            spaces,
            held: spaces.at_start.clone(),
            reserved: recording.initial.reserved().0,
            most: recording.most_reserved().0,
            refusals: 0,
            surprises: 0,
        }
    }

    /// Turns to the entries of a request.
    pub(super) fn serve(&mut self, entries: std::ops::Range<usize>) {
        self.next = entries.start;
        self.end = entries.end;
    }

    /// The next event of the driver in this request.
    fn upcoming(&mut self) -> Option<Event> {
        while self.next < self.end {
            let event = self.entries[self.next].event;
            match event {
                Event::SegmentAlloc { .. }
                | Event::SegmentFree { .. }
                | Event::SegmentMap { .. }
                | Event::SegmentUnmap { .. } => return Some(event),
                Event::Alloc { .. }
                | Event::FreeRequested { .. }
                | Event::FreeCompleted { .. }
                | Event::OutOfMemory { .. } => self.next += 1,
            }
        }
        None
    }

    fn refuse(&mut self, asked: Bytes) -> Full {
        self.refusals += 1;
        if self.reserved + asked.0 <= self.most {
            self.surprises += 1;
        }
        Full { asked }
    }

    fn expect(&mut self, event: Event) {
        // What differs shows when the events are compared.
        if self.upcoming() == Some(event) {
            self.next += 1;
        }
    }
}

impl SegmentSource for RecordedDriver<'_> {
    fn take(&mut self, asked: Bytes) -> Result<Address, Full> {
        match self.upcoming() {
            Some(Event::SegmentAlloc { address, size }) if size == asked => {
                self.next += 1;
                self.reserved += size.0;
                Ok(address)
            }
            _ => Err(self.refuse(asked)),
        }
    }

    fn give_back(&mut self, address: Address, size: Bytes) {
        self.reserved -= size.0;
        self.expect(Event::SegmentFree { address, size });
    }

    fn reserve(&mut self, unit: Bytes) -> Result<Reserved, Full> {
        let Some(Event::SegmentMap { address, .. }) = self.upcoming() else {
            return Err(self.refuse(unit));
        };
        let reserved = self.spaces.from(address, unit);
        let overlaps = |other: &Reserved| {
            other.address < address.offset(reserved.size)
                && address < other.address.offset(other.size)
        };
        if reserved.size < unit || self.held.iter().any(overlaps) {
            return Err(self.refuse(unit));
        }
        self.held.push(reserved);
        Ok(reserved)
    }

    fn map(&mut self, address: Address, size: Bytes) -> Result<(), Full> {
        if self.upcoming() == Some(Event::SegmentMap { address, size }) {
            self.next += 1;
            self.reserved += size.0;
            return Ok(());
        }
        Err(self.refuse(size))
    }

    fn unmap(&mut self, address: Address, size: Bytes) {
        self.reserved -= size.0;
        self.expect(Event::SegmentUnmap { address, size });
    }

    fn release(&mut self, reserved: Reserved) {
        self.held.retain(|held| *held != reserved);
    }
}

/// The address space of expandable segments. A recording shows what is mapped of it, not its bounds.
#[derive(Debug, Clone, Default)]
pub(super) struct Spaces {
    /// What was reserved when the recording started.
    pub(super) at_start: Vec<Reserved>,
    /// Where spaces are seen to begin, by address.
    bases: Vec<Address>,
    total: Option<Bytes>,
}

/// Each pool of each stream has a space of its own.
type Key = (Stream, PoolKind);

/// A space that is in use.
#[derive(Debug, Clone, Copy)]
struct Space {
    base: Address,
    mapped: u64,
    is_from_start: bool,
}

impl Spaces {
    pub(super) fn of(recording: &Recording, settings: &Settings) -> Spaces {
        let mut in_use = at_start(&recording.initial);
        let keys: Vec<Key> = in_use.keys().copied().collect();
        let mut from_start: BTreeMap<Key, Address> = in_use
            .iter()
            .map(|(key, space)| (*key, space.base))
            .collect();
        let mut bases = Vec::new();
        let mut maps: Vec<(Address, Bytes)> = Vec::new();
        for entry in &recording.entries {
            match entry.event {
                Event::SegmentMap { address, size } => maps.push((address, size)),
                Event::SegmentUnmap { address, size } => {
                    let below = in_use.values_mut().filter(|space| space.base <= address);
                    if let Some(space) = below.max_by_key(|space| space.base) {
                        space.mapped = space.mapped.saturating_sub(size.0);
                    }
                }
                // What is mapped serves the request that follows.
                Event::Alloc { requested, .. } | Event::OutOfMemory { rounded: requested } => {
                    let pool = PoolKind::serving(settings.round_size(requested));
                    let key = (entry.stream, pool);
                    for (address, size) in maps.drain(..) {
                        let space = in_use.entry(key).or_insert(Space {
                            base: address,
                            mapped: 0,
                            is_from_start: false,
                        });
                        if space.mapped == 0 {
                            // The space before it went with the last of its memory.
                            bases.push(address);
                            *space = Space {
                                base: address,
                                mapped: 0,
                                is_from_start: false,
                            };
                        } else if space.is_from_start && address < space.base {
                            space.base = address;
                            from_start.insert(key, address);
                        }
                        space.mapped += size.0;
                    }
                }
                Event::FreeRequested { .. }
                | Event::FreeCompleted { .. }
                | Event::SegmentAlloc { .. }
                | Event::SegmentFree { .. } => {}
            }
        }
        bases.extend(from_start.values());
        bases.sort_unstable();
        let mut spaces = Spaces {
            at_start: Vec::new(),
            bases,
            total: recording.total,
        };
        let found = keys.iter().map(|key| {
            let unit = match key.1 {
                PoolKind::Small => SMALL_SEGMENT,
                PoolKind::Large => settings.segment_size(SMALL_SEGMENT),
            };
            spaces.from(from_start[key], unit)
        });
        spaces.at_start = found.collect();
        spaces
    }

    /// A space that begins at `base` and grows in `unit`s; it ends where the next one begins.
    fn from(&self, base: Address, unit: Bytes) -> Reserved {
        let size = expandable_size(self.total.unwrap_or(UNKNOWN_TOTAL), unit).unwrap_or(unit);
        let next = self.bases.iter().find(|other| **other > base);
        let room = next.map_or(u64::MAX, |next| next.0) - base.0;
        let size = size.0.min(room);
        Reserved {
            address: base,
            size: Bytes(size - size % unit.0),
        }
    }
}

fn at_start(initial: &Layout) -> BTreeMap<Key, Space> {
    let mut spaces: BTreeMap<Key, Space> = BTreeMap::new();
    let expandable = initial
        .segments
        .iter()
        .filter(|segment| segment.is_expandable);
    for segment in expandable {
        // By address, so the first of each is its lowest.
        let space = spaces
            .entry((segment.stream, segment.pool))
            .or_insert(Space {
                base: segment.address,
                mapped: 0,
                is_from_start: true,
            });
        space.mapped += segment.size.0;
    }
    spaces
}
